"""Text to values, as the source of an annotation or of a default says. Nothing is evaluated but literals."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_NONE = ("None", "null")
_ANY = ("str", "Any", "object")  # these take every text, so a union tries them last
_LISTS: dict[str, type[Any]] = {
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
}
_DICTS = ("dict", "Dict", "Mapping", "MutableMapping")


def convert(text: str, annotation: str | None, default: str | None = None) -> Any:
    """Turn a text into the value of a parameter.

    ``int``, ``float``, ``bool``, ``str``, ``Path``, ``Literal``, ``Optional``, unions, and lists, tuples,
    sets and dicts of them are understood; of anything else a Python literal is taken as such, and other text
    as it is.
    A list may be written ``1,2,3``.

    Args:
        annotation, default: source text; the default's type counts where there is no annotation.

    Raises:
        ValueError: the text is no such value.
    """
    node = _effective(annotation, default)
    if default in _NONE and text in _NONE:
        return None
    return _guess(text) if node is None else _convert(text, node)


def wanted(annotation: str | None, default: str | None = None) -> str:
    """What :func:`convert` takes, in words for an error message."""
    node = _effective(annotation, default)
    return "a value" if node is None else ast.unparse(node)


def _effective(annotation: str | None, default: str | None) -> ast.expr | None:
    if annotation is not None:
        try:
            return ast.parse(annotation.strip(), mode="eval").body
        except SyntaxError:  # a quoted annotation may be any words
            return None
    try:
        sample = ast.literal_eval(default or "None")
    except ValueError:
        return None
    if sample is None:
        return None
    # lr=1 without an annotation says "a number", not "a whole one".
    name = "int | float" if type(sample) is int else type(sample).__name__
    return ast.parse(name, mode="eval").body


def _convert(text: str, node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str(quoted)):
            return convert(text, quoted)
        case ast.Constant(value=None):
            return _plain(text, "None")
        case ast.BinOp(op=ast.BitOr()):
            return _union(text, _alternatives(node))
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=inner)):
            return _generic(text, _name(outer), inner)
        case ast.Subscript(value=outer, slice=only):
            return _generic(text, _name(outer), [only])
    return _plain(text, _name(node))


def _plain(text: str, name: str) -> Any:
    if name == "str":
        return text
    if name == "bool":
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    if name == "int":
        return int(text, 0) if text.lower().lstrip("+-").startswith(("0x", "0b", "0o")) else int(text)
    if name == "float":
        return float(text)
    if name == "None":
        if text not in _NONE:
            raise ValueError(text)
        return None
    if name in ("Path", "PathLike"):
        return Path(text).expanduser()
    if name in _LISTS:
        return _LISTS[name](_guess(item) for item in _items(text))
    if name in _DICTS:
        return _mapping(text)
    return _guess(text)


def _generic(text: str, name: str, inner: Sequence[ast.expr]) -> Any:
    if name == "Optional":
        return None if text in _NONE else _convert(text, inner[0])
    if name == "Union":
        return _union(text, inner)
    if name == "Annotated":
        return _convert(text, inner[0])
    if name == "Literal":
        values = [ast.literal_eval(choice) for choice in inner]
        for value in values:
            if text in (str(value), repr(value)):
                return value
        raise ValueError(text)
    if name in _LISTS:
        items = _items(text)
        if _LISTS[name] is tuple and not (len(inner) == 2 and _is_ellipsis(inner[1])):
            if len(items) != len(inner):
                raise ValueError(text)
            return tuple(_convert(item, kind) for item, kind in zip(items, inner, strict=True))
        return _LISTS[name](_convert(item, inner[0]) for item in items)
    if name in _DICTS and len(inner) == 2:
        return {
            _convert(_text(key), inner[0]): _convert(_text(value), inner[1])
            for key, value in _mapping(text).items()
        }
    return _guess(text)


def _union(text: str, alternatives: Sequence[ast.expr]) -> Any:
    for alternative in sorted(alternatives, key=lambda node: _name(node) in _ANY):
        try:
            return _convert(text, alternative)
        except ValueError:
            continue
    raise ValueError(text)


def _alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    return [node]


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _items(text: str) -> list[str]:
    """The items of a list, each as text: of a literal, or of ``a,b,c``."""
    if text.lstrip()[:1] not in tuple("[({"):
        return [item.strip() for item in text.split(",")] if text.strip() else []
    value = _literal(text)
    if not isinstance(value, list | tuple | set):
        raise ValueError(text)
    return [_text(item) for item in value]


def _mapping(text: str) -> dict[Any, Any]:
    value = _literal(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _literal(text: str) -> Any:
    """A Python literal, or JSON."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return json.loads(text)  # its error is a ValueError


def _guess(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return _literal(text)
    except ValueError:
        return text
