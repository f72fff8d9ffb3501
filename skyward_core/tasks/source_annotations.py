"""Python source analysed without running it."""

from __future__ import annotations

import ast
import enum
import threading
import warnings
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal, Optional, Union, get_args

# Python 3.11 counts how deep trees are for all threads together: where one lets another go on in the middle of making a
# tree, as it does to collect garbage, the first fails with "AST constructor recursion depth mismatch".
_ONE_AT_A_TIME = threading.Lock()


def parsed(source: str | bytes, name: str = "<unknown>") -> ast.Module:
    """The tree of a source.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: there is none.
    """
    with _ONE_AT_A_TIME:
        return ast.parse(source, name)


_ENUMS: dict[str, type[enum.Enum]] = {
    name: getattr(enum, name) for name in ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")
}
_PLAIN: dict[str, Any] = {kind.__name__: kind for kind in (str, int, float, bool, bytes, Path, date, datetime, object)}
_PLAIN |= {"Any": Any, "PathLike": Path}
_CONTAINERS: dict[str, Any] = {
    "list": list,
    "List": list,
    "Sequence": list,
    "Iterable": list,
    "Collection": list,
    "tuple": tuple,
    "Tuple": tuple,
    "set": set,
    "Set": set,
    "frozenset": frozenset,
    "FrozenSet": frozenset,
    "dict": dict,
    "Dict": dict,
    "Mapping": dict,
    "MutableMapping": dict,
}


class Unknown:
    """Stands for a type that the source alone does not tell."""


def source_type(annotation: str | None, default: str | None = None, own: Mapping[str, Any] = {}) -> Any:
    """The type that an annotation names; without one that of the default, and ``Any`` without either.

    Args:
        annotation, default: source text.
        own: the script's own classes, as :func:`own_types` gives them.
    """
    if annotation is not None:
        try:
            return _type(ast.parse(annotation.strip(), mode="eval").body, own)
        except SyntaxError:  # a quoted annotation may be any words
            return Any
    if default is None:
        return Any
    try:
        return of_default(ast.literal_eval(default))
    except ValueError:  # a name, say, of an enum's member
        return Unknown


def of_default(sample: Any) -> Any:
    """The type that a parameter without annotation has by its default; ``Any`` where that says nothing."""
    if sample is None:
        return Any
    # lr=1 without an annotation says "a number", not "a whole one".
    return int | float if type(sample) is int else type(sample)


def own_types(classes: Sequence[ast.ClassDef]) -> dict[str, Any]:
    """Classes of a script by name: its enums, made of their source, and :class:`Unknown` for all others."""
    return {each.name: _enum(each) or Unknown for each in classes}


def many(kind: Any) -> Any:
    """The type of the list that ``*args`` of a type make."""
    return list[kind]


def is_known(kind: Any) -> bool:
    """Whether values of that type can be made without the script: nothing in it is of the script's own."""
    if isinstance(kind, type) and (kind is Unknown or issubclass(kind, enum.Enum)):
        return False
    return all(is_known(part) for part in get_args(kind))


def is_told(kind: Any) -> bool:
    """Whether a text can at least be checked against that type."""
    return kind is not Unknown and all(is_told(part) for part in get_args(kind))


def _type(node: ast.expr, own: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=None):
            return type(None)
        case ast.Constant(value=str(quoted)):
            return source_type(quoted, None, own)
        case ast.BinOp(op=ast.BitOr()):
            return Union[_type(node.left, own), _type(node.right, own)]  # noqa: UP007  types, not syntax
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=inner)):
            return _generic(_name(outer), inner, own)
        case ast.Subscript(value=outer, slice=only):
            return _generic(_name(outer), [only], own)
    name = _name(node)
    return own.get(name) or _PLAIN.get(name) or _CONTAINERS.get(name, Unknown)


def _generic(name: str, inner: Sequence[ast.expr], own: Mapping[str, Any]) -> Any:
    if name == "Literal":
        try:
            return Literal[tuple(ast.literal_eval(choice) for choice in inner)]
        except ValueError:
            return Unknown
    if name == "Annotated":
        return _type(inner[0], own)
    parts = tuple(... if _is_ellipsis(part) else _type(part, own) for part in inner)
    if name == "Optional":
        return Optional[parts[0]]  # noqa: UP045
    if name == "Union":
        return Union[parts]  # noqa: UP007
    container = _CONTAINERS.get(name)
    if container is None or (container is dict and len(parts) != 2):
        return Unknown
    return container[parts]


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _enum(node: ast.ClassDef) -> type[enum.Enum] | None:
    """An enum like the script's, where its source tells all that it takes."""
    base = next((_ENUMS[name] for each in node.bases if (name := _name(each)) in _ENUMS), None)
    members: dict[str, Any] = {}
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                members[name] = _member(value)
            case ast.Assign() | ast.AnnAssign():
                return None
            case ast.FunctionDef(name="_missing_" | "_generate_next_value_" | "__new__" | "__init__" | "__str__"):
                return None  # it may take more, or other values
    if base is None or not members or Unknown in members.values():
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python thinks of the script's enum it says when that is loaded
            make: Any = base
            made: type[enum.Enum] = make(node.name, members)
    except (TypeError, ValueError):
        return None
    return made


def _member(value: ast.expr) -> Any:
    if isinstance(value, ast.Call) and _name(value.func) == "auto":
        return enum.auto()
    try:
        return ast.literal_eval(value)
    except ValueError:
        return Unknown
