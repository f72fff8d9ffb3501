"""What a rank does with its share of a map: a function's calls, one for each of a few items."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

VALUES_BEFORE = "_values_before"  # of an exception: the first item's number, pickled values


class EachOf:
    """A function that takes one item, as one that takes a few.

    Args:
        fn: the function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __call__(self, first: int, items: Sequence[Any]) -> list[Any]:
        """What the function makes of each item; whatever it raises comes through, with a note that says of which.

        To leave by ``sys.exit(0)`` is to return None, as in a call by itself.

        Args:
            first: the number of the first of them, among all items of the map.
            items: those of this call.
        """
        values: list[Any] = []
        process = os.getpid()
        for item in items:
            try:
                try:
                    value = self.fn(item)
                except SystemExit as error:
                    if error.code:
                        raise
                    value = None
                if os.getpid() != process:
                    raise SystemExit(0)  # a child that the function forked: the items are its parent's
                values.append(value)
            except BaseException as error:
                with suppress(BaseException):  # its class may have notes of its own
                    error.add_note(f"while it worked on item {first + len(values):,} of the map")
                    if values and len(data := pickle.dumps(values, 5)) < 1 << 20:
                        vars(error)[VALUES_BEFORE] = first, data
                raise
        return values
