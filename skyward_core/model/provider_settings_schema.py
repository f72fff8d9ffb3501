"""Settings of providers: declared by a class with type, default, help and form field, and parsed from texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, field, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, Protocol, runtime_checkable

from skyward_core.model.errors import SkywardError, UsageError, set_error_field
from skyward_core.util.light_dataclass import Value, value

_TYPE_NAMES: dict[Any, str] = {int: "a whole number", float: "a number"}
_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


@value
class Field(Value):
    """Field of a form for a setting.

    Attributes:
        label: Text before the field.
        placeholder: Text in the empty field.
        missing: Advice for an empty field of a required setting.
        suggestions: Completions of the typed text.
    """

    label: str
    placeholder: str = ""
    missing: str = ""
    suggestions: Sequence[str] = ()


@value
class Setting(Value):
    """Parameter of a provider's class that a user may give as text.

    Attributes:
        name: Name of the parameter.
        help: Description in one line.
        type: Parser of the text. Raises ValueError with the reason for an invalid text.
        default: Value if the user gives no text.
        required: Whether the user must give a text.
        option: Dedicated command-line option. Settings without one are given as ``name=text``.
        example: Example of a text.
        names_machines: Whether the setting lists the machines. The length of the list is then the number of machines.
        field: Returns the form field, which may depend on the current state. None for no field.
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
        """Parse the text of this setting and return its value.

        Raises:
            UsageError: If the text is invalid.
        """
        try:
            return self.type(text.strip())
        except SkywardError:
            raise
        except ValueError as error:
            reason = f"{_TYPE_NAMES[self.type]}, not {text!r}" if self.type in _TYPE_NAMES else str(error)
            raise UsageError(f"{self.name}: {reason}") from error
        except Exception as error:  # the parser of a setting may be code of another package, which may raise anything
            raise UsageError(f"{self.name}: {type(error).__name__}: {error}") from error

    def normalize(self, text: str) -> str:
        """Return a text as one command-line word: items of lists are separated by commas."""
        with suppress(UsageError):
            value = self.read(text)
            if isinstance(value, list | tuple) and self.read(listed := ",".join(map(str, value))) == value:
                return listed
        return text.strip()


def word_list(text: str) -> list[str]:
    """Parse a list of words separated by commas or spaces."""
    return text.replace(",", " ").split()


def flag(text: str) -> bool:
    """Parse "yes" or "no" to a bool.

    Raises:
        ValueError: If the text is neither.
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
    """Return a dataclass field of a provider that is also a setting.

    Args:
        help: Description in one line.
        default: Default of the field.
        more: Further attributes of :class:`Setting`. By default, ``type`` is derived from the annotation.
    """
    return field(default=default, metadata={"help": help, **more})


class DeclaredSettings:
    """Descriptor that returns the settings of a dataclass provider: its fields made by :func:`setting`."""

    def __get__(self, instance: object, owner: type) -> tuple[Setting, ...]:
        return _field_settings(owner)


@cache
def _field_settings(provider: Any) -> tuple[Setting, ...]:
    return tuple(_to_setting(each) for each in fields(provider) if "help" in each.metadata)


def _to_setting(each: dataclasses.Field[Any]) -> Setting:
    required = each.default is MISSING
    attributes = {
        "type": _TYPES.get(each.type, str),
        "default": None if required else each.default,
        "required": required,
    }
    return Setting(each.name, **attributes | each.metadata)  # type: ignore[arg-type]


@runtime_checkable
class HasSettings(Protocol):
    """Provider with settings that users may choose.

    Attributes:
        settings: Parameters of the class that can be given as texts.
    """

    settings: Sequence[Setting]


def declared_settings(provider: object) -> tuple[Setting, ...]:
    """Return the settings that a provider's class declares; empty without settings."""
    return tuple(provider.settings) if isinstance(provider, HasSettings) else ()


def make_provider(provider: Any, texts: Mapping[str, str]) -> Any:
    """Create a provider from its class and the texts of its settings.

    Args:
        provider: The class.
        texts: Name of each setting and its text.

    Raises:
        UsageError: If a setting is invalid (see :func:`parse_settings`) or the constructor fails.
    """
    given = parse_settings(provider, texts)
    declared = {each.name: each.default for each in declared_settings(provider) if not each.required}
    try:
        return provider(**declared | given)
    except SkywardError:
        raise
    except Exception as error:  # the constructor may be code of another package, which may raise anything
        raise UsageError(
            f"provider {provider.name} cannot be created from {', '.join(declared | given) or 'no settings'}: "
            f"{type(error).__name__}: {error}"
        ) from error


def parse_settings(provider: Any, texts: Mapping[str, str]) -> dict[str, Any]:
    """Parse the texts that a user wrote for a provider's settings.

    Args:
        provider: The class.
        texts: Name of each setting and its text.

    Returns:
        Name of each setting and its value.

    Raises:
        UsageError: If the provider has no such setting, or if a text is not a valid value.
    """
    settings = {each.name: each for each in declared_settings(provider)}
    for name in texts:
        if name not in settings:
            near = get_close_matches(name, settings, 1)
            available = "; it has " + ", ".join(f"{each.name} ({each.help})" for each in settings.values())
            hint = f"; did you mean {near[0]!r}?" if near else available if settings else "; it has none"
            raise UsageError(f"provider {provider.name} has no setting {name!r}{hint}")
    found = {}
    for name, text in texts.items():
        with set_error_field(f"settings.{name}"):
            found[name] = settings[name].read(text)
    return found


def settings_error(provider: Any) -> str:
    """Return the error in the settings that a class of another package declares, or ""."""
    try:
        declared = declared_settings(provider)
    except TypeError:
        return "its settings are not a list"
    for each in declared:
        if not isinstance(each, Setting):
            return f"its settings hold {each!r}, which is not a Setting"
        if not (each.name.isascii() and each.name.isidentifier()):
            return f"its setting {each.name!r} is not a valid parameter name"
    names = [each.name for each in declared]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"it declares setting {twice[0]!r} twice" if twice else ""
