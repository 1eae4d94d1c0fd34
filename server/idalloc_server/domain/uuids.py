"""UUIDs of version 4 and 7 (RFC 9562)."""

import os
from array import array
from collections.abc import Callable
from itertools import accumulate

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.fork import NO_PROCESS, OS_PROCESS, Process

UUID_BYTES = 16

# The first half of a version 7: unix_ts_ms (48 bits), version (4 bits), rand_a (12 bits).
_RAND_A_BITS = 12
_RAND_A_MASK = (1 << _RAND_A_BITS) - 1
_MAX_MS = 2**48 - 2
# The second half: variant (2 bits), rand_b (62 bits). A new rand_b has its highest bit clear, as
# room to count up.
_RAND_B_END = 1 << 62
_NEW_RAND_B_SHIFT = 3
_VARIANT = 1 << 63

_VERSION_4 = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT_OF = bytes(byte & 0x3F | 0x80 for byte in range(256))


class UuidGenerator:
    """Generates UUIDs. Version 7 rises within the process, even if its clock steps back.

    Version 7 follows RFC 9562, section 6.2, method 2. A new millisecond starts at random bits.
    While the clock does not advance, the bits are incremented by random steps; on overflow the next
    millisecond is used. The child of a fork starts at its own random bits.

    Args:
        clock: The clock of version 7.
        random: Returns random bytes of a given number.
        process: The process that generates them.
    """

    def __init__(
        self, clock: Clock, random: Callable[[int], bytes] = os.urandom, process: Process = OS_PROCESS
    ) -> None:
        self._clock = clock
        self._random = random
        self._current_pid = process.pid
        self._rand_b: int
        self._start_at(0)
        process.register(self)

    def v4(self, count: int) -> list[bytes]:
        """Return ``count`` random UUIDs of version 4."""
        made = bytearray(self._random(count * UUID_BYTES))
        made[6::UUID_BYTES] = made[6::UUID_BYTES].translate(_VERSION_4)
        made[8::UUID_BYTES] = made[8::UUID_BYTES].translate(_VARIANT_OF)
        whole = bytes(made)
        return [whole[start : start + UUID_BYTES] for start in range(0, len(whole), UUID_BYTES)]

    def v7(self, count: int) -> list[bytes]:
        """Return ``count`` rising UUIDs of version 7, all larger than those of earlier calls."""
        ms = min(int(self._clock.wall() * 1000), _MAX_MS)
        if ms > self._head >> _RAND_A_BITS:
            self._start_at(ms << _RAND_A_BITS | int.from_bytes(self._random(2), "big") & _RAND_A_MASK)
        elif self._pid != self._current_pid():
            # The parent continues from the same bits.
            self._start_at(self._head + 1)
        while True:
            # Each value is 1 to 2^32 larger than the one before.
            steps = array("I", self._random(count * array("I").itemsize))
            values: list[int] = list(accumulate((step + 1 for step in steps), initial=self._rand_b))
            if values[-1] < _RAND_B_END:
                break
            self._start_at(self._head + 1)
        self._rand_b = values[-1]
        ms, rand_a = divmod(self._head, 1 << _RAND_A_BITS)
        first_half = (ms << 16 | 7 << 12 | rand_a).to_bytes(8, "big")
        return [first_half + (rand_b | _VARIANT).to_bytes(8, "big") for rand_b in values[1:]]

    def forget_after_fork(self) -> None:
        """Make a forked child start at its own random bits."""
        self._pid = NO_PROCESS

    def _start_at(self, head: int) -> None:
        self._head = head  # unix_ts_ms << 12 | rand_a
        self._rand_b = int.from_bytes(self._random(8), "big") >> _NEW_RAND_B_SHIFT
        self._pid = self._current_pid()
