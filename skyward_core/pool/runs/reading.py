"""How far a generator's values have come, and how far its reader is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...wire.client_frame_types import ClientCall


class Reading:
    """How far the values of one generator have come, and how far its reader is.

    Args:
        request: the call that asks for them, as it is asked for again when a link has dropped.

    Attributes:
        next: number of the next value to come.
    """

    def __init__(self, request: ClientCall | dict[str, int]) -> None:
        self._request = request
        self._claimed = not request  # another client read the first values
        self._next = self._taken = 0

    @property
    def next(self) -> int:
        return self._next

    @next.setter
    def next(self, number: int) -> None:
        self._next = self._request["next"] = number

    @property
    def behind(self) -> bool:
        """Whether values have come that were not taken."""
        return self._taken < self._next

    def is_new(self, number: int) -> bool:
        return number == self._next or (self._claimed and number > self._next)

    def took(self, until: int) -> None:
        self._taken = self._request["taken"] = until
