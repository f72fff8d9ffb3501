"""What is left of the numbers that a call logged, told with its outcome: of a name the last, least and greatest.

So a table of many runs needs no history of any. Loaded with the first number: most ranks never send any.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any

NAMES = 64  # of one call
LONGEST = 200  # characters of a name
CALLS = 1024  # whose ends nobody has asked about


class Gists:
    """Those of the calls of one process."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], dict[str, list[Any]]] = {}

    def add(self, run: str, call: int, numbers: Mapping[str, Any]) -> None:
        """Take numbers of a call; of none (-1), nothing is kept."""
        if call < 0:
            return
        found = self._of.setdefault((run, call), {})
        if len(self._of) > CALLS:
            del self._of[next(iter(self._of))]
        for name, value in numbers.items():
            gist = found.get(name)
            if gist is None:
                if len(found) >= NAMES or len(name) > LONGEST:
                    continue
                gist = found[name] = [value, inf, -inf]
            gist[0] = value
            if value < gist[1]:
                gist[1] = value
            if value > gist[2]:
                gist[2] = value

    def take(self, run: str, call: int) -> dict[str, list[float | None]]:
        """A call's, once; None stands for what is not finite."""
        found = self._of.pop((run, call), {})
        return {name: [_finite(each) for each in gist] for name, gist in found.items()}


def _finite(number: Any) -> float | None:
    try:
        found = float(number)
    except OverflowError:  # a whole number may be longer than any float
        return None
    return found if isfinite(found) else None
