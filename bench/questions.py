"""The questions that a user asks of the benchmarks, each with a table of the contenders that answer
it.
"""

from typing import NamedTuple

from bench.hangs import HANG_SECONDS


class Question(NamedTuple):
    """A question, and who answers it."""

    title: str  # the title of its section
    about: str  # how to read the table
    keys: tuple[str, ...] | None  # the keys of the contenders; None for those whose store hung


QUESTIONS = (
    Question(
        "One id a call",
        "Calls a second, with many callers at once. The no-op servers are limits: they answer without a counter.",
        (
            *("noop grpcio at 64", "noop native at 64", "noop go at 64", "ours grpcio 1 at 64", "ours native 1 at 64"),
            *("ours grpcio 2 at 64", "ours native 2 at 64"),
            *("crate at 64", "redis many", "postgres nextval 16", "etcd 1 at 16", "opensearch 1"),
            *("recipe crate", "recipe sqlite"),
        ),
    ),
    Question(
        "One caller",
        "How long a call takes if nothing else runs: one caller, one call after the other.",
        (
            *("noop grpcio at 1", "noop native at 1", "noop go at 1", "ours grpcio 1 at 1", "ours native 1 at 1"),
            *("redis", "postgres nextval 1", "etcd 1 at 1"),
        ),
    ),
    Question(
        "One id at a time in Python",
        "`ids()` takes ranges ahead, so an id costs no call. In asyncio, callers of one client share calls.",
        (
            *("ids grpcio", "ids native", "ids crate", "writers grpcio", "writers crate"),
            *("calls grpcio", "calls crate", "asyncio shared", "asyncio each"),
        ),
    ),
    Question(
        "Ids in bulk",
        "Each contender takes blocks of ids, or many ids in one message.",
        (
            *("doc_ids grpcio", "doc_ids native", "doc_id texts grpcio", "doc_id texts native"),
            *("postgres segment 1", "postgres segment 16", "etcd 1000 at 1", "etcd 1000 at 16", "opensearch 100"),
            "redis pipelined",
        ),
    ),
    Question(
        "Ids with fsync",
        "Each call is written to the store before its answer. idalloc does so for a sequence with the ordering"
        " `RISING`;\nconcurrent calls share a write.",
        (
            *("rising", "redis", "redis many", "postgres segment 1", "postgres segment 16"),
            *("etcd 1 at 1", "etcd 1 at 16", "opensearch 1", "recipe crate", "recipe sqlite"),
        ),
    ),
    Question(
        "When the store hangs",
        f"The longest call while the store hangs for {HANG_SECONDS:g} s: its processes are paused, or its SQLite file"
        " is locked.",
        None,
    ),
)
