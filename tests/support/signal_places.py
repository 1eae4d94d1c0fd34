"""Raises an exception at the places in the client's code where CPython may run a signal handler.

CPython checks for signals at the entry of a function, at a backward jump and after a call. `dis`
finds these places in the bytecode of the running Python.
"""

import dis
import sys
import threading
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import idalloc

_CLIENT = str(Path(idalloc.__file__).parent)
_GENERATED = str(Path(idalloc.__file__).parent / "v1")
# More instructions than any of the tests runs.
_MAX_STEPS = 400_000


class Interrupt(Exception):
    """The exception of the simulated signal handler."""


class Hang(BaseException):
    """The client does not end."""


class Places:
    """Counts the places that the client passes, and raises at one of them.

    Args:
        number: The place at which to raise, from 1; 0 for none.
    """

    def __init__(self, number: int) -> None:
        self.count = 0  # the number of places so far
        self.raised = ""  # the file, line and instruction at which it raised
        self._number = number
        self._steps = 0
        self._called: dict[FrameType, int] = {}  # frames whose last instruction was a call, and its offset

    def watch(self) -> None:
        """Trace this thread from now on. An exception of the trace function ends the tracing."""
        sys.settrace(self._trace)

    def end(self) -> None:
        """End the tracing."""
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not _is_client(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "call":
            if _checks_at_entry(frame):
                self._pass(frame, "entry")
        elif event == "opcode":
            self._steps += 1
            if self._steps > _MAX_STEPS:
                raise Hang
            call = self._called.pop(frame, None)
            if call is not None and _same_handler(frame.f_code, call, frame.f_lasti):
                self._pass(frame, "after a call")
            name = _instructions(frame.f_code)[frame.f_lasti]
            if "JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name:
                self._pass(frame, name)
            elif name.startswith("CALL") and "INTRINSIC" not in name:
                self._called[frame] = frame.f_lasti
        else:
            self._called.pop(frame, None)
        return self._trace

    def _pass(self, frame: FrameType, what: str) -> None:
        self.count += 1
        if self.count == self._number:
            name = frame.f_code.co_filename.removeprefix(_CLIENT)
            self.raised = f"{name}:{frame.f_lineno} in {frame.f_code.co_name}, {what}"
            raise Interrupt


class Conditions:
    """Raises right after a condition of gRPC is locked, so that nothing unlocks it.

    Args:
        number: The lock after which to raise, from 1.
    """

    def __init__(self, number: int) -> None:
        self.raised = False
        self._left = number

    def watch(self) -> None:
        """Trace this thread from now on."""
        sys.settrace(self._trace)

    def end(self) -> None:
        """End the tracing."""
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not threading.Condition.__enter__.__code__:
            return None
        if event == "return":
            self._left -= 1
            if self._left == 0:
                self.raised = True
                raise Interrupt
        return self._trace


@cache
def _is_client(file: str) -> bool:
    return file.startswith(_CLIENT) and not file.startswith(_GENERATED)


@cache
def _instructions(code: CodeType) -> dict[int, str]:
    return {each.offset: each.opname for each in dis.get_instructions(code)}


@cache
def _no_checks(code: CodeType) -> frozenset[int]:
    """Return where a coroutine or generator resumes without CPython checking for signals."""
    return frozenset(
        each.offset for each in dis.get_instructions(code) if each.opname == "RESUME" and (each.arg or 0) & 3 >= 2
    )


def _checks_at_entry(frame: FrameType) -> bool:
    return frame.f_lasti not in _no_checks(frame.f_code)


@cache
def _same_handler(code: CodeType, call: int, after: int) -> bool:
    """Return whether an exception after the call has the same handler as one in the call.

    It has not if a `with` block ends with the call: an exception raised there would skip
    `__exit__`, which CPython never does.
    """
    return _handler(code, call) == _handler(code, after)


def _handler(code: CodeType, offset: int) -> int | None:
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        if entry.start <= offset < entry.end:
            target: int = entry.target
            return target
    return None
