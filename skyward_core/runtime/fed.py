"""An argument whose values come one by one while the call goes on: in the rank, an iterator."""

from __future__ import annotations

import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

AHEAD = 32  # values that may be on their way to a rank, or wait there

_made = threading.local()  # while a call's arguments are loaded


class FedItems(Iterator[Any]):
    """Values that a client reads from its own iterator, as the rank asks for them.

    Args:
        number: of the argument, among those of the call that are fed.
        name: of the parameter, for words.
    """

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self._name = name
        self._ready: deque[bytes] = deque()
        self._pieces: list[bytes] = []  # of the value that is coming
        self._next = 0  # number of the value to come
        self._asked: tuple[int, int] | None = None
        self._ended = False
        self._error: bytes | None = None
        self._over = False  # the call has ended
        self._process = os.getpid()
        self._ask: Callable[[FedItems], None] | None = None
        self._wait: Callable[[Callable[[], bool]], None] | None = None
        self._load: Callable[[str, Callable[[], Any]], Any] = lambda what, load: load()

    def bind(
        self,
        ask: Callable[[FedItems], None],
        wait: Callable[[Callable[[], bool]], None],
        load: Callable[[str, Callable[[], Any]], Any],
    ) -> None:
        """Say how to ask for values, how to wait until a condition holds, and how to load what is called so."""
        self._ask, self._wait, self._load = ask, wait, load

    def __next__(self) -> Any:
        if self._process != os.getpid():  # it has a copy of what is ready, and nobody to ask for more
            raise RuntimeError(
                f"{self._name!r} gives each value once, in the process that has the call, and this one was forked "
                "from it: read the values there, and hand them on"
            )
        while (value := self._taken()) is None:
            if self._error is not None:
                raise self._loaded(f"what {self._name!r} raised", self._error)
            if self._ended:
                raise StopIteration
            if self._over or self._ask is None or self._wait is None:
                raise RuntimeError(
                    f"{self._name!r} has no more values: the call that it was an argument of has ended"
                )
            self._ask_for_more()
            self._wait(self._is_news)
        if self._asked is not None and self.wants[1] - self._asked[1] >= AHEAD // 2 and not self._ended:
            self._ask_for_more()
        return self._loaded(f"a value of {self._name!r}", value)

    def _loaded(self, what: str, data: bytes) -> Any:
        return self._load(what, lambda: pickle.loads(data))

    def _taken(self) -> bytes | None:
        try:
            return self._ready.popleft()
        except IndexError:  # of several threads that read, another was quicker
            return None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{self._name!r} gives each value once, in the process that has the call: send on its values"
        )

    def _is_news(self) -> bool:
        return bool(self._ready) or self._ended or self._over or self._error is not None

    def _ask_for_more(self) -> None:
        asked = self.wants
        if asked != self._asked and self._ask is not None:
            self._asked = asked
            self._ask(self)

    @property
    def wants(self) -> tuple[int, int]:
        """The number of the value to come, and the first that is not wanted yet."""
        return self._next, self._next + AHEAD - len(self._ready)

    @property
    def waits(self) -> bool:
        """Whether values were asked for that have not come."""
        return self._asked is not None and not self._ended and self._error is None

    def take(self, number: int, part: int, data: bytes, *, more: bool, ends: str) -> None:
        """A value has come, or a part of one; perhaps once more.

        Args:
            number: the value's.
            part: the part's, from 0.
            more: whether other parts follow.
            ends: "end" where there are no more values, "error" where the body is the exception that stands for them.
        """
        if number != self._next or part > len(self._pieces):
            return
        del self._pieces[part:]
        self._pieces.append(data)
        if more:
            return
        whole, self._pieces = b"".join(self._pieces), []
        if ends == "error":
            self._error = whole
        elif ends:
            self._ended = True
        else:
            self._ready.append(whole)
            self._next += 1

    def close(self) -> None:
        """The call has ended."""
        self._over = True
        self._ready.clear()


class Fed:
    """What stands for such an argument on its way."""

    def __init__(self, number: int, name: str) -> None:
        self._place = number, name

    def __reduce__(self) -> tuple[Any, ...]:
        return fed_here, self._place


def fed_here(number: int, name: str) -> FedItems:
    items = FedItems(number, name)
    if (made := getattr(_made, "items", None)) is not None:
        made.append(items)
    return items


def collect() -> list[FedItems]:
    """A list that gets what is fed of the arguments that this thread loads from now on."""
    _made.items = []
    made: list[FedItems] = _made.items
    return made
