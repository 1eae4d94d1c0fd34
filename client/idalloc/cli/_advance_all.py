"""`idalloc sequences advance --all`: moves all sequences past the marks of the server's witness."""

import time
from typing import TYPE_CHECKING

import typer

from idalloc.cli import _fields
from idalloc.cli._connection import connect, target_and_timeout
from idalloc.cli._printer import write_stderr
from idalloc.cli._progress import wait

if TYPE_CHECKING:
    from idalloc import Sequence


def advance_all(context: typer.Context, *, no_wait: bool) -> None:
    """Advance each sequence past its own last id, and wait until all changes are effective.

    A server with a witness moves the sequence past its mark, too. A refused sequence does not end
    the command.
    """
    from idalloc import DeadlineExceeded, IdallocError, Unauthenticated, Unavailable  # imported late: see connect

    refused, count, effective = [], 0, time.monotonic()
    with connect(context) as client:
        if not client.node().witness:
            write_stderr(
                f"the server at {target_and_timeout(context)[0]} has no witness, so it does not know which ids were "
                "issued: advance each sequence with --past and the highest id in use"
            )
            raise typer.Exit(1)
        for sequence in client.sequences.list():
            try:
                change = client.sequences.advance(sequence.name, _last_id(sequence))
            except (DeadlineExceeded, Unauthenticated, Unavailable):
                raise  # the next sequence would fail, too
            except IdallocError as error:
                write_stderr(f"{error.reason}: {error}")
                refused.append(sequence.name)
                continue
            count += 1
            effective = max(effective, time.monotonic() + change.effective_delay.total_seconds())
            last, at = change.sequence.last_value, _fields.text(change.effective_time)
            line = f"{sequence.name}: last value {'none' if last is None else last}, effective time {at}"
            context.obj.lines([line], change.to_dict, one_line=True)
    if not no_wait:
        wait(effective - time.monotonic())
    if refused:
        write_stderr(f"advanced {count} sequences, not {', '.join(refused)}")
        raise typer.Exit(1)


def _last_id(sequence: "Sequence") -> int:
    """Return the last id of a sequence, or the value before its start."""
    if sequence.last_value is not None:
        return sequence.last_value
    start, step = (1 if value is None else value for value in (sequence.start, sequence.step))
    return start - step
