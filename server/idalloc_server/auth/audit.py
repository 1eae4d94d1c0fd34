"""The audit log: a record of every administrative call, and of every rejected call."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from idalloc_server.domain.change_events import ChangedSettings, listening
from idalloc_server.domain.errors import Refusal
from idalloc_server.telemetry.logs import audit_log, refused_log

# The most different records that are counted within one second; further ones are counted together.
MAX_COUNTED_RECORDS = 1_000


def _outcome(refusal: Refusal | type[Refusal]) -> dict[str, str]:
    return {"code": refusal.status, "reason": refusal.reason}


def _outcome_of(error: Exception) -> dict[str, str]:
    if isinstance(error, Refusal):
        return {**_outcome(error), "why": str(error)}
    return {"code": "INTERNAL", "reason": "INTERNAL"}


class Audit:
    """Writes audit records. A record has only the named fields of a request, and never a token.

    Administrative calls have a share of the log's queue that other log lines and rejected callers
    cannot fill.
    """

    def __init__(self) -> None:
        self.rejected: Counter[str] = Counter()  # rejected calls by reason
        self._counts: Counter[tuple[str | None, str, type[Refusal], str]] = Counter()

    def record_rejected(self, refusal: Refusal, *, identity: str | None, peer: str, method: str, **target: str) -> None:
        """Record one rejected call with its target, such as a sequence."""
        self.rejected[refusal.reason] += 1
        call = {"identity": identity, "peer": peer, "method": method}
        refused_log.info("audit", **call, **target, **_outcome(refusal), why=str(refusal))

    def count_rejected(self, refusal: Refusal, *, identity: str | None, method: str, subject: str) -> None:
        """Count a rejected call of which there may be many; ``log_totals`` records the counts."""
        self.rejected[refusal.reason] += 1
        key = (identity, method, type(refusal), subject)
        if key not in self._counts and len(self._counts) >= MAX_COUNTED_RECORDS:
            key = (None, "", type(refusal), "others")
        self._counts[key] += 1

    def log_totals(self) -> None:
        """Record the calls counted since the last call of this method."""
        counts, self._counts = self._counts, Counter()
        for (identity, method, kind, subject), count in counts.items():
            refused_log.info("audit", identity=identity, method=method, subject=subject, **_outcome(kind), count=count)

    @contextmanager
    def record_admin_call(
        self,
        *,
        identity: str,
        peer: str,
        method: str,
        outcome_of: Callable[[Exception], dict[str, str]] = _outcome_of,
        **fields: Any,
    ) -> Iterator[dict[str, Any]]:
        """Record the administrative call that this block makes, when the block ends.

        Yields:
            The fields of the record. The block may add some, such as how much it changed.
        """
        call = {"identity": identity, "peer": peer, "method": method, **fields}
        record = _AdminCallRecord(call)
        with listening(record.set_changes):
            try:
                yield call
            except Exception as error:
                record.write(**outcome_of(error))
                raise
            except BaseException:
                record.write(code="CANCELLED")
                raise
            record.write(code="OK")


@dataclass(eq=False)
class _AdminCallRecord:
    call: dict[str, Any]  # who called what, with fields of the request
    changes: dict[str, ChangedSettings] = field(default_factory=dict, init=False)
    is_written: bool = field(default=False, init=False)

    def set_changes(self, before: ChangedSettings, after: ChangedSettings) -> None:
        """See ``ChangeListener``."""
        self.changes = {"before": before, "after": after}
        if self.is_written:  # The caller cancelled the call, and the change was made nevertheless.
            audit_log.info("audit", **self.call, **self.changes, code="OK", caller="left")

    def write(self, **outcome: str) -> None:
        self.is_written = True
        audit_log.info("audit", **self.call, **self.changes, **outcome)
