"""Types of annotations and defaults in Python source, resolved without running it."""

from __future__ import annotations

import ast
import enum
import threading
import warnings
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal, Optional, Union, get_args

# Python 3.11 counts the depth of AST construction across all threads. If a garbage collection switches threads while
# one thread builds a tree, this thread fails with "AST constructor recursion depth mismatch".
_parse_lock = threading.Lock()


def parse_source(source: str | bytes, name: str = "<unknown>") -> ast.Module:
    """Parse Python source code to a syntax tree.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: If the source does not parse.
    """
    with _parse_lock:
        return ast.parse(source, name)


_ENUM_CLASSES: dict[str, type[enum.Enum]] = {
    name: getattr(enum, name) for name in ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")
}
_PLAIN_TYPES: dict[str, Any] = {
    kind.__name__: kind for kind in (str, int, float, bool, bytes, Path, date, datetime, object)
}
_PLAIN_TYPES |= {"Any": Any, "PathLike": Path}
_CONTAINER_TYPES: dict[str, Any] = {
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


class UnknownType:
    """Marker for a type that cannot be determined from the source alone."""


def source_type(annotation: str | None, default: str | None = None, own: Mapping[str, Any] = {}) -> Any:
    """Return the type that an annotation states, otherwise the type of the default, otherwise ``Any``.

    Args:
        annotation, default: Source text.
        own: The script's own classes, from :func:`script_types`.
    """
    if annotation is not None:
        try:
            return _resolve_type(ast.parse(annotation.strip(), mode="eval").body, own)
        except SyntaxError:  # a quoted annotation may contain text that is not a Python expression
            return Any
    if default is None:
        return Any
    try:
        return default_type(ast.literal_eval(default))
    except ValueError:  # literal_eval rejects a default that is not a literal, such as an enum member
        return UnknownType


def default_type(sample: Any) -> Any:
    """Return the type that a default implies for an unannotated parameter; ``Any`` if it implies none."""
    if sample is None:
        return Any
    # The default in lr=1 of a parameter without annotation stands for any number, not only for integers.
    return int | float if type(sample) is int else type(sample)


def script_types(classes: Sequence[ast.ClassDef]) -> dict[str, Any]:
    """Return a script's classes by name: its enums, rebuilt from source, and :class:`UnknownType` for all others."""
    return {each.name: _make_enum(each) or UnknownType for each in classes}


def list_type(kind: Any) -> Any:
    """Return the type of the list of a ``*args`` parameter."""
    return list[kind]


def is_convertible(kind: Any) -> bool:
    """Check whether values of a type can be created without running the script: the type uses no class of the
    script.
    """
    if isinstance(kind, type) and (kind is UnknownType or issubclass(kind, enum.Enum)):
        return False
    return all(is_convertible(part) for part in get_args(kind))


def is_checkable(kind: Any) -> bool:
    """Check whether a text can be validated against a type, even if the value cannot be created."""
    return kind is not UnknownType and all(is_checkable(part) for part in get_args(kind))


def _resolve_type(node: ast.expr, own: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=None):
            return type(None)
        case ast.Constant(value=str(quoted)):
            return source_type(quoted, None, own)
        case ast.BinOp(op=ast.BitOr()):
            return Union[_resolve_type(node.left, own), _resolve_type(node.right, own)]  # noqa: UP007  types, not syntax
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=inner)):
            return _resolve_generic(_dotted_name(outer), inner, own)
        case ast.Subscript(value=outer, slice=only):
            return _resolve_generic(_dotted_name(outer), [only], own)
    name = _dotted_name(node)
    return own.get(name) or _PLAIN_TYPES.get(name) or _CONTAINER_TYPES.get(name, UnknownType)


def _resolve_generic(name: str, inner: Sequence[ast.expr], own: Mapping[str, Any]) -> Any:
    if name == "Literal":
        try:
            return Literal[tuple(ast.literal_eval(choice) for choice in inner)]
        except ValueError:
            return UnknownType
    if name == "Annotated":
        return _resolve_type(inner[0], own)
    parts = tuple(
        ... if isinstance(part, ast.Constant) and part.value is ... else _resolve_type(part, own) for part in inner
    )
    if name == "Optional":
        return Optional[parts[0]]  # noqa: UP045
    if name == "Union":
        return Union[parts]  # noqa: UP007
    container = _CONTAINER_TYPES.get(name)
    return UnknownType if container is None or (container is dict and len(parts) != 2) else container[parts]


def _dotted_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _make_enum(node: ast.ClassDef) -> type[enum.Enum] | None:
    """Return an enum that is equal to the script's enum. None if the source does not determine all of its values."""
    base = next((_ENUM_CLASSES[name] for each in node.bases if (name := _dotted_name(each)) in _ENUM_CLASSES), None)
    members: dict[str, Any] = {}
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                members[name] = _enum_value(value)
            case ast.Assign() | ast.AnnAssign():
                return None
            case ast.FunctionDef(name="_missing_" | "_generate_next_value_" | "__new__" | "__init__" | "__str__"):
                # This method may change which values the enum accepts, so only the loaded script can create members.
                return None
    if base is None or not members or UnknownType in members.values():
        return None
    try:
        with warnings.catch_warnings():
            # No warnings here, because Python shows the same warnings when the script is loaded.
            warnings.simplefilter("ignore")
            make: Any = base
            made: type[enum.Enum] = make(node.name, members)
    except (TypeError, ValueError):
        return None
    return made


def _enum_value(value: ast.expr) -> Any:
    if isinstance(value, ast.Call) and _dotted_name(value.func) == "auto":
        return enum.auto()
    try:
        return ast.literal_eval(value)
    except ValueError:
        return UnknownType
