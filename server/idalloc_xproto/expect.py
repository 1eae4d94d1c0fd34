"""Blocks of expectations: Mysqlx.Expect.

A block with ``no_error`` refuses all messages after an error until it closes. A ``field_exist`` of
a field that idalloc does not have opens a failed block. ``docid_generated`` always holds.
"""

import re
from dataclasses import dataclass

from idalloc.xprotocol.v1 import expect_pb2
from idalloc_xproto.frames import CLIENT_MESSAGES
from idalloc_xproto.mysql_errors import XError

# Clients that probe for a feature never close the block, so a pool opens more and more of them.
MAX_BLOCKS = 64

_PATH = re.compile(r"[1-9][0-9]{0,8}(\.[1-9][0-9]{0,8}){0,20}\.?")

_NO_ERROR = 1
_FIELD_EXIST = 2
_DOCID_GENERATED = 3


@dataclass(eq=False)
class _Block:
    no_error: bool
    failed: XError | None = None


class Expectations:
    """The open blocks of a session."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def check(self) -> None:
        """Check that the innermost block has not failed.

        Raises:
            XError: It has failed.
        """
        if self._blocks and (failed := self._blocks[-1].failed):
            raise failed.with_traceback(None)  # a traceback would keep all refused messages

    def record_error(self) -> None:
        """Fail the innermost block if it expects no error."""
        if self._blocks and self._blocks[-1].no_error:
            self._blocks[-1].failed = self._blocks[-1].failed or XError(5159, "Expectation failed: no_error")

    def open(self, message: expect_pb2.ExpectOpen) -> None:
        """Open a block.

        Raises:
            XError: The block has failed, an expectation is invalid, or too many blocks are open.
        """
        if len(self._blocks) >= MAX_BLOCKS:
            raise XError(5000, f"Too many open Expect blocks, at most {MAX_BLOCKS}", fatal=True)
        around = self._blocks[-1] if self._blocks else None
        if around and around.failed:
            self._blocks.append(_Block(around.no_error, around.failed))
            raise around.failed.with_traceback(None)
        inherits = message.op != expect_pb2.EXPECT_CONTEXT_EMPTY
        block = _Block(inherits and around is not None and around.no_error)
        for condition in message.cond:
            _apply(block, condition)
        if block.failed:
            # The enclosing block sees this error too.
            self.record_error()
        self._blocks.append(block)
        self.check()

    def close(self) -> None:
        """Close the innermost block.

        Raises:
            XError: None is open, or it had failed.
        """
        if not self._blocks:
            raise XError(5158, "Expect block currently not open")
        if failed := self._blocks.pop().failed:
            raise failed


def _apply(block: _Block, condition: expect_pb2.ExpectCondition) -> None:
    key = condition.condition_key & 0xFFFFFFFF
    value = condition.condition_value.decode("utf-8", "replace")
    if condition.op == expect_pb2.EXPECT_OPERATION_UNSET:
        if key == _NO_ERROR:
            block.no_error = False
        return
    if key == _NO_ERROR:
        if value not in ("", "0", "1"):
            raise XError(5161, f"Invalid value '{value}' for expectation no_error")
        block.no_error = value != "0"
    elif key == _FIELD_EXIST:
        if value and not field_exists(value) and not block.failed:
            block.failed = XError(5168, f"Expectation failed: field_exists = '{value}'")
    elif key != _DOCID_GENERATED:
        raise XError(5160, f"Unknown condition key: {key}")


def field_exists(path: str) -> bool:
    """Return whether a client's message has a field, such as ``6.1`` of message 6.

    ``6`` is the message itself.
    """
    if not _PATH.fullmatch(path):
        return False
    head, *steps = path.removesuffix(".").split(".")
    message = CLIENT_MESSAGES.get(int(head))
    descriptor = message.DESCRIPTOR if message else None
    for position, step in enumerate(steps):
        if descriptor is None or (field := descriptor.fields_by_number.get(int(step))) is None:
            return False
        descriptor = field.message_type
        if descriptor is None and position < len(steps) - 1:
            return False
    return message is not None
