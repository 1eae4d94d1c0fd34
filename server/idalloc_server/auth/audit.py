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


def _outcome_of(error: Exception) -> dict[str, str]:
    if isinstance(error, Refusal):
        return {"code": error.status, "reason": error.reason, "why": str(error)}
    return {"code": "INTERNAL", "reason": "INTERNAL"}


@dataclass(eq=False)
class Audit:
    """Writes audit records. A record has only the named fields of a request, and never a token.

    Administrative calls have a share of the log's queue that other log lines and rejected callers
    cannot fill.
    """

    rejected: Counter[str] = field(default_factory=Counter, init=False)  # rejected calls by reason
    _counts: Counter[tuple[str | None, str, type[Refusal], str]] = field(default_factory=Counter, init=False)

    def record_rejected(self, refusal: Refusal, *, identity: str | None, peer: str, method: str, **target: str) -> None:
        """Record one rejected call with its target, such as a sequence."""
        self.rejected[refusal.reason] += 1
        call = {"identity": identity, "peer": peer, "method": method}
        refused_log.info("audit", **call, **target, **_outcome_of(refusal))

    def count_rejected(self, refusal: Refusal, *, identity: str | None, method: str, subject: str) -> None:
        """Count a rejected call of which there may be many; ``log_totals`` records the counts."""
        self.rejected[refusal.reason] += 1
        key = (identity, method, type(refusal), subject)
        if key not in self._counts and len(self._counts) >= MAX_COUNTED_RECORDS:
            key = (None, "", type(refusal), "others")
        self._counts[key] += 1

    def log_totals(self) -> None:
        """Record the calls counted since the last call of this method."""
        counts = self._counts
        self._counts = Counter()
        for (identity, method, kind, subject), count in counts.items():
            call = {"identity": identity, "method": method, "subject": subject}
            refused_log.info("audit", **call, code=kind.status, reason=kind.reason, count=count)

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
        changes: dict[str, ChangedSettings] = {}
        outcome: dict[str, str] = {}  # empty until the record is written

        def set_changes(before: ChangedSettings, after: ChangedSettings) -> None:
            changes.update(before=before, after=after)
            if outcome:  # The caller cancelled the call, and the change was made nevertheless.
                audit_log.info("audit", **call, **changes, code="OK", caller="left")

        with listening(set_changes):
            try:
                yield call
                outcome["code"] = "OK"
            except Exception as error:
                outcome |= outcome_of(error)
                raise
            except BaseException:
                outcome["code"] = "CANCELLED"
                raise
            finally:
                audit_log.info("audit", **call, **changes, **outcome)
