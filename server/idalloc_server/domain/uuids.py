"""UUIDs of version 4 and 7 (RFC 9562)."""

import os
from array import array
from collections.abc import Callable
from itertools import accumulate

from idalloc_server.domain import fork
from idalloc_server.domain.clock import Clock

UUID_BYTES = 16

# The first half of a version 7: 48 bits of milliseconds, 4 of the version, 12 random ones. Here without the version.
_HEAD_BITS = 12
_HEAD_MASK = (1 << _HEAD_BITS) - 1
_MAX_MS = 2**48 - 2
# The second half: 2 bits of the variant, 62 random ones. A fresh one leaves the highest of these free to count into.
_LOW_END = 1 << 62
_FRESH_SHIFT = 3
_VARIANT = 1 << 63

_VERSION_4 = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT_OF = bytes(byte & 0x3F | 0x80 for byte in range(256))


class UuidGenerator:
    """Makes UUIDs. Those of version 7 rise for ever within the process, whatever its clock does.

    Version 7 is by RFC 9562, section 6.2, method 2: a new millisecond starts with fresh random bits; where the clock
    stands still or steps back, they are counted on in random steps, and what overflows is taken from the next
    millisecond. A fork goes on with random bits of its own.

    Args:
        clock: Tells the milliseconds.
        random: Returns so many random bytes.
    """

    def __init__(self, clock: Clock, random: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock
        self._random = random
        self._head = 0
        self._low = self._fresh_low()
        self._pid = os.getpid()
        fork.register(self)

    def v4(self, count: int) -> list[bytes]:
        """Returns ``count`` random UUIDs."""
        made = bytearray(self._random(count * UUID_BYTES))
        made[6::UUID_BYTES] = made[6::UUID_BYTES].translate(_VERSION_4)
        made[8::UUID_BYTES] = made[8::UUID_BYTES].translate(_VARIANT_OF)
        whole = bytes(made)
        return [whole[start : start + UUID_BYTES] for start in range(0, len(whole), UUID_BYTES)]

    def v7(self, count: int) -> list[bytes]:
        """Returns ``count`` UUIDs that rise, and are larger than all of earlier calls."""
        ms = min(int(self._clock.wall() * 1000), _MAX_MS)
        if ms > self._head >> _HEAD_BITS:
            self._renew(ms << _HEAD_BITS | int.from_bytes(self._random(2), "big") & _HEAD_MASK)
        elif self._pid != os.getpid():
            # The parent counts on from the same bits.
            self._renew(self._head + 1)
        lows = self._count_on(count)
        if lows[-1] >= _LOW_END:
            self._renew(self._head + 1)
            lows = self._count_on(count)
        self._low = lows[-1]
        ms, tail = divmod(self._head, 1 << _HEAD_BITS)
        first_half = (ms << 16 | 7 << 12 | tail).to_bytes(8, "big")
        return [first_half + (low | _VARIANT).to_bytes(8, "big") for low in lows[1:]]

    def forget_after_fork(self) -> None:
        """Goes on with bits of its own, in the child of a fork."""
        self._pid = fork.NO_PROCESS

    def _renew(self, head: int) -> None:
        self._head = head
        self._low = self._fresh_low()
        self._pid = os.getpid()

    def _fresh_low(self) -> int:
        return int.from_bytes(self._random(8), "big") >> _FRESH_SHIFT

    def _count_on(self, count: int) -> list[int]:
        """Returns the present bits, and ``count`` times those that follow, each 1 to 2^32 further."""
        steps = array("I", self._random(count * array("I").itemsize))
        return list(accumulate((step + 1 for step in steps), initial=self._low))
