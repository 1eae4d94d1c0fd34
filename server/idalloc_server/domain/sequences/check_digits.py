"""Check digits: characters derived from an id that detect typing errors."""

from collections.abc import Callable, Iterable
from functools import lru_cache, reduce
from operator import getitem
from typing import NamedTuple

from stdnum import damm, luhn, verhoeff
from stdnum.iso7064 import mod_11_2, mod_11_10, mod_37_2, mod_37_36, mod_97_10


class CheckAlgorithm(NamedTuple):
    """A check digit algorithm.

    Attributes:
        compute: Returns the check characters of a text.
        decimal_only: Whether the text must have digits only; otherwise also upper-case letters.
        width: Number of check characters.
    """

    compute: Callable[[str], str]
    decimal_only: bool
    width: int = 1

    def compute_many(self, before: str, texts: Iterable[str], after: str) -> list[str]:
        """Returns the check characters of ``before + text + after`` for each text, as ``compute`` does, but faster.

        Fast if most consecutive texts differ only in their last two characters.
        """
        checks = []
        head, state = "", _initial_state(self.compute, before, 1, after)
        for text in texts:
            # Texts of one and two characters both have an empty head.
            if not head or text[:-2] != head:
                head = text[:-2]
                state = reduce(getitem, head, _initial_state(self.compute, before, len(text), after))
            # In a text of one character, text[-2:-1] is "", which leaves the state unchanged.
            checks.append(state[text[-2:-1]][text[-1]].check)
        return checks


CHECK_ALGORITHMS = {
    "luhn": CheckAlgorithm(luhn.calc_check_digit, True),
    "damm": CheckAlgorithm(damm.calc_check_digit, True),
    "verhoeff": CheckAlgorithm(verhoeff.calc_check_digit, True),
    "mod11_10": CheckAlgorithm(mod_11_10.calc_check_digit, True),
    "mod11_2": CheckAlgorithm(mod_11_2.calc_check_digit, True),
    "mod37_36": CheckAlgorithm(mod_37_36.calc_check_digit, False),
    "mod37_2": CheckAlgorithm(mod_37_2.calc_check_digit, False),
    "mod97_10": CheckAlgorithm(mod_97_10.calc_check_digits, False, 2),
}


class _PrefixState(dict[str, "_PrefixState"]):
    """An algorithm's state after a prefix; maps the next character to the next state.

    Each algorithm has few states (10 to 97), and the same suffix takes different states to different check characters.
    So two prefixes with the same check characters before a suffix of zeros have the same state, and ``compute`` is
    called once for each state and character.
    """

    def __init__(
        self,
        compute: Callable[[str], str],
        prefix: str,
        zeros: int,
        after: str,
        states: dict[tuple[str, int], "_PrefixState"],
    ) -> None:
        self.check = compute(f"{prefix}{'0' * zeros}{after}")
        self._compute, self._prefix, self._zeros, self._after, self._states = compute, prefix, zeros, after, states

    def __missing__(self, character: str) -> "_PrefixState":
        prefix, zeros = self._prefix + character, self._zeros - len(character)
        state = _PrefixState(self._compute, prefix, zeros, self._after, self._states)
        self[character] = state = self._states.setdefault((state.check, zeros), state)
        return state


@lru_cache(maxsize=32)
def _initial_state(compute: Callable[[str], str], before: str, length: int, after: str) -> _PrefixState:
    return _PrefixState(compute, before, length, after, {})
