"""What a test that expects no errors in the log finds there."""

import logging

_FORMAT = logging.Formatter()


def is_of_a_closed_loop(record: logging.LogRecord) -> bool:
    """Whether a record is about a call of an earlier test, whose event loop is closed.

    gRPC has one completion queue for all event loops of a process, so a later test's loop logs it.
    """
    text = _FORMAT.format(record)
    return "PollerCompletionQueue" in text and "Event loop is closed" in text


def lines_of(records: list[logging.LogRecord]) -> list[str]:
    """Return the text of the records that are of this test."""
    return [_FORMAT.format(record) for record in records if not is_of_a_closed_loop(record)]
