"""Runs the scenarios with MySQL's Python client, and prints a line of JSON for each step.

usage: drive.py --port PORT --scenarios FILE [--only NAME …] > answers.jsonl
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mysqlx

Step = dict[str, Any]
_SET_UP = [
    {"op": "connect"},
    {"op": "drop_schema", "name": "conf"},
    {"op": "create_schema", "name": "conf"},
    {"op": "create_collection", "name": "c"},
]


class World:
    """The sessions of a scenario, and the ids that the server generated in it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sessions: dict[str, Any] = {}
        self.ids: list[str] = []

    def session(self, step: Step) -> Any:
        return self.sessions[step.get("as", "s")]

    def schema(self, step: Step) -> Any:
        return self.session(step).get_schema(step.get("schema", "conf"))

    def collection(self, step: Step) -> Any:
        return self.schema(step).get_collection(step.get("collection", "c"))

    def fill(self, value: Any) -> Any:
        """Replace ``$id:2`` by the second id that the server generated."""
        if isinstance(value, str) and value.startswith("$id:"):
            return self.ids[int(value[4:]) - 1]
        if isinstance(value, list):
            return [self.fill(each) for each in value]
        if isinstance(value, dict):
            return {key: self.fill(each) for key, each in value.items()}
        return value

    def settings(self, options: dict[str, Any]) -> dict[str, Any]:
        found = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": options.get("user", "x"),
            "password": options.get("password", "x"),
            "ssl-mode": "required" if options.get("tls") else "disabled",
            "compression": options.get("compression", "disabled").lower(),
        }
        names = {"schema": "schema", "algorithms": "compression-algorithms", "attributes": "connection-attributes"}
        found |= {ours: options[theirs] for theirs, ours in names.items() if theirs in options}
        return found | ({"auth": options["auth"].lower()} if "auth" in options else {})

    def wrote(self, result: Any, ids: bool = True) -> dict[str, Any]:
        """Describe the result of a statement that writes."""
        out: dict[str, Any] = {"affected": result.get_affected_items_count()}
        if ids:
            out["ids"] = list(result.get_generated_ids())
            self.ids += out["ids"]
        return out | warnings_of(result)


def warnings_of(result: Any) -> dict[str, Any]:
    if not result.get_warnings_count():
        return {}
    found = result.get_warnings()
    return {
        "warnings": [[each["code"], each["msg"]] if isinstance(each, dict) else [each.code, each.msg] for each in found]
    }


def plain(document: Any) -> Any:
    if document is None:
        return None
    return json.loads(str(document) if isinstance(document, mysqlx.DbDoc) else json.dumps(document))


def build(world: World, step: Step) -> Any:
    """Return the statement of a find, modify or remove."""
    criteria = [step["criteria"]] if "criteria" in step else []
    query = getattr(world.collection(step), step["op"])(*criteria)
    for name in ("fields", "group_by"):
        if name in step and step["op"] == "find":
            query = getattr(query, name)(*step[name])
    if "having" in step:
        query = query.having(step["having"])
    if step.get("lock") == "shared":
        query = query.lock_shared()
    if step.get("lock") == "exclusive":
        query = query.lock_exclusive()
    if step["op"] == "modify":
        query = _changes(world, step, query)
    if "sort" in step:
        query = query.sort(*step["sort"])
    for name in ("limit", "offset"):
        if name in step:
            query = getattr(query, name)(step[name])
    return query


def _changes(world: World, step: Step, query: Any) -> Any:
    for path, value in step.get("set", {}).items():
        query = query.set(path, world.fill(value))
    if "unset" in step:
        query = query.unset(*step["unset"])
    for path, value in step.get("change", {}).items():
        query = query.change(path, world.fill(value))
    for path, value in step.get("set_expr", {}).items():
        query = query.set(path, mysqlx.expr(value))
    for name in ("array_append", "array_insert"):
        for path, value in step.get(name, {}).items():
            query = getattr(query, name)(path, world.fill(value))
    return query.patch(world.fill(step["patch"])) if "patch" in step else query


def execute(world: World, step: Step) -> Any:
    """Execute a statement as often as the step says; return the last result and its documents."""
    query = build(world, step)
    result, documents = None, []
    for _ in range(step.get("times", 1)):
        for name, value in step.get("bind", {}).items():
            query = query.bind(name, world.fill(value))
        result = query.execute()
        if step["op"] == "find":
            documents = [plain(each) for each in result.fetch_all()]
    return documents if step["op"] == "find" else world.wrote(result, ids=False)


def connect(world: World, step: Step) -> str:
    world.sessions[step.get("as", "s")] = mysqlx.get_session(world.settings(step.get("options", {})))
    return "connected"


def close(world: World, step: Step) -> str:
    world.session(step).close()
    return "closed"


def create_collection(world: World, step: Step) -> str:
    more = {"validation": step["validation"]} if "validation" in step else {}
    world.schema(step).create_collection(step["name"], step.get("reuse", False), **more)
    return "ok"


def add_many(world: World, step: Step) -> dict[str, Any]:
    documents = [{"n": number} for number in range(step["count"])]
    found = world.wrote(world.collection(step).add(*documents).execute())
    ids = found["ids"]
    return {**found, "ids": len(ids), "rising": sorted(ids) == ids == sorted(set(ids))}


def sql(world: World, step: Step) -> dict[str, Any]:
    query = world.session(step).sql(step["stmt"])
    if "args" in step:
        query = query.bind(*step["args"])
    result = query.execute()
    if not result.has_data():
        return {"affected": result.get_affected_items_count(), **warnings_of(result)}
    width = range(len(result.columns))
    rows = [[row[index] for index in width] for row in result.fetch_all()]
    texts = [[each.decode() if isinstance(each, bytes) else each for each in row] for row in rows]
    return {"rows": texts, "columns": [column.column_label for column in result.columns]}


def pool(world: World, step: Step) -> list[Any]:
    options = world.settings({**step.get("options", {}), "schema": "conf"})
    client = mysqlx.get_client(options, {"pooling": {"enabled": True, "max_size": step.get("size", 2)}})
    out = []
    for number in range(step.get("sessions", 3)):
        session = client.get_session()
        added = session.get_schema("conf").get_collection("c").add({"pool": number}).execute()
        out.append(world.wrote(added))
        session.close()
    client.close()
    return out


def ok(_: Any) -> str:
    return "ok"


OPERATIONS: dict[str, Callable[[World, Step], Any]] = {
    "connect": connect,
    "close": close,
    "create_collection": create_collection,
    "add_many": add_many,
    "sql": sql,
    "pool": pool,
    "find": execute,
    "modify": execute,
    "remove": execute,
    "create_schema": lambda w, s: ok(w.session(s).create_schema(s["name"])),
    "drop_schema": lambda w, s: ok(w.session(s).drop_schema(s["name"])),
    "get_schemas": lambda w, s: sorted(each for each in w.session(s).get_schemas() if each.startswith("conf")),
    "schema_exists": lambda w, s: w.session(s).get_schema(s["name"]).exists_in_database(),
    "drop_collection": lambda w, s: ok(w.schema(s).drop_collection(s["name"])),
    "get_collections": lambda w, s: sorted(each.get_name() for each in w.schema(s).get_collections()),
    "collection_exists": lambda w, s: w.schema(s).get_collection(s["name"]).exists_in_database(),
    "add": lambda w, s: w.wrote(w.collection(s).add(*w.fill(s["docs"])).execute()),
    "add_text": lambda w, s: w.wrote(w.collection(s).add(*s["texts"]).execute()),
    "count": lambda w, s: w.collection(s).count(),
    "get_one": lambda w, s: plain(w.collection(s).get_one(w.fill(s["id"]))),
    "replace_one": lambda w, s: w.wrote(w.collection(s).replace_one(w.fill(s["id"]), w.fill(s["doc"])), ids=False),
    "add_or_replace_one": lambda w, s: w.wrote(w.collection(s).add_or_replace_one(w.fill(s["id"]), w.fill(s["doc"]))),
    "remove_one": lambda w, s: w.wrote(w.collection(s).remove_one(w.fill(s["id"])), ids=False),
    "begin": lambda w, s: ok(w.session(s).start_transaction()),
    "commit": lambda w, s: ok(w.session(s).commit()),
    "rollback": lambda w, s: ok(w.session(s).rollback()),
    "savepoint": lambda w, s: ok(w.session(s).set_savepoint(s["name"])),
    "rollback_to": lambda w, s: ok(w.session(s).rollback_to(s["name"])),
    "release": lambda w, s: ok(w.session(s).release_savepoint(s["name"])),
    "create_index": lambda w, s: ok(w.collection(s).create_index(s["name"], s["index"]).execute()),
    "drop_index": lambda w, s: ok(w.collection(s).drop_index(s["name"])),
}


def described(error: Exception) -> dict[str, Any]:
    """Return the code and the text of a server's error, or the class of the client's own."""
    code = getattr(error, "errno", None)
    if isinstance(error, mysqlx.errors.Error) and isinstance(code, int) and code >= 1000:
        return {"code": code, "message": str(getattr(error, "msg", "")).removeprefix(f"{code}: ")}
    return {"client": type(error).__name__, "text": str(error)[:200]}


def run(scenario: dict[str, Any], port: int) -> None:
    """Run a scenario."""
    world = World(port)
    steps = scenario["steps"] if scenario.get("bare") else [*_SET_UP, *scenario["steps"]]
    for number, step in enumerate(steps):
        if "python" in step.get("skip", []):
            continue
        try:
            result = OPERATIONS[step["op"]](world, step)
        except Exception as error:
            result = {"error": described(error)}
        line = {"scenario": scenario["name"], "step": number, "op": step["op"], "result": result}
        print(json.dumps(line, ensure_ascii=False), flush=True)
    for session in world.sessions.values():
        try:
            session.close()
        except mysqlx.errors.Error:
            continue


def main() -> None:
    """Run the scenarios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--scenarios", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[""])
    args = parser.parse_args()
    for scenario in json.loads(args.scenarios.read_text()):
        if "python" not in scenario.get("skip", []) and scenario["name"].startswith(tuple(args.only)):
            run(scenario, args.port)


if __name__ == "__main__":
    main()
