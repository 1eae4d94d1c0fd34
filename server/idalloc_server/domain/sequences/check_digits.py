"""Check characters: what is written behind a number so that a mistyped one is found."""

from collections.abc import Callable, Iterable
from functools import lru_cache, reduce
from operator import getitem
from typing import NamedTuple

from stdnum import damm, luhn, verhoeff
from stdnum.iso7064 import mod_11_2, mod_11_10, mod_37_2, mod_37_36, mod_97_10


class Check(NamedTuple):
    """A way to make check characters.

    Attributes:
        make: Makes those of one text.
        decimal_only: Whether it takes digits only; otherwise also upper-case letters.
        width: How many characters it makes.
    """

    make: Callable[[str], str]
    decimal_only: bool
    width: int = 1

    def of_neighbours(self, before: str, texts: Iterable[str], after: str) -> list[str]:
        """Makes those of many texts, all with the same before and after them: the same as ``make``, but faster.

        It is fast where many texts that follow each other differ in their last two characters alone.
        """
        checks = []
        head, state = "", _start(self.make, before, 1, after)
        for text in texts:
            # Without a head, the lengths may still differ.
            if not head or text[:-2] != head:
                head = text[:-2]
                state = reduce(getitem, head, _start(self.make, before, len(text), after))
            # Of one character there is no last but one: then it is "", behind which the state is the same.
            checks.append(state[text[-2:-1]][text[-1]].check)
        return checks


CHECKS = {
    "luhn": Check(luhn.calc_check_digit, True),
    "damm": Check(damm.calc_check_digit, True),
    "verhoeff": Check(verhoeff.calc_check_digit, True),
    "mod11_10": Check(mod_11_10.calc_check_digit, True),
    "mod11_2": Check(mod_11_2.calc_check_digit, True),
    "mod37_36": Check(mod_37_36.calc_check_digit, False),
    "mod37_2": Check(mod_37_2.calc_check_digit, False),
    "mod97_10": Check(mod_97_10.calc_check_digits, False, 2),
}


class _State(dict[str, "_State"]):
    """What matters of the beginning of a text: by its next character, the state after that one.

    All these ways keep one of a few states (10 to 97) of a beginning, and the same further characters lead different
    states to different check characters. So beginnings that have the same ones with zeros behind them have the same
    with anything else of that length, and ``make`` is asked once for each state and character.
    """

    def __init__(
        self,
        make: Callable[[str], str],
        begin: str,
        zeros: int,
        after: str,
        states: dict[tuple[str, int], "_State"],
    ) -> None:
        self.check = make(f"{begin}{'0' * zeros}{after}")
        self._make, self._begin, self._zeros, self._after, self._states = make, begin, zeros, after, states

    def __missing__(self, character: str) -> "_State":
        begin, zeros = self._begin + character, self._zeros - len(character)
        state = _State(self._make, begin, zeros, self._after, self._states)
        self[character] = state = self._states.setdefault((state.check, zeros), state)
        return state


@lru_cache(maxsize=32)
def _start(make: Callable[[str], str], before: str, length: int, after: str) -> _State:
    return _State(make, before, length, after, {})
