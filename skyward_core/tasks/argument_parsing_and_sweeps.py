"""Command-line texts parsed to typed arguments, and expanded to the combinations of a sweep."""

from __future__ import annotations

import ast
import dataclasses
import enum
import json
import re
import typing
from collections import abc
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from itertools import product
from numbers import Number
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, Literal, Union
from uuid import UUID

from skyward_core.model.errors import UsageError, set_error_field
from skyward_core.util.safe_file_access import expand_user

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_NONE = ("None", "null")
_ANY_TEXT = (str, Any, object)  # for a union, try these types last, because they accept any text
_TEXT_CONSTRUCTIBLE = (str, Number, UUID)  # ``Number`` includes the number classes of NumPy and other libraries
_TYPE_LABELS: dict[type[Any], str] = {
    date: "a date such as 2031-12-24",
    datetime: "a date and time such as 2031-12-24T18:30",
    timedelta: "seconds",
}
_SEQUENCE_TYPES: dict[Any, type[Any]] = {
    **{kind: kind for kind in (list, tuple, set, frozenset)},
    **dict.fromkeys((abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection), list),
    **dict.fromkeys((abc.Set, abc.MutableSet), set),
}


class ArgumentValueError(ValueError):
    """Text that does not match its type. The message explains more than the name of the type."""


class RawArgument(str):
    """Argument that is still text, because only the process that loads the script knows the type."""

    __slots__ = ()


def convert(text: str, kind: Any) -> Any:
    """Convert a command-line text to a value of a type.

    Supports numbers, ``bool``, ``str``, ``bytes``, paths, dates, ``UUID``, enums (by member name or value),
    ``Literal``, ``Optional``, unions, dataclasses (as JSON objects), and lists, tuples, sets and dicts of these. A list
    may be written ``1,2,3``. For ``Any``, a Python literal is evaluated, and any other text is kept. For any other
    class, the class is called with the text.

    Raises:
        ValueError: If the text does not match the type.
    """
    kind = _strip_annotations(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return _parse_literal(text, inner)
    if origin in (Union, UnionType):
        return _parse_union(text, inner)
    if (origin or kind) in _SEQUENCE_TYPES:
        return _parse_list(text, _SEQUENCE_TYPES[origin or kind], inner)
    if (origin or kind) in (dict, abc.Mapping, abc.MutableMapping):
        return _parse_dict(text, inner)
    if isinstance(made := origin or kind, type):
        return _parse_class(text, made)
    return _guess_value(text)


def convert_argument(name: str, text: str, kind: Any, function: str) -> Any:
    """Convert an argument of a function, as :func:`convert` does.

    Raises:
        ValueError: If the text does not match the type. The message names the argument, the type and the text.
    """
    try:
        return convert(text, kind)
    except ValueError as error:
        reason = f" ({error})" if isinstance(error, ArgumentValueError) else ""
        raise ValueError(
            f"argument {name} of {function} must be {describe_type(kind)}, got {str(text)!r}{reason}"
        ) from error


def describe_type(kind: Any) -> str:
    """Describe the values that :func:`convert` accepts for a type, for an error message."""
    kind = _strip_annotations(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"one of {', '.join(kind.__members__)} ({kind.__name__})"
    if typing.get_origin(kind) in (Union, UnionType):
        return " | ".join(describe_type(part) for part in typing.get_args(kind))
    if kind in (NoneType, Any):
        return "None" if kind is NoneType else "a value"
    if isinstance(kind, type) and typing.get_origin(kind) is None:
        if dataclasses.is_dataclass(kind):
            return f"{kind.__name__} as a JSON object of {', '.join(_field_names(kind))}"
        return _TYPE_LABELS.get(kind, kind.__name__)
    return str(kind).replace("typing.", "")


def _strip_annotations(kind: Any) -> Any:
    """Return the underlying type of ``Annotated``, ``Final``, ``ClassVar``, aliases, type variables and ``NewType``."""
    while True:
        if typing.get_origin(kind) in (typing.Annotated, typing.Final, typing.ClassVar):
            kind = typing.get_args(kind)[0]
        elif (named := getattr(kind, "__supertype__", None)) is not None:
            kind = named
        elif isinstance(kind, typing.TypeVar):
            kind = kind.__bound__ or Any
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        else:
            return kind


def _parse_literal(text: str, choices: Sequence[Any]) -> Any:
    for value in choices:
        if text in (str(value), repr(value)) or (isinstance(value, enum.Enum) and text == value.name):
            return value
    raise ValueError(text)


def _parse_union(text: str, alternatives: Sequence[Any]) -> Any:
    # "None" and "null" are parsed as None only if the union includes None.
    reason: ValueError = ValueError(text)
    for alternative in sorted(alternatives, key=lambda kind: (kind is not NoneType, kind in _ANY_TEXT)):
        try:
            return convert(text, alternative)
        except ValueError as error:
            reason = error if isinstance(error, ArgumentValueError) else reason
    raise reason


def _parse_list(text: str, make: type[Any], inner: Sequence[Any]) -> Any:
    items = _split_items(text)
    if make is tuple and inner and not (len(inner) == 2 and inner[1] is ...):
        if len(items) != len(inner):
            raise ValueError(text)
        return tuple(convert(item, kind) for item, kind in zip(items, inner, strict=True))
    return make(convert(item, inner[0] if inner else Any) for item in items)


def _parse_dict(text: str, inner: Sequence[Any]) -> dict[Any, Any]:
    if len(inner) != 2:
        return _split_mapping(text)
    return {
        convert(_to_text(key), inner[0]): convert(_to_text(value), inner[1])
        for key, value in _split_mapping(text).items()
    }


def _parse_class(text: str, kind: type[Any]) -> Any:
    if kind in _PARSERS:
        return _PARSERS[kind](text)
    if issubclass(kind, enum.Enum):
        return _parse_enum(text, kind)
    if dataclasses.is_dataclass(kind):
        return _parse_dataclass(text, kind)
    if issubclass(kind, PurePath):
        return kind(expand_user(text))
    if not issubclass(kind, _TEXT_CONSTRUCTIBLE) and _is_instance(value := _guess_value(text), kind):
        return value
    try:
        return kind(text)
    except Exception as error:
        if issubclass(kind, _TEXT_CONSTRUCTIBLE):
            raise ValueError(text) from error
        raise ArgumentValueError(f"{type(error).__name__}: {error}") from error


def _is_instance(value: object, kind: type[Any]) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # Python cannot check the type at run time, such as a TypedDict, so accept the value
        return True


def _parse_enum(text: str, kind: type[enum.Enum]) -> enum.Enum:
    """Parse a text to the enum member of this name or value. Flags may be combined, as in ``A|B``."""
    if issubclass(kind, enum.Flag) and "|" in text:
        value = kind(0)
        for part in text.split("|"):
            value |= typing.cast(enum.Flag, _parse_enum(part.strip(), kind))
        return value
    if text in kind.__members__:
        return kind.__members__[text]
    for member in kind:
        if text in (str(member.value), repr(member.value), str(member)):
            return member
    close = [member for name, member in kind.__members__.items() if name.casefold() == text.casefold()]
    if len(close) == 1:
        return close[0]
    raise ValueError(text)


def _parse_dataclass(text: str, kind: type[Any]) -> Any:
    values, hints, fields = _split_mapping(text), typing.get_type_hints(kind), _field_names(kind)
    if unknown := [str(name) for name in values if name not in fields]:
        raise ArgumentValueError(f"{kind.__name__} has no field {', '.join(unknown)}. Its fields: {', '.join(fields)}")
    made = {}
    for name, value in values.items():
        try:
            made[name] = convert(_to_text(value), hints.get(name, Any))
        except ValueError as error:
            raise ArgumentValueError(
                f"{kind.__name__}.{name} must be {describe_type(hints[name])}, got {value!r:.80}"
            ) from error
    try:
        return kind(**made)
    except Exception as error:
        raise ArgumentValueError(f"{type(error).__name__}: {error}") from error


def _field_names(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]


def _parse_bool(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def _parse_bytes(text: str) -> bytes:
    r"""Parse a text to bytes: a literal such as ``b"\x00"``, or any other text encoded as UTF-8."""
    if text[:2].lower() in ('b"', "b'"):
        value = _eval_literal(text)
        if isinstance(value, bytes):
            return value
    return text.encode()


def _parse_none(text: str) -> None:
    if text not in _NONE:
        raise ValueError(text)


_PARSERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    bool: _parse_bool,
    int: lambda text: int(text, 0 if text.lower().lstrip("+-").startswith(("0x", "0b", "0o")) else 10),
    float: float,
    bytes: _parse_bytes,
    bytearray: lambda text: bytearray(_parse_bytes(text)),
    NoneType: _parse_none,
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
    time: time.fromisoformat,
    timedelta: lambda text: timedelta(seconds=float(text)),
    object: lambda text: _guess_value(text),
}


def _split_items(text: str) -> list[str]:
    """Split a list literal, or ``a,b,c``, into the texts of its items."""
    if text.lstrip()[:1] not in tuple("[({"):
        return [item.strip() for item in text.split(",")] if text.strip() else []
    value = _eval_literal(text)
    if not isinstance(value, list | tuple | set):
        raise ValueError(text)
    return [_to_text(item) for item in value]


def _split_mapping(text: str) -> dict[Any, Any]:
    value = _eval_literal(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _eval_literal(text: str) -> Any:
    """Evaluate a text that is a Python literal or JSON."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return json.loads(text)  # json.loads raises a ValueError if the text is not JSON either


def _guess_value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return _eval_literal(text)
    except ValueError:
        return text


# Maximum number of combinations in one sweep, because the client holds their outcomes in memory.
MAX_COMBINATIONS = 4_096

_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")
_OPENS, _CLOSES, _QUOTES = "([{", ")]}", "\"'"


def expand_combinations(pairs: Sequence[str]) -> list[tuple[str, ...]]:
    """Expand texts ``name=value`` with lists of values to one tuple of texts per combination.

    Values are separated by commas; a value that contains a comma needs brackets or quotes. ``1..5`` stands for 1, 2, 3,
    4 and 5. The last argument varies fastest.

    Raises:
        UsageError: If a value is empty or repeated, or there are more than 4,096 combinations.
    """
    lists = []
    count = 1
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"invalid argument {pair!r}. Write name=value")
        with set_error_field(f"arguments.{name.strip()}"):
            values = argument_values(name, text)
        count *= len(values)
        if count > MAX_COMBINATIONS:
            raise UsageError(f"more than {MAX_COMBINATIONS:,} combinations of arguments. Give fewer values")
        lists.append([f"{name}={value}" for value in values])
    return list(product(*lists))


def argument_values(name: str, text: str) -> list[str]:
    """Return the values of one argument of a sweep, as texts.

    Raises:
        UsageError: In the same cases as in :func:`expand_combinations`.
    """
    values: list[str] = []
    for part in _split_commas(text):
        if not part and text:
            raise UsageError(f"argument {name}={text}: a value is missing before or after a comma")
        values += _expand_range(name, part) if _RANGE.fullmatch(part) else [_unquote(part)]
    if len(set(values)) < len(values):
        twice = next(each for each in values if values.count(each) > 1)
        raise UsageError(f"argument {name}={text}: {twice} is repeated")
    return values


def _expand_range(name: str, text: str) -> list[str]:
    first, last = map(int, text.split(".."))
    if last < first:
        raise UsageError(f"argument {name}={text}: a range must be ascending")
    if last - first >= MAX_COMBINATIONS:
        raise UsageError(f"argument {name}={text}: more than {MAX_COMBINATIONS:,} values")
    return list(map(str, range(first, last + 1)))


def _split_commas(text: str) -> list[str]:
    """Split a text at the commas that are outside of brackets and quotes."""
    parts, part, depth, quote = [], "", 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES and not part.strip():
            quote = letter
        elif letter in _OPENS:
            depth += 1
        elif letter in _CLOSES:
            depth -= 1
        if letter == "," and not quote and depth <= 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return [*parts, part.strip()]


def _unquote(part: str) -> str:
    return part[1:-1] if len(part) > 1 and part[0] in _QUOTES and part[0] == part[-1] else part
