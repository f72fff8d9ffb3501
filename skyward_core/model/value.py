"""What small frozen values have in common, written once.

``dataclass`` would compile it for each class anew, and most are made while somebody waits for a pool's start.
"""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any, ClassVar


class Value:
    """Base of frozen dataclasses that are made with ``eq=False, repr=False``: equal where all fields are."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in fields(self))

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __repr__(self) -> str:
        shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"
