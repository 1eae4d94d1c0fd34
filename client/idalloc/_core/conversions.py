"""Expansion of document ids."""

from idalloc.v1 import id_allocator_pb2 as pb

# The last three hexadecimal digits of a serial. 4096 ids in a row share the 25 characters before
# them; joining both parts is several times faster than formatting each serial.
_SUFFIXES = tuple(f"{n:03x}" for n in range(4096))


def to_doc_ids(reply: pb.GenerateDocIdResponse | pb.StreamDocIdsResponse) -> list[str]:
    """Return the document ids of a reply in the compact form."""
    doc_ids: list[str] = []
    for run in reply.runs:
        doc_ids += expand_run(run.first_doc_id, run.step, run.id_count)
    return doc_ids


def expand_run(first: str, step: int, count: int) -> list[str]:
    """Expand a run of document ids whose serials are ``step`` apart.

    An id has the 12 characters that all ids of a run share, then the serial in 16 hexadecimal
    digits.
    """
    serial = int(first[12:], 16)
    doc_ids: list[str] = []
    while len(doc_ids) < count:
        block, offset = divmod(serial, 4096)
        leading = f"{first[:12]}{block:013x}"
        suffixes = _SUFFIXES[offset : offset + step * (count - len(doc_ids)) : step]
        doc_ids += [leading + suffix for suffix in suffixes]
        serial += step * len(suffixes)
    return doc_ids
