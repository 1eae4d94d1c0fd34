"""Compares a client's answers with those it got from MySQL 8.0.31; data/x has a README."""

import json
import re
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "x" / "conformance"
SCENARIOS = FOLDER / "scenarios.json"

_ID = re.compile(r"[0-9a-f]{28}")


@dataclass
class Comparison:
    """How many steps of a client are equal, differ as accepted, or are out of scope."""

    equal: int = 0
    deviating: int = 0
    out_of_scope: int = 0
    different: list[str] = field(default_factory=list)  # the other ones, for people

    def __str__(self) -> str:
        """The line of the table."""
        return (
            f"{self.equal} equal, {self.deviating} deviating, {self.out_of_scope} out of scope,"
            f" {len(self.different)} different"
        )


class _Normal:
    """Replaces ids by the order of their appearance in a scenario."""

    def __init__(self) -> None:
        self._scenario = ""
        self._names: dict[str, str] = {}

    def __call__(self, line: dict[str, Any]) -> Any:
        if line["scenario"] != self._scenario:
            self._scenario, self._names = line["scenario"], {}
        return self._walk(line["result"])

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str) and _ID.fullmatch(value):
            return self._names.setdefault(value, f"<{len(self._names) + 1}>")
        if isinstance(value, list):
            return [self._walk(each) for each in value]
        if isinstance(value, dict):
            if set(value) == {"client", "text"}:  # a client's own error has no stable text
                return {"client": value["client"]}
            ids = value.get("ids")
            if isinstance(ids, list) and sorted(set(ids)) != ids:
                return {"not rising": ids}
            return {key: self._walk(each) for key, each in value.items()}
        return int(value) if isinstance(value, float) and value.is_integer() else value


def compare(client: str, answers: str) -> Comparison:
    """Compare the answers of a client, a line of JSON for each step, with MySQL's."""
    expected = _by_step((FOLDER / f"answers-{client}.jsonl").read_text())
    actual = _by_step(answers)
    deviations = tomllib.loads((FOLDER / "deviations.toml").read_text())["deviation"]
    found = Comparison()
    normal_expected, normal_actual = _Normal(), _Normal()
    for step, line in expected.items():
        theirs = normal_expected(line)
        if step not in actual:
            found.different.append(f"{step} is missing")
            continue
        ours = normal_actual(actual[step])
        if theirs == ours:
            found.equal += 1
        elif (deviation := _deviation(deviations, step, client, ours)) is None:
            shown = [json.dumps(each, ensure_ascii=False)[:300] for each in (theirs, ours)]
            found.different.append(f"{step}: MySQL: {shown[0]}, idalloc: {shown[1]}")
        elif deviation.get("out_of_scope"):
            found.out_of_scope += 1
        else:
            found.deviating += 1
    return found


def _by_step(text: str) -> dict[str, dict[str, Any]]:
    return {f"{line['scenario']}/{line['step']}": line for line in map(json.loads, text.splitlines())}


def _deviation(deviations: list[dict[str, Any]], step: str, client: str, ours: Any) -> dict[str, Any] | None:
    for each in deviations:
        if client in each.get("clients", [client]) and any(fnmatchcase(step, name) for name in each["steps"]):
            error = ours.get("error", {}) if isinstance(ours, dict) else {}
            if "code" not in each or error.get("code") == each["code"]:
                return dict(each)
    return None
