"""What small frozen values have in common, written once.

``dataclass`` would compile it for each class anew, and most are made while somebody waits for a pool's start.
"""

from __future__ import annotations

from typing import Any


class Value:
    """Base of frozen dataclasses that are made with ``eq=False, repr=False``: equal where all fields are."""

    __slots__ = ()
    __dataclass_fields__: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__dataclass_fields__)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__dataclass_fields__))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
        return f"{type(self).__qualname__}({shown})"
