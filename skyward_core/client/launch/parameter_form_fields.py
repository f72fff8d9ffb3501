"""Form fields for the parameters of a script's function."""

from __future__ import annotations

import enum
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, Union

from skyward_core.store.default_and_forbidden_working_folders import choose_workdir
from skyward_core.tasks.argument_parsing_and_sweeps import ArgumentValueError, convert, describe_type
from skyward_core.tasks.parameter_types_from_source import is_checkable, list_type, source_type
from skyward_core.tasks.script_functions import FunctionInfo, Param
from skyward_core.util.safe_file_access import exists, expand_user

FieldKind = Literal["text", "choice", "switch"]


@dataclass(frozen=True, slots=True)
class ArgumentField:
    """Form field of a parameter.

    Attributes:
        name: Name of the parameter.
        kind: A line of text, a choice among ``choices``, or a switch for a bool that has a default.
        type: Annotation in the script; "" if it has none.
        default: Source text of the default. None if a value is required, or if several values are allowed.
        required: Whether a value is required.
        choices: Texts of all possible values, if they are known.
        help: First line of the parameter's description in the function's docstring; "" if there is none.
        is_path: Whether the value is the path of a file or folder.
    """

    name: str
    kind: FieldKind
    type: str
    default: str | None
    required: bool
    choices: tuple[str, ...] = ()
    help: str = ""
    is_path: bool = False
    _type: Any = field(default=Any, repr=False)

    @property
    def placeholder(self) -> str:
        """Text in the empty field: type and default, as in the signature."""
        if self.default is not None:
            return f"{self.type} = {self.default}" if self.type else self.default
        return ", ".join(filter(None, (self.type, "required" if self.required else "none")))

    @property
    def is_on(self) -> bool:
        """Whether the switch of a bool parameter is on by default."""
        return self.default == "True"

    def validation_error(self, text: str) -> str:
        """Return the reason why a text is not a valid value of the parameter; "" if the text may be valid."""
        try:
            if is_checkable(self._type) and not (self.default == "None" and text in ("None", "null")):
                convert(text, self._type)
        except ValueError as error:
            reason = f": {error}" if isinstance(error, ArgumentValueError) else ""
            return f"must be {describe_type(self._type)}, got {text!r}{reason}"
        return ""

    def missing_path_error(self, text: str, script: Path) -> str:
        """Return the error for a path that does not exist; "" otherwise. Relative paths refer to the ranks' working
        folder.
        """
        if not self.is_path or not text or (text in ("None", "null") and not self.required):
            return ""
        found = exists(Path(choose_workdir(script) or "", expand_user(text)))
        return "" if found else f"{text} does not exist on this machine"

    def match_choice(self, text: str) -> str | None:
        """Return the choice that a text stands for; None if the text matches no choice."""
        if text in self.choices:
            return text
        try:
            value = convert(text, self._type)
            return next((each for each in self.choices if convert(each, self._type) == value), None)
        except ValueError:
            return None


def argument_fields(info: FunctionInfo) -> list[ArgumentField]:
    """Return a form field for each parameter of a function except ``**kwargs``."""
    helps = _parameter_docs(info.doc)
    return [_make_field(info, each, helps.get(each.name, "")) for each in info.params if each.kind != "var_keyword"]


def _make_field(info: FunctionInfo, param: Param, help_text: str) -> ArgumentField:
    kind = source_type(param.annotation, param.default, info.types)
    choices: tuple[str, ...] = ()
    form: FieldKind = "text"
    if param.kind == "var_positional":
        kind = list_type(kind)
    elif kind is bool and param.default in ("True", "False"):
        form = "switch"
    else:
        choices = tuple(dict.fromkeys(_list_choices(kind)))
        if choices and param.default == "None" and "None" not in choices:
            choices = (*choices, "None")
        # Do not offer unprintable choices, because the terminal would receive them unfiltered.
        if not all(map(str.isprintable, choices)):
            choices = ()
        form = "choice" if choices else "text"
    star = "*" if param.kind == "var_positional" else ""
    return ArgumentField(
        name=param.name,
        kind=form,
        type=star + (param.annotation or ""),
        default=param.default,
        required=param.required,
        choices=choices,
        help=help_text,
        is_path=param.kind != "var_positional" and _is_path_type(kind),
        _type=kind,
    )


def _list_choices(kind: Any) -> Iterator[str]:
    """Yield the texts of all values of a type; nothing if they cannot be listed."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        yield from (each.name if isinstance(each, enum.Enum) else str(each) for each in inner)
    elif origin in (Union, UnionType):
        listed = [list(_list_choices(each)) for each in inner]
        if all(listed) and set(inner) != {NoneType}:
            yield from (text for each in listed for text in each)
    elif kind is bool:
        yield from ("true", "false")
    elif kind is NoneType:
        yield "None"
    elif isinstance(kind, type) and issubclass(kind, enum.Enum) and not issubclass(kind, enum.Flag):
        yield from kind.__members__


def _is_path_type(kind: Any) -> bool:
    if typing.get_origin(kind) in (Union, UnionType):
        alternatives = [each for each in typing.get_args(kind) if each not in (NoneType, str)]
        return bool(alternatives) and all(map(_is_path_type, alternatives))
    return isinstance(kind, type) and issubclass(kind, PurePath)


def _parameter_docs(doc: str) -> dict[str, str]:
    """Return the first line of each parameter's description in a Google or Sphinx docstring."""
    found = dict(re.findall(r"^ *:param(?: [^:\n]+)? \*{0,2}(\w+): *(\S.*)$", doc, re.MULTILINE))
    _, _, within = doc.partition("Args:\n")
    for line in within.splitlines():
        if line and not line.startswith(" "):
            break  # a line without indentation begins the next section of the docstring
        if entry := re.fullmatch(r" +\*{0,2}(\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?: (\S.*)", line):
            found |= {name: entry[2] for name in re.findall(r"\w+", entry[1])}
    return found
