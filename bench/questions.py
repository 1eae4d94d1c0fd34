"""The questions that the benchmarks answer, each with a chart of its contenders."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bench import chart
from bench.hangs import HANG_SECONDS


class Question(NamedTuple):
    """A question, and who answers it."""

    file: str
    title: str
    axis: str  # what the bars are
    about: str  # how to read the chart
    keys: tuple[str, ...] | None  # the keys of the contenders; None for those whose store hung


QUESTIONS = (
    Question(
        "benchmarks-one-id.svg",
        "One id a call",
        "Calls a second, one id each",
        "The no-op servers are limits: they answer without a counter.",
        (
            *("noop grpcio at 64", "noop native at 64", "noop go at 64", "ours grpcio 1 at 64", "ours native 1 at 64"),
            *("crate at 64", "redis many", "postgres nextval 16", "etcd 1 at 16", "opensearch 1"),
            *("recipe crate", "recipe sqlite"),
        ),
    ),
    Question(
        "benchmarks-bulk.svg",
        "Ids in bulk",
        "Ids a second, many ids a request",
        "Each contender takes blocks of ids, or many ids in one message.",
        (
            *("ids grpcio", "ids native", "ids crate", "writers grpcio", "doc_ids grpcio", "doc_id texts grpcio"),
            *("postgres segment 1", "postgres segment 16", "etcd 1000 at 1", "etcd 1000 at 16", "opensearch 100"),
            "redis pipelined",
        ),
    ),
    Question(
        "benchmarks-fsync.svg",
        "Ids with fsync",
        "Calls a second, each written to the store before its answer",
        "idalloc writes each call of a sequence with the ordering `RISING`; concurrent calls share a write.",
        (
            *("rising", "redis", "redis many", "postgres segment 1", "postgres segment 16"),
            *("etcd 1 at 1", "etcd 1 at 16", "opensearch 1", "recipe crate", "recipe sqlite"),
        ),
    ),
    Question(
        "benchmarks-hang.svg",
        "When the store hangs",
        f"Longest call while the store hangs for {HANG_SECONDS:g} s, in ms",
        "A shorter bar is better. The processes of the store are paused, or its SQLite file is locked.",
        None,
    ),
)


def draw(question: Question, result: Mapping[str, Any]) -> str:
    """Return the chart of a question as SVG; an empty text if no contender answers it."""
    if question.keys is None:
        values = [(_bar(each), each["longest"] * 1e3) for each in result["hangs"] if each["longest"]]
    else:
        in_bulk = question.file.endswith("bulk.svg")
        found = {each["key"]: each for each in result["contenders"] if each["ids_rate"]}
        values = [
            # A call without an id does not count.
            (_bar(found[key]), found[key]["ids_rate"] if in_bulk else min(found[key]["rate"], found[key]["ids_rate"]))
            for key in question.keys
            if key in found
        ]
    return chart.bars(question.axis, values) if values else ""


def _bar(each: Mapping[str, Any]) -> str:
    name = each["name"].partition(" (")[0].replace("`", "")
    names_concurrency = name.endswith(
        ("threads", "writers", "one by one", "stream_doc_ids", "on the wire", "pipelined 16")
    )
    return name if names_concurrency else f"{name}, {each['in_flight']} in flight"
