"""Expansion of document ids from the compact form."""

from hypothesis import example, given
from hypothesis import strategies as st

from idalloc._core.conversions import expand_run
from idalloc_server.domain.document_ids.generator import DocIdRun

TOP = 2**64 - 1


@given(
    head=st.from_regex(r"\A[0-9a-f]{12}\Z"),
    serial=st.one_of(st.integers(0, TOP), st.integers(0, 10_000), st.integers(TOP - 10_000, TOP)),
    step=st.one_of(st.integers(1, 20), st.integers(1, 65_535), st.sampled_from([4095, 4096, 4097])),
    count=st.integers(1, 9_000),
)
@example(head="0000674b2a00", serial=4095, step=1, count=4098)
@example(head="ffffffffffff", serial=TOP, step=65_535, count=1)
def test_expand_run_equals_formatting_each_serial(head: str, serial: int, step: int, count: int) -> None:
    """A run in the compact form expands to the ids that formatting each serial gives."""
    count = min(count, (TOP - serial) // step + 1)
    serials = range(serial, serial + step * count, step)
    assert expand_run(f"{head}{serial:016x}", step, count) == [f"{head}{n:016x}" for n in serials]


@given(
    prefix=st.integers(0, 65_535),
    timestamp=st.integers(0, 2**32 - 1),
    serial=st.one_of(st.integers(0, 10_000), st.integers(0, TOP), st.integers(TOP - 10_000, TOP)),
    step=st.one_of(st.integers(1, 20), st.integers(1, 65_535)),
    count=st.one_of(st.integers(1, 20), st.integers(1, 9_000)),
)
def test_expand_run_equals_the_servers_texts(prefix: int, timestamp: int, serial: int, step: int, count: int) -> None:
    """A run in the compact form expands to the texts that the server would send."""
    run = DocIdRun(prefix, timestamp, serial, step, min(count, (TOP - serial) // step + 1))
    assert expand_run(run.first_doc_id, run.step, run.id_count) == run.texts()
