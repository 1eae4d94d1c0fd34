"""Targets of the figures, and whether they are met."""

from collections.abc import Mapping
from typing import Any

from bench.turns import Contender, median, ratio


def of(
    contenders: Mapping[str, Contender], own_cores: bool, refills: list[dict[str, Any]], idle: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return all targets with the measured values, None for those not measured.

    Args:
        contenders: The contenders by key.
        own_cores: Whether the load generator has its own cores: then calls are compared, otherwise
            CPU.
        refills: See ``peers.measure_refills``.
        idle: See ``peers.measure_idle_streams``.
    """

    def over(above: str, below: str, figure: str) -> float | None:
        return ratio(contenders.get(above), contenders.get(below), figure)

    rows = [
        _at_least(f"unary calls/s, idalloc / no-op, {one}, 64 in flight", rate, over(ours, noop, "rate"))
        for one, rate, ours, noop in (
            ("grpcio", 0.90, "ours grpcio 1 at 64", "noop grpcio at 64"),
            ("native", 0.80, "ours native 1 at 64", "noop native at 64"),
        )
    ]
    native = over("ours native 1 at 64", "ours grpcio 1 at 64", "rate")
    rows.append(_at_least("unary calls/s, native / grpcio, 64 in flight", 4, native))
    for one in ("grpcio", "native"):
        p50 = over(f"ours {one} 1 at 1", f"noop {one} at 1", "p50")
        rows.append(_at_most(f"unary p50, idalloc / no-op, {one}, 1 in flight", 1.15, p50))
    blocks = over("ids grpcio", "postgres segment 1", "ids_rate")
    rows.append(_at_least("ids/s, one caller, `ids()` / PostgreSQL segment table, 1,000 ids each", 1, blocks))
    rows += [
        _at_least(f"document ids/s at the client, {how}, {one}", 5e6, _ids_rate(contenders, f"{key} {one}"))
        for key, how in (("doc_ids", "`stream_doc_ids`"), ("doc_id texts", "as texts on the wire"))
        for one in ("grpcio", "native")
    ]
    rows += [_workers(contenders, one, own_cores) for one in ("grpcio", "native")]
    store = "crate" if "recipe crate" in contenders else "sqlite"
    ours = "calls crate" if store == "crate" else "calls grpcio"
    recipe = "CrateDB's recipe" if store == "crate" else "the recipe on SQLite"
    calls = over(ours, f"recipe {store}", "ids_rate")
    rows.append(_at_least(f"ids/s, one id a call, 16 in flight, idalloc / {recipe}", 1, calls))
    rows += [
        _at_most(f"unary p99, over {each.get('refills', 0)} refills / without, {each['store']}", 1.5, each.get("ratio"))
        for each in refills
    ]
    rows += [
        _at_most(f"kB for each idle open stream, {one}", 40, kb if isinstance(kb, float) else None)
        for one, kb in idle.items()
    ]
    return rows


def _workers(contenders: Mapping[str, Contender], transport: str, own_cores: bool) -> dict[str, Any]:
    one, two = (contenders.get(f"ours {transport} {workers} at 64") for workers in (1, 2))
    if own_cores:
        twice = ratio(two, one, "rate")
        return _at_least(f"calls/s, 2 workers / twice 1 worker, {transport}", 0.9, twice and twice / 2)
    return _at_least(f"CPU a call, 1 worker / 2 workers, {transport}", 0.9, ratio(one, two, "server_cost"))


def _ids_rate(contenders: Mapping[str, Contender], key: str) -> float | None:
    return median(contenders[key].turns.values(), "ids_rate") if key in contenders else None


def _at_least(what: str, target: float, value: float | None) -> dict[str, Any]:
    met = None if value is None else value >= target
    return {"what": what, "target": target, "at": "least", "value": value, "met": met}


def _at_most(what: str, target: float, value: float | None) -> dict[str, Any]:
    met = None if value is None else value <= target
    return {"what": what, "target": target, "at": "most", "value": value, "met": met}
