"""What a group gives: a tuple, as types and the second generation have it, that does as a list where scripts of the
third take it for one."""

from __future__ import annotations

from typing import Any, SupportsIndex

OF_LISTS = ("append", "clear", "copy", "extend", "insert", "pop", "remove", "reverse", "sort")


class GroupValues(tuple[Any, ...]):
    """Values in the order written. It equals a list of the same, too, and lists are added to it; it is not changed."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return list(self) == other if isinstance(other, list) else tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return list(self) != other if isinstance(other, list) else tuple.__ne__(self, other)

    __hash__ = tuple.__hash__

    def __add__(self, other: Any) -> Any:
        return [*self, *other] if isinstance(other, list) else tuple.__add__(self, other)

    def __radd__(self, other: Any) -> Any:
        return [*other, *self] if isinstance(other, list) else tuple.__add__(other, self)

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found: Any = tuple.__getitem__(self, index)
        return GroupValues(found) if isinstance(index, slice) else found

    def __getattr__(self, name: str) -> Any:
        if name in OF_LISTS:
            raise AttributeError(
                f"a group's values are a tuple, which has no {name}: make it a list, list(values)"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)  # it loads where this library is not installed
