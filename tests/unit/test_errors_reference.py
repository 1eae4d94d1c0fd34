"""Server errors, client exceptions, error_reason.proto and docs/reference/errors.md agree."""

import re

import grpc
import pytest

import idalloc
from idalloc.v1.error_reason_pb2 import ErrorReason
from idalloc_server.domain.errors import Retryable
from scripts.reference.error_texts import texts
from scripts.reference.errors import exceptions, read_proto, refusals

REASONS = [name.removeprefix("ERROR_REASON_") for name, number in ErrorReason.items() if number]


def test_each_reason_has_an_entry() -> None:
    """Each reason of error_reason.proto has a comment, and a server class with a next step."""
    assert set(read_proto()) == set(REASONS)
    assert set(refusals()) == set(REASONS)
    assert all(vars(refusal)["next_step"] for refusal in refusals().values())


@pytest.mark.parametrize("reason", REASONS)
def test_proto_and_client_agree_with_the_server(reason: str) -> None:
    """A comment's status and RetryInfo, and the client's code and parent, are the server's."""
    refusal, comment, kind = refusals()[reason], read_proto()[reason], exceptions()[reason]
    is_retryable = issubclass(refusal, Retryable)
    assert comment.status == refusal.status
    assert ("RetryInfo" in comment.details) == is_retryable
    assert kind.default_code is grpc.StatusCode[refusal.status]
    assert issubclass(kind, idalloc.Unavailable) == is_retryable
    assert getattr(idalloc, kind.__name__) is kind
    assert kind.__name__.upper() == reason.replace("_", "") + ("ERROR" if reason == "INTERNAL" else "")


def test_each_reason_has_a_text_without_a_time() -> None:
    """Log tools group errors by text: no text has a delay or duration that varies by call."""
    found = texts()
    assert found.keys() == {*read_proto()}
    assert all(found.values())
    changing = re.compile(r"\{(\w*seconds|retry_after|delay|ahead|skew|elapsed|age|wait)\}")
    assert [text for each in found.values() for text in each if changing.search(text)] == []
