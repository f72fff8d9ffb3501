"""How many machines: a number, or a range of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from . import spec_checks
from .checked_value import CheckedValue
from .errors import SpecError
from .spec_checks import Checks
from .value import value


@value(kw_only=True, frozen=True)
class Nodes(CheckedValue):
    """A number of machines that is left open: as many as can be had. ``str`` of it is short, such as "2:8".

    ``Nodes(4)`` is four. A pool has as many machines as it was started with: to begin with some and grow, as
    ``Nodes(initial=2, max=8)`` asks for, is refused.

    Args:
        min: so many at least, or the pool does not start.
        max: so many at most.

    Raises:
        SpecError: a value makes no sense.
    """

    min: int
    max: int

    if TYPE_CHECKING:

        def __init__(self, initial: int = ..., *, min: int = ..., max: int = ...) -> None: ...

    _in_order: ClassVar[Sequence[str]] = ("initial",)
    _more: ClassVar[Sequence[str]] = ("desired",)
    _checks: ClassVar[Checks] = {"min": spec_checks.whole(1, 1024), "max": spec_checks.whole(1, 1024)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max < self.min:
            raise SpecError(f"should be {self.min} or more, as min is (got {self.max})", "max")

    def __str__(self) -> str:
        return f"{self.min}:{self.max}"

    @classmethod
    def _today(cls, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        given = super()._today(args, given)
        words = [name for name in ("initial", "desired") if name in given]
        if not words:
            return given
        first = given.pop(words[0])
        bounds = {name: value for name, value in given.items() if value is not None}
        if any(value != first for value in bounds.values()):
            raise SpecError(f"{_ELASTIC} (got {words[0]}={first!r}, {_words_of(bounds)})", "nodes")
        return {"min": first, "max": first}


_ELASTIC = (
    "a pool that begins with some machines and has others later is not to be had: say nodes=4 for so many, or "
    "nodes=sky.Nodes(min=2, max=8) for as many as can be had when it starts"
)


def _words_of(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


def number_of_nodes(value: Any) -> int | Nodes:
    """A number, or a range of them, which may be text; a range of one number is that number."""
    if isinstance(value, tuple | list) and len(value) == 2:
        if value[0] != value[1]:
            raise ValueError(f"{_ELASTIC} (got {tuple(value)!r:.60})")
        value = value[0]
    if isinstance(value, str):
        least, _, most = value.partition(":")
        try:
            value = Nodes(min=_written(least), max=_written(most))
        except ValueError as error:
            why = f"; {error.field} {error.reason}" if isinstance(error, SpecError) else ""
            raise ValueError(
                f'should be a whole number from 1 to 1024, or a range of them such as "2:8" (got {value!r:.60}{why})'
            ) from None
    if isinstance(value, Nodes):
        return value if value.min < value.max else value.min
    return _number(value)


def _written(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("no number")
    return int(text)


_number: Callable[[Any], int] = spec_checks.whole(1, 1024)
