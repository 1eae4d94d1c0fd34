"""Every default and limit in the protos and the documents is the one in the code."""

import re
from collections.abc import Callable

import pytest

from idalloc_server.domain.sequences import validation
from idalloc_server.settings.installed import installed
from tests.support import documented
from tests.support.documented import Claims
from tests.support.paths import ROOT

PROTOS = {path.name: path.read_text() for path in sorted((ROOT / "protos").rglob("*.proto"))}
MIRROR = [path.name for path in (ROOT / "protos/idalloc/xprotocol").rglob("*.proto")]
DOCUMENTS = {name: (ROOT / name).read_text() for name in documented.of_documents()}

# Numbers that are neither defaults nor limits, by place; all other numbers must be in a claim.
FACTS: Claims = {
    "IdAllocatorService.GenerateDocId": ["28 lower-case hexadecimal characters: 4 of", "8 of its", "16 of a serial"],
    "IdAllocatorService.GenerateUuid": ["version 7", "RFC 9562, section 6.2", "version 4"],
    "IdAllocatorService.BatchAllocateRanges": ["(AIP-231)"],
    "AllocateRangeRequest.request_id": ["36 characters", "version 4 (AIP-155)"],
    "AllocateRangeResponse.period": ['"2026", "2026-11" or "2026-11-21"'],
    "AllocateRangeResponse.node_id": ["0 means unknown"],
    "StreamRangesRequest.total_id_count": ["at least 1"],
    "GenerateDocIdRequest.auto_increment_increment": ["At 1 the offset is ignored"],
    "StreamDocIdsRequest.total_id_count": ["at least 1"],
    "GenerateUuidResponse.uuids": ["36 characters"],
    "GenerateUuidResponse.uuid_bytes": ["16 bytes each"],
    "IdRange.last_id": ["(id_count - 1)"],
    "IdRange.step": ["never 0"],
    "IdRange.id_count": ["at least 1"],
    "DocIdRun.first_doc_id": ["28 hexadecimal characters", "the same first 12"],
    "DocIdRun.step": ["the last 16 hexadecimal characters", "at least 1"],
    "DocIdRun.id_count": ["at least 1"],
    "UuidVersion": ["RFC 9562"],
    "UuidVersion.UUID_VERSION_7": ["48 bits of milliseconds since 1970"],
    "UuidView.UUID_VIEW_BYTES": ["16 bytes each"],
    "UpdateNodeRequest.update_mask": ["not 0"],
    "Node.start_timestamp": ["1970-01-01T00:00:00Z"],
    "Node.version": ['"0.1.0"'],
    "Node.worker_count": ["1 or more"],
    "Sequence.format": ["{value:06d}", "{value:crockford:8}"],
    "Sequence.period": ['"2026", "2026-11" or "2026-11-21"'],
    "GetSequenceRequest.period": ['"2026-11"'],
    "ListSequencesRequest.show_deleted": ["AIP-164"],
    "AdvanceSequenceRequest.past": ["even if it is 0"],
    "AdvanceSequenceRequest.period": ['"2026-11"'],
    "ParseIdResponse.month": ["1 to 12"],
    "ParseIdResponse.day": ["1 to 31"],
    "SequenceKind.SEQUENCE_KIND_TIMESTAMP_MS": ["1970-01-01T00:00:00Z"],
    "ErrorReason.ERROR_REASON_QUOTA_EXCEEDED": ['"host:10.0.0.7"'],
    "Sequence.name": ["U+061C, U+200E, U+200F, U+2028 to U+202E, U+2066 to U+2069"],
    # MySQL's own contract.
    "notice.proto": ["proto2", "type NOTICE (11)", "below 2^63", "28 characters"],
    "listen": ["port 0 selects a free port"],
    "workers": ["more than 1 on Linux only"],
    "max_connection_age": ["0s disables it"],
    "store": ["4200", "9200"],
}
# A number that is not part of a name such as int64.
NUMBER = re.compile(r"(?<![A-Za-z_0-9])-?[0-9]")


def plain(text: str) -> str:
    """Return text on one line, with plain minus signs."""
    return " ".join(text.replace("\N{MINUS SIGN}", "-").split())


def comments(proto: str) -> dict[str, str]:
    """Return the comments of a proto by the name of the element, such as Message.field."""
    found: dict[str, str] = {}
    scope, lines = "", []
    for line in map(str.strip, proto.splitlines()):
        if line.startswith("//   "):
            continue  # a line of an example
        if line.startswith("//"):
            lines.append(line.removeprefix("//"))
            continue
        key = ""
        if declared := re.match(r"(?:message|enum|service) (\w+)", line):
            key = scope = declared[1]
        elif member := re.match(r"rpc (\w+)|(?:[\w.<>, ]+ )?(\w+) = \d+", line):
            key = f"{scope}.{member[1] or member[2]}"
        if lines:
            found[key] = plain(" ".join([found.get(key, ""), *lines]))
        lines = []
    return found


def problems(texts: dict[str, str], claims: Claims) -> list[str]:
    """Return the missing claims of texts, by place, and the texts with unchecked numbers."""
    found = [f"{place}: is not there" for place in claims if place not in texts]
    for place, text in texts.items():
        found += missing(place, text, claims)
        for known in (*claims.get(place, []), *FACTS.get(place, [])):
            text = text.replace(known, "…")
        if NUMBER.search(text):
            found.append(f"{place}: unchecked: {text}")
    return found


def missing(place: str, text: str, claims: Claims) -> list[str]:
    return [f"{place}: must have: {claim}" for claim in claims.get(place, []) if claim not in text]


def of_protos(change: Callable[[str], str] = str) -> list[str]:
    texts = {place: text for name, proto in PROTOS.items() for place, text in comments(change(proto)).items() if place}
    # The mirror of MySQL's contract has no limits of idalloc.
    mirror = {place for name in MIRROR for place in comments(PROTOS[name]) if place}
    return problems({place: text for place, text in texts.items() if place not in mirror}, documented.of_protos())


def of_documents(change: Callable[[str], str] = str) -> list[str]:
    claims = documented.of_documents()
    return [each for name, text in DOCUMENTS.items() for each in missing(name, plain(change(text)), claims)]


def test_protos_state_the_defaults_and_limits_of_the_code() -> None:
    """Every number in a comment of the protos is in the code, or is no default and no limit."""
    assert of_protos() == []


def test_documents_state_the_defaults_and_limits_of_the_code() -> None:
    """A limit that a document states agrees with the code."""
    assert of_documents() == []


def test_help_states_the_limits_of_the_code() -> None:
    """The descriptions of settings in `idalloc serve --help` agree with the code."""
    texts = {name: str(field.description) for name, field in installed().settings.model_fields.items()}
    assert problems(texts, documented.of_help()) == []


def test_copies_of_a_limit_in_the_code_are_equal() -> None:
    """A default or limit that the code has twice has one value."""
    for one, other in documented.copies():
        assert one == other


@pytest.mark.parametrize(
    ("number", "other"), [("100,000,000", "1,000,000"), ("at most 64", "at most 65"), (" 50,", " 51,")]
)
def test_a_number_that_only_a_proto_changes_is_found(number: str, other: str) -> None:
    """A number that changes in a proto, but not in the code, is found."""
    assert of_protos(lambda proto: proto.replace(number, other))


@pytest.mark.parametrize(("number", "other"), [("16 kB of metadata", "8 kB of metadata"), ("4 times", "5 times")])
def test_a_number_that_only_a_document_changes_is_found(number: str, other: str) -> None:
    """A number that changes in a document, but not in the code, is found."""
    assert of_documents(lambda document: document.replace(number, other))


def test_a_limit_that_nothing_checks_is_found() -> None:
    """A new number in a proto needs a claim."""
    assert of_protos(lambda proto: proto.replace("The sequence's name.", "The sequence's name, at most 7."))


def test_a_number_that_only_the_code_changes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that changes in the code, but not in the documents, is found."""
    monkeypatch.setattr(validation, "MAX_LABELS", 65)
    monkeypatch.setattr(installed().settings.model_fields["outage_reserve"], "default", 200.0)
    assert any("Sequence.labels" in each for each in of_protos())
    assert any("`outage_reserve`" in each for each in of_documents())
