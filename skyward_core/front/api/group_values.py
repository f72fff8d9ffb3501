"""What a group gives: a tuple, as types and the second generation have it, that does as a list where scripts of the
third take it for one."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, SupportsIndex

OF_LISTS = ("append", "clear", "copy", "extend", "insert", "pop", "remove", "reverse", "sort")


class GroupValues(tuple[Any, ...]):
    """Values in the order written. It equals a list of the same, too, and lists are added to it; it is not changed."""

    __slots__ = ()

    def __new__(cls, values: Iterable[Any] = ()) -> GroupValues:
        _have_jax_know_it()
        return super().__new__(cls, values)

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


_known_to: set[object] = set()


def _have_jax_know_it() -> None:
    """To functions over JAX's trees a class that it does not know is one leaf; a tuple's parts are leaves each."""
    trees = sys.modules.get("jax.tree_util")
    if trees in _known_to or (register := getattr(trees, "register_pytree_node", None)) is None:
        return
    _known_to.add(trees)
    register(GroupValues, lambda values: (tuple(values), None), lambda _, parts: GroupValues(parts))
