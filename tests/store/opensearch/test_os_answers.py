"""Answers of OpenSearch: what was applied, and what an operator must do."""

import json
from typing import Any

import pytest

from idalloc_server.domain.errors import StoreAnsweredError, StoreFailure, StoreOutcomeUnknown, StoreRefused
from idalloc_server.store.opensearch.http import CONFLICT, ROW_MISSING, AliasUnknown, RowInvalid, read_answer


def error(kind: str, reason: str = "why", **fields: object) -> dict[str, Any]:
    return {"error": {"type": kind, "reason": reason, **fields}}


def script_error(kind: str) -> dict[str, Any]:
    cause = {
        "type": "script_exception",
        "reason": "runtime error",
        "caused_by": {"type": kind, "reason": "cannot cast"},
    }
    return error("illegal_argument_exception", "failed to execute script", caused_by=cause)


def missing(privilege: str, name: str = "idalloc") -> dict[str, Any]:
    """The answer of the security plugin of OpenSearch 3.4.0 to a user without a privilege."""
    user = f"User [name={name}, backend_roles=[], requestedTenant=null]"
    return error("security_exception", f"no permissions for [{privilege}] and {user}")


BLOCKED = "cluster_block_exception"
TOO_MANY = error("illegal_argument_exception", caused_by={"type": "circuit_breaking_exception", "reason": "too many"})


@pytest.mark.parametrize(
    ("status", "content", "kind", "message"),
    [
        (409, error(CONFLICT), StoreOutcomeUnknown, "409"),
        (408, error("timeout"), StoreOutcomeUnknown, "408"),
        (500, error("any"), StoreOutcomeUnknown, "500"),
        (503, error("unavailable_shards_exception"), StoreOutcomeUnknown, "503"),
        (429, error(BLOCKED, "blocked by: disk usage exceeded flood-stage"), StoreAnsweredError, "flood-stage"),
        (429, error("rejected_execution_exception"), StoreOutcomeUnknown, "429"),
        (404, error("index_not_found_exception"), AliasUnknown, "404"),
        (403, error(BLOCKED, "blocked by: [FORBIDDEN/4/index closed];"), StoreRefused, "POST /a-sequences/_open"),
        (403, error(BLOCKED, "index [x] blocked by: [FORBIDDEN/8/index write (api)];"), StoreRefused, "index.blocks"),
        (403, error(BLOCKED, "blocked by: [FORBIDDEN/6/cluster read-only (api)];"), StoreRefused, "_cluster/settings"),
        (403, error("security_exception"), StoreRefused, "grant the user read, write, refresh and monitor"),
        (403, missing("indices:admin/get"), StoreRefused, "; grant the user indices:admin/get on a-sequences*"),
        (403, missing("indices:data/write/bulk[s]"), StoreRefused, "; grant the user indices:data/write/bulk[s] on a-"),
        (403, missing("indices:data/write/bulk"), StoreRefused, "the cluster permission indices:data/write/bulk"),
        (403, missing("cluster:monitor/main"), StoreRefused, "; grant the user the cluster permission cluster:mon"),
        (
            403,
            error(BLOCKED, "index [closed-read-only-1] blocked by: [FORBIDDEN/8/index write (api)];"),
            StoreRefused,
            '_settings {"index.blocks.write": null}',
        ),
        (
            403,
            missing("indices:data/write/index", "index_not_found_exception"),
            StoreRefused,
            "; grant the user indices:",
        ),
        (
            403,
            error("forbidden", "index [x] blocked by: [FORBIDDEN/8/index write (api)];"),
            StoreRefused,
            "; remove the",
        ),
        (400, error("index_closed_exception", "closed"), StoreRefused, "; run POST /a-sequences/_open"),
        (
            400,
            error("search_phase_execution_exception"),
            StoreRefused,
            "; restart this server, which reads index.max_r",
        ),
        (400, script_error("class_cast_exception"), RowInvalid, "cannot cast"),
        (400, script_error("null_pointer_exception"), RowInvalid, "failed to execute"),
        (400, error("mapper_parsing_exception"), RowInvalid, "mapper_parsing"),
        (400, error("document_parsing_exception"), RowInvalid, "document_parsing"),
        (400, error("strict_dynamic_mapping_exception"), StoreRefused, "remove the cause"),
        (400, script_error("illegal_argument_exception"), StoreRefused, "remove the cause"),
        (400, TOO_MANY, StoreAnsweredError, "too many"),
        (401, "Unauthorized", StoreAnsweredError, "Unauthorized"),
        (404, error(ROW_MISSING), StoreRefused, "document_missing"),
        (200, "<html>", StoreOutcomeUnknown, "<html>"),
        (200, {"result": "noop"}, StoreOutcomeUnknown, "noop"),
    ],
)
def test_each_answer_has_its_kind_of_failure(status: int, content: object, kind: type, message: str) -> None:
    """P1: a write is rejected only if the answer proves it; anything else is unknown."""
    body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    with pytest.raises(StoreFailure, match="OpenSearch at h:9200 answered") as caught:
        read_answer("h:9200", status, body, parse=lambda answer: answer["get"], subject="a-sequences")
    assert type(caught.value) is kind
    assert message in str(caught.value)
    assert caught.value.http_status == status


def test_html_of_a_proxy_is_one_short_line() -> None:
    """A proxy's page becomes one line of the error."""
    page = b"<html>\n<head><title>502</title></head>\n" + b"<p>x</p>\n" * 500
    with pytest.raises(StoreOutcomeUnknown) as caught:
        read_answer("h:9200", 502, page, parse=dict)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("status", "content"), [(404, error(ROW_MISSING)), (404, {"found": False}), (409, error(CONFLICT))]
)
def test_an_expected_error_is_none(status: int, content: object) -> None:
    """A missing row, or a conflict of a compare-and-set, is a result."""
    body = json.dumps(content).encode()
    assert read_answer("h", status, body, parse=dict, none_for=(ROW_MISSING, CONFLICT)) is None
