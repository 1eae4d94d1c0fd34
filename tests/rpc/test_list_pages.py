"""The size of a page of ListSequences: gRPC clients accept 4 MB by default."""

from __future__ import annotations

import pytest

from idalloc.v1 import sequences_pb2 as pb
from idalloc_server.domain.sequences.validation import MAX_DESCRIPTION, MAX_LABEL, MAX_LABELS
from idalloc_server.rpc.sequences import MAX_PAGE_BYTES
from tests.rpc.conftest import Served

# The longest valid texts, with 4 bytes of UTF-8 per character.
WIDE = "\U00010348"
LABELS = {f"{number:02}" + WIDE * (MAX_LABEL - 2): WIDE * MAX_LABEL for number in range(MAX_LABELS)}
COUNT = 150


@pytest.fixture
async def filled(served: Served) -> Served:
    """A server whose sequences have over 4 MB."""
    sequence = pb.Sequence(name="tenant-000", description=WIDE * MAX_DESCRIPTION, labels=LABELS)
    await served.sequences.CreateSequence(pb.CreateSequenceRequest(sequence=sequence))
    first = served.store.rows["tenant-000"].stored("tenant-000")
    for number in range(1, COUNT):
        await served.store.create(first._replace(name=f"tenant-{number:03}"))
    return served


async def test_page_ends_at_1_mb(filled: Served) -> None:
    """Large labels break no list: each page fits into a client's 4 MB; the pages are complete."""
    found: list[str] = []
    sizes: list[int] = []
    token = ""
    while token or not sizes:
        request = pb.ListSequencesRequest(page_size=1000, page_token=token)
        page = await filled.sequences.ListSequences(request)
        found += [each.name for each in page.sequences]
        sizes.append(sum(each.ByteSize() for each in page.sequences))
        token = page.next_page_token
    assert found == [f"tenant-{number:03}" for number in range(COUNT)]
    assert max(sizes) <= MAX_PAGE_BYTES == 1_000_000
    assert min(sizes[:-1]) > MAX_PAGE_BYTES * 0.9, "a page is filled before the next one begins"


async def test_page_ends_at_page_size(filled: Served) -> None:
    """The smaller of both limits ends a page, and the last page has no token."""
    page = await filled.sequences.ListSequences(pb.ListSequencesRequest(page_size=3))
    assert [each.name for each in page.sequences] == ["tenant-000", "tenant-001", "tenant-002"]
    assert page.next_page_token
    page = await filled.sequences.ListSequences(pb.ListSequencesRequest(page_size=3, name_prefix="tenant-149"))
    assert (len(page.sequences), page.next_page_token) == (1, "")
