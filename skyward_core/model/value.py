"""What small values have in common, written once.

``dataclass`` would compile it for each class anew, a millisecond each, while somebody waits for a pool's start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def value(cls: type[T], /) -> type[T]: ...


@overload
def value(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: Any = None, /, *, kw_only: bool = False) -> Any:
    """Make a dataclass of a :class:`Value`, with slots. That nobody changes one is for the type checker to see: to
    refuse it when it happens takes longer to compile than all the rest."""
    make = dataclass(slots=True, eq=False, repr=False, kw_only=kw_only)
    return make if cls is None else make(cls)


class Value:
    """Base of what :func:`value` makes, and of frozen dataclasses with ``eq=False, repr=False``: equal where all fields
    are."""

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
