"""Descriptors of the settings that a provider class declares: type, default, help, form field."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields
from functools import cache
from typing import Any

from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.util.light_dataclass import Value, value

_TYPE_NAMES: dict[Any, str] = {int: "a whole number", float: "a number"}
_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


@value
class Field(Value):
    """How a setting looks in a form.

    Attributes:
        label: text before the field.
        placeholder: text in the field while it is empty.
        missing: what to do about an empty field of a required setting.
        suggestions: texts that complete what is typed.
    """

    label: str
    placeholder: str = ""
    missing: str = ""
    suggestions: Sequence[str] = ()


@value
class Setting(Value):
    """A parameter of a provider's class that a user may give as a text.

    Attributes:
        name: name of the parameter.
        help: description in one line.
        type: parses the text; raises ValueError with the reason if it cannot.
        default: value if no text is given.
        required: whether a text has to be given.
        option: the command line's own option for the setting; the others are given as ``name=text``.
        example: example of a text.
        names_machines: whether the setting names the machines, so that their number is known.
        field: makes the setting's field of a form, which may depend on what exists now; None for no field.
    """

    name: str
    help: str
    type: Callable[[str], Any] = str
    default: Any = None
    required: bool = False
    option: str = ""
    example: str = ""
    names_machines: bool = False
    field: Callable[[], Field] | None = None

    def read(self, text: str) -> Any:
        """The value that a text stands for.

        Raises:
            UsageError: it stands for none; says why.
        """
        try:
            return self.type(text.strip())
        except SkywardError:
            raise
        except ValueError as error:
            reason = f"{_TYPE_NAMES[self.type]}, not {text!r}" if self.type in _TYPE_NAMES else str(error)
            raise UsageError(f"{self.name}: {reason}") from error
        except Exception as error:  # a type of another package may raise anything
            raise UsageError(f"{self.name}: {type(error).__name__}: {error}") from error

    def normalize(self, text: str) -> str:
        """A text as one word for a command line: what is a list has commas, however it was typed."""
        try:
            value = self.read(text)
        except UsageError:
            return text.strip()
        if not isinstance(value, list | tuple):
            return text.strip()
        listed = ",".join(map(str, value))
        return listed if self._parses_to(listed, value) else text.strip()

    def _parses_to(self, text: str, value: Any) -> bool:
        try:
            return bool(self.read(text) == value)
        except UsageError:
            return False


def word_list(text: str) -> list[str]:
    """The type of a setting that is a list: words with commas or spaces between them."""
    return text.replace(",", " ").split()


def flag(text: str) -> bool:
    """The type of a setting that is on or off.

    Raises:
        ValueError: it is neither yes nor no.
    """
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise ValueError(f"yes or no, not {text!r}") from None


_TYPES: Mapping[Any, Callable[[str], Any]] = {
    "int | None": int,
    "bool": flag,
    "Sequence[str] | None": word_list,
    "Sequence[str] | str | None": word_list,
}


def setting(help: str, default: Any = None, **more: Any) -> Any:
    """Return a field of a provider's dataclass that is a setting, too.

    Args:
        help: description in one line.
        default: default of the field.
        more: other attributes of :class:`Setting`; without ``type``, the field's annotation names it.
    """
    return field(default=default, metadata={"help": help, **more})


class DeclaredSettings:
    """Settings of a provider that is a dataclass: its fields made by :func:`setting`."""

    def __get__(self, instance: object, owner: type) -> tuple[Setting, ...]:
        return _field_settings(owner)


@cache
def _field_settings(provider: Any) -> tuple[Setting, ...]:
    return tuple(_to_setting(each) for each in fields(provider) if "help" in each.metadata)


def _to_setting(each: dataclasses.Field[Any]) -> Setting:
    required = each.default is MISSING
    told = {"type": _TYPES.get(each.type, str), "default": None if required else each.default, "required": required}
    return Setting(each.name, **told | each.metadata)  # type: ignore[arg-type]
