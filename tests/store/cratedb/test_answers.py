"""The classification of CrateDB's errors."""

import json

import pytest

from idalloc_server.domain.errors import StoreAnsweredError, StoreFailure, StoreOutcomeUnknown, StoreRefused
from idalloc_server.store.cratedb.http import read_answer

STATEMENT = 'UPDATE "ids"."sequences" SET last_value = 1 WHERE name = $1'


def failure(status: int, code: int | None, message: str) -> StoreFailure:
    body = json.dumps({"error": {"message": message, "code": code}}) if code else message
    with pytest.raises(StoreFailure) as caught:
        read_answer("h:4200", status, body.encode(), lambda answer: answer, STATEMENT)
    assert (caught.value.code, caught.value.http_status) == (code, status)
    assert message in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("status", "code", "message", "step"),
    [
        (
            400,
            4000,
            'SQLParseException[Failed CONSTRAINT five CHECK ("last_value" >= 5) for values: [s, 1]]',
            'run ALTER TABLE "ids"."sequences" DROP CONSTRAINT "five"',
        ),
        (
            400,
            4000,
            'SQLParseException["owner" must not be null]',
            'run ALTER TABLE "ids"."sequences" ALTER COLUMN "owner" SET DEFAULT with a value of that column',
        ),
        (
            400,
            4000,
            "SQLParseException[\"meta['a']\" must not be null]",
            'run ALTER TABLE "ids"."sequences" ALTER COLUMN "meta"[\'a\'] SET DEFAULT with a value of that column',
        ),
        (400, 4000, "SQLParseException[Cannot cast]", 'remove the cause that CrateDB names from "ids"."sequences"'),
        (
            401,
            4011,
            "MissingPrivilegeException[Missing 'DML' privilege for user 'alice']",
            'run GRANT DML ON SCHEMA "ids" TO "alice"',
        ),
        (403, 4032, "it is currently closed", 'run ALTER TABLE "ids"."sequences" OPEN'),
        (
            403,
            4033,
            "ClusterBlockException[read-only]",
            'run ALTER TABLE "ids"."sequences" SET'
            ' ("blocks.read" = false, "blocks.write" = false, "blocks.read_only" = false)',
        ),
        (404, 4043, "ColumnUnknownException[Column step unknown]", 'restore that column of "ids"."sequences"'),
    ],
)
def test_a_refusal_names_the_next_step(status: int, code: int, message: str, step: str) -> None:
    """STORE_REFUSED: CrateDB's message, then the next step on the statement's table."""
    refused = failure(status, code, message)
    assert isinstance(refused, StoreRefused)
    assert f"{message}; {step}" in str(refused)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, 4037, StoreAnsweredError),  # a disk without room
        (409, 4091, StoreAnsweredError),
        (409, 4092, StoreAnsweredError),
        (429, 4290, StoreAnsweredError),
        (404, 4041, StoreAnsweredError),  # the host may be starting
        (404, 4045, StoreAnsweredError),
        (401, None, StoreAnsweredError),
        (404, None, StoreAnsweredError),  # of a proxy
        (408, None, StoreOutcomeUnknown),
        (500, 5000, StoreOutcomeUnknown),
        (500, 5002, StoreOutcomeUnknown),
        (503, 5035, StoreOutcomeUnknown),
    ],
)
def test_a_recoverable_error_is_not_refused(status: int, code: int | None, kind: type[StoreFailure]) -> None:
    """STORE_UNAVAILABLE: errors that a retry may cure are rejected or unknown, never refused."""
    assert type(failure(status, code, "an error")) is kind


def test_a_shard_that_is_starting_is_not_refused() -> None:
    """STORE_UNAVAILABLE: a shard that CrateDB creates, moves or recovers needs no operator."""
    message = (
        "IllegalIndexShardStateException[CurrentState[RECOVERING] operations only allowed when shard state is one of"
        " [POST_RECOVERY, STARTED]]"
    )
    assert type(failure(404, 4040, message)) is StoreAnsweredError
