"""What a function's parameters want, each as one field of a form; nothing of the script is run."""

from __future__ import annotations

import enum
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, Union

from ..store.user_files import exists, expanded
from ..store.working_folder import workdir
from .annotations import is_told, many, source_type
from .arguments import Refused, convert, wanted
from .scripts import FunctionInfo, Param

_BOOLS = ("true", "false")

FieldKind = Literal["text", "choice", "switch"]


@dataclass(frozen=True, slots=True)
class ArgumentField:
    """A parameter, as it is asked for.

    Attributes:
        name: of the parameter.
        kind: a line of text; a choice of ``choices``; a switch, which is a bool with a default.
        type: as the script writes it; "" where it does not.
        default: source text of what it is where nothing is given; None where something must be given, or many may.
        required: whether something must be given.
        choices: the texts of all its values, where these can be told.
        help: what the function's docstring says of it; "" where it does not.
        is_path: whether it names a file or folder.
    """

    name: str
    kind: FieldKind
    type: str
    default: str | None
    required: bool
    choices: tuple[str, ...] = ()
    help: str = ""
    is_path: bool = False
    _wants: Any = field(default=Any, repr=False)

    @property
    def look(self) -> str:
        """What stands in the empty field: how the signature has it."""
        if self.default is not None:
            return f"{self.type} = {self.default}" if self.type else self.default
        return ", ".join(filter(None, (self.type, "needed" if self.required else "none")))

    @property
    def is_on(self) -> bool:
        """Of a switch: how it stands where nothing is given."""
        return self.default == "True"

    def amiss(self, text: str) -> str:
        """Why a text is no value of it, in words; "" where it may be one."""
        try:
            if is_told(self._wants) and not (self.default == "None" and text in ("None", "null")):
                convert(text, self._wants)
        except ValueError as error:
            why = f": {error}" if isinstance(error, Refused) else ""
            return f"wants {wanted(self._wants)}, not {text!r}{why}"
        return ""

    def missing(self, text: str, script: Path) -> str:
        """Of a path: that there is nothing there, in words; "" else. One that is not whole begins at the folder that
        ranks of the script work in."""
        if not self.is_path or not text or (text in ("None", "null") and not self.required):
            return ""
        there = exists(Path(workdir(script) or "", expanded(text)))
        return "" if there else f"there is no {text} on this machine"

    def choice_of(self, text: str) -> str | None:
        """The one of its choices that a text means; None where it means none."""
        if text in self.choices:
            return text
        try:
            value = convert(text, self._wants)
            return next((each for each in self.choices if convert(each, self._wants) == value), None)
        except ValueError:
            return None


def argument_fields(info: FunctionInfo) -> list[ArgumentField]:
    """A field for each parameter of a function; ``**kwargs``, of which nobody knows the names, has none."""
    told = _told_by(info.doc)
    return [_field(info, each, told.get(each.name, "")) for each in info.params if each.kind != "var_keyword"]


def _field(info: FunctionInfo, param: Param, said: str) -> ArgumentField:
    kind = source_type(param.annotation, param.default, info.types)
    choices: tuple[str, ...] = ()
    form: FieldKind = "text"
    if param.kind == "var_positional":
        kind = many(kind)
    elif kind is bool and param.default in ("True", "False"):
        form = "switch"
    else:
        choices = tuple(dict.fromkeys(_choices(kind)))
        if choices and param.default == "None" and "None" not in choices:
            choices = (*choices, "None")
        if not all(map(str.isprintable, choices)):  # fields hand their text to the terminal as it is
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
        help=said,
        is_path=param.kind != "var_positional" and _is_path(kind),
        _wants=kind,
    )


def _choices(kind: Any) -> Iterator[str]:
    """The texts of all values of a type; none where they cannot be listed."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        yield from (each.name if isinstance(each, enum.Enum) else str(each) for each in inner)
    elif origin in (Union, UnionType):
        listed = [list(_choices(each)) for each in inner]
        if all(listed) and set(inner) != {NoneType}:
            yield from (text for each in listed for text in each)
    elif kind is bool:
        yield from _BOOLS
    elif kind is NoneType:
        yield "None"
    elif isinstance(kind, type) and issubclass(kind, enum.Enum) and not issubclass(kind, enum.Flag):
        yield from kind.__members__


def _is_path(kind: Any) -> bool:
    if typing.get_origin(kind) in (Union, UnionType):
        alternatives = [each for each in typing.get_args(kind) if each not in (NoneType, str)]
        return bool(alternatives) and all(map(_is_path, alternatives))
    return isinstance(kind, type) and issubclass(kind, PurePath)


def _told_by(doc: str) -> dict[str, str]:
    """What a docstring says of parameters, as Google or Sphinx write them: the first line of each."""
    found = dict(re.findall(r"^ *:param(?: [^:\n]+)? \*{0,2}(\w+): *(\S.*)$", doc, re.MULTILINE))
    _, _, within = doc.partition("Args:\n")
    for line in within.splitlines():
        if line and not line.startswith(" "):
            break  # the next section
        if entry := re.fullmatch(r" +\*{0,2}(\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?: (\S.*)", line):
            found |= {name: entry[2] for name in re.findall(r"\w+", entry[1])}
    return found
