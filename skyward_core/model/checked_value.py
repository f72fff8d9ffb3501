"""Values that say, as they are made, what makes no sense in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar

from .errors import SpecError
from .older_words import Rules, TakesOlderWords, heeded
from .spec_checks import Checks
from .value import Value


class CheckedValue(Value, metaclass=TakesOlderWords):
    """Values that are checked when they are made; ``dataclasses.replace`` makes changed ones."""

    _checks: ClassVar[Checks]
    _older: ClassVar[Rules] = {}  # older words for its arguments
    _in_order: ClassVar[Sequence[str]] = ()  # arguments that older generations take by position
    _more: ClassVar[Sequence[str]] = ()  # other words, which a class of it knows what to do with

    @classmethod
    def _today(cls, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        """Arguments by the words of today, of what was given by any.

        Raises:
            TypeError: there are more, or others, than it takes.
            SpecError: one is refused.
        """
        if args:
            if len(args) > len(cls._in_order):
                raise TypeError(
                    f"sky.{cls.__name__} takes its arguments by name, and was given {len(args)} by position"
                )
            given = dict(zip(cls._in_order, args, strict=False)) | given
        if not given.keys() <= cls.__dataclass_fields__.keys():
            from .misuse_words import refuse_unknown  # only where there is an older word, or a typo

            own = [each.name for each in fields(cls)]
            refuse_unknown(f"sky.{cls.__name__}", given, [*own, *cls._in_order, *cls._older, *cls._more])
        if given.keys() & cls._older.keys():
            return heeded(f"sky.{cls.__name__}", cls._older, given)
        return given

    def __post_init__(self) -> None:
        for name, check in self._checks.items():
            try:
                object.__setattr__(self, name, check(getattr(self, name)))
            except ValueError as error:
                raise SpecError(str(error), name) from None
