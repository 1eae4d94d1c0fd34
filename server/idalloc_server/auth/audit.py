"""The audit: a record of every administrative call, and of every call that is refused at the door."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from idalloc_server.domain.change_events import ChangedSettings, listening
from idalloc_server.domain.errors import Refusal
from idalloc_server.status import CODES
from idalloc_server.telemetry.logs import audit_log, refused_log

# The most different records that are summed up in one second; what else comes then, is one more.
MAX_SUMS = 1_000


class Audit:
    """Writes the records. None ever has a token, or anything else of a request but what is named here.

    A record of an administrative call has a share of the log's queue that neither the log nor refused callers can fill.
    """

    def __init__(self) -> None:
        self._sums: Counter[tuple[str | None, str, str, str]] = Counter()

    def refused(self, refusal: Refusal, *, identity: str | None, peer: str, method: str, sequence: str | None) -> None:
        """Records a call that was refused at the door."""
        who = {"identity": identity, "peer": peer, "method": method}
        refused_log.info("audit", **who, **_named(sequence), **_outcome(refusal), why=str(refusal))

    def count(self, refusal: Refusal, *, identity: str | None, method: str, subject: str) -> None:
        """Counts one of those of which there may be very many: they are recorded once a second, in sum."""
        key = (identity, method, refusal.reason, subject)
        if key not in self._sums and len(self._sums) >= MAX_SUMS:
            key = (None, "", refusal.reason, "others")
        self._sums[key] += 1

    def log_totals(self) -> None:
        """Records what was counted since the last time."""
        sums, self._sums = self._sums, Counter()
        for (identity, method, reason, subject), count in sums.items():
            outcome = {"code": CODES[reason].name, "reason": reason}
            refused_log.info("audit", identity=identity, method=method, subject=subject, **outcome, count=count)

    @contextmanager
    def deed(self, *, identity: str, peer: str, method: str, **what: Any) -> Iterator[None]:
        """Records an administrative call, at the end of this block.

        Args:
            identity: Who calls.
            peer: From where.
            method: What is called.
            what: What it is about.
        """
        deed = _Deed({"identity": identity, "peer": peer, "method": method, **what})
        with listening(deed.changed):
            try:
                yield
            except Refusal as refusal:
                deed.end(**_outcome(refusal), why=str(refusal))
                raise
            except Exception:
                deed.end(code="INTERNAL", reason="INTERNAL")
                raise
            except BaseException:
                deed.end(code="CANCELLED")
                raise
            deed.end(code="OK")


class _Deed:
    def __init__(self, what: dict[str, Any]) -> None:
        self._what = what
        self._changes: dict[str, ChangedSettings] = {}
        self._ended = False

    def changed(self, before: ChangedSettings, after: ChangedSettings) -> None:
        """See ``ChangeListener``."""
        self._changes = {"before": before, "after": after}
        if self._ended:  # Its caller went away, and it was done all the same.
            audit_log.info("audit", **self._what, **self._changes, code="OK", caller="left")

    def end(self, **outcome: str) -> None:
        self._ended = True
        audit_log.info("audit", **self._what, **self._changes, **outcome)


def _outcome(refusal: Refusal) -> dict[str, str]:
    return {"code": CODES[refusal.reason].name, "reason": refusal.reason}


def _named(sequence: str | None) -> dict[str, str]:
    return {} if sequence is None else {"sequence": sequence}
