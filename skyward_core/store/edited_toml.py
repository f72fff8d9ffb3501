"""A table of a TOML file that a person writes in, too: it is put in, changed or taken out, and all else stays as it was
written, comments included.

Nothing here understands more of TOML than where tables and statements begin. What comes out is read again, and refused
where anything else than that table would be otherwise.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..model.errors import UsageError
from .edited_list import changed_list

_ENTRY = re.compile(r"""(\s*)("[^"\n]*"|'[^'\n]*'|[A-Za-z0-9_-]+)(\s*=)""")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_GONE = object()

TomlValue = str | bool | int | float | Sequence[str] | Mapping[str, str]


def with_table(text: str, path: Sequence[str], values: Mapping[str, TomlValue]) -> str:
    """The text with a table that holds these values and no others. What a person wrote in it stays as far as it says
    the same, and its comments stay.

    Args:
        text: a whole TOML document.
        path: names of the table, outermost first.

    Raises:
        UsageError: the table is written in a way that cannot be changed, or a value cannot be written.
        ValueError: the text is no TOML.
    """
    tomllib.loads(text)
    line_end = "\r\n" if "\r\n" in text else "\n"
    lines = _lines(text)
    found = _extent(lines, path)
    if found is None:
        before = [*lines[:-1], _ended(lines[-1], line_end)] if lines else []
        gap = [line_end] if before and before[-1].strip() else []
        made = [*before, *gap, *_new_table(path, values, line_end)]
    else:
        begin, end = found
        made = [*lines[:begin], *_changed(lines[begin:end], path, values, line_end), *lines[end:]]
    return _checked("".join(made), text, path, dict(values))


def renamed_entry(text: str, path: Sequence[str], old: str, new: str) -> str:
    """The text with another name for one of a table's values, which stays where it is.

    Raises:
        UsageError: as :func:`with_table`.
        ValueError: the text is no TOML.
    """
    before: Any = tomllib.loads(text)
    lines = _lines(text)
    found = _extent(lines, path)
    if found is None:
        raise _cannot_be_edited(path)
    begin, end = found
    made = []
    for statement in map("".join, _statements(lines[begin:end])):
        key = _ENTRY.match(statement)
        is_it = key is not None and list(tomllib.loads(statement)) == [old]
        made.append(f"{key[1]}{_key(new)}{key[3]}{statement[key.end() :]}" if key and is_it else statement)
    for name in path:
        before = before[name]
    renamed = {new if name == old else name: value for name, value in before.items()}
    return _checked("".join([*lines[:begin], *made, *lines[end:]]), text, path, renamed)


def without_table(text: str, path: Sequence[str]) -> str:
    """The text without a table, and what stands in it.

    Raises:
        UsageError: there is none, or it is written in a way that cannot be changed.
        ValueError: the text is no TOML.
    """
    tomllib.loads(text)
    lines = _lines(text)
    found = _extent(lines, path)
    if found is None:
        raise _cannot_be_edited(path)
    begin, end = found
    while begin and end == len(lines) and not lines[begin - 1].strip():
        begin -= 1  # nothing follows that the empty lines would keep apart
    return _checked("".join(lines[:begin] + lines[end:]), text, path, _GONE)


# -- where things stand ------------------------------------------------------------------------------------------------


def _lines(text: str) -> list[str]:
    """Lines as TOML has them, with their ends."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _extent(lines: Sequence[str], path: Sequence[str]) -> tuple[int, int] | None:
    """From a table's header to the end of what is in it: comments above the next header are that one's."""
    begin = end = None
    for number, header in _headers(lines):
        is_below = list(header[: len(path)]) == list(path)
        if begin is None and list(header) == list(path):
            begin = number
        elif begin is not None and not is_below:
            end = number
            break
    if begin is None:
        return None
    if end is None:
        return begin, len(lines)
    while end > begin + 1 and (not (bare := lines[end - 1].strip()) or bare.startswith("#")):
        end -= 1
    return begin, end


def _headers(lines: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Numbers of lines that begin a table, with its names; of an array of tables, its names and ``[]``."""
    for number, line in enumerate(lines):
        if (names := _names(line)) and _is_whole("".join(lines[:number])):
            yield number, names


def _names(line: str) -> tuple[str, ...]:
    """What a header names; nothing where it is none, such as an item of a list."""
    if not line.lstrip().startswith("["):
        return ()
    try:
        told: Any = tomllib.loads(line)
    except ValueError:
        return ()
    names = []
    while isinstance(told, dict) and told:
        ((name, told),) = told.items()
        names.append(name)
    return (*names, "[]") if isinstance(told, list) else tuple(names)


def _is_whole(text: str) -> bool:
    try:
        tomllib.loads(text)
    except ValueError:
        return False
    return True


# -- writing -----------------------------------------------------------------------------------------------------------


def _new_table(path: Sequence[str], values: Mapping[str, TomlValue], line_end: str) -> Iterator[str]:
    yield f"[{'.'.join(map(_key, path))}]{line_end}"
    for name, value in values.items():
        yield f"{_key(name)} = {_value(value)}{line_end}"


def _changed(
    block: Sequence[str], path: Sequence[str], values: Mapping[str, TomlValue], line_end: str
) -> Iterator[str]:
    """The lines of a table, with other values; what is new stands behind the last of its own statements."""
    left = dict(values)
    kept: list[str] = []
    last = 1  # lines until behind the last statement of the table itself, not of one in it
    inner: str | None = None  # the table in it that these lines are of
    stays = True  # whether that says what it is to say
    for lines in _statements(block):
        statement = "".join(lines)
        if len(lines) == 1 and (names := _names(statement)):
            inner = names[len(path)] if len(names) > len(path) else None
            stays = inner is None or values.get(inner) == _inner(block, path, inner)
            if stays:
                if inner is not None:
                    left.pop(inner, None)
                kept.append(_ended(statement, line_end))
            continue
        told = tomllib.loads(statement)
        if not told or (inner is not None and stays):  # a comment, nothing, or what stays
            kept.append(_ended(statement, line_end))
            continue
        if inner is not None:
            continue
        ((name, value),) = told.items()
        if name in left and left[name] == value:
            kept.append(_ended(statement, line_end))
            del left[name]
        elif name in left and (edited := _edited_list(statement, value, left[name])) is not None:
            kept.append(_ended(edited, line_end))
            del left[name]
        elif name in left:
            comment = _comment(statement, told)
            written = f"{_key(name)} = {_value(left.pop(name))}{'  ' + comment if comment else ''}"
            kept.append(written + line_end)
        else:
            continue
        last = len(kept)
    kept[last:last] = [f"{_key(name)} = {_value(value)}{line_end}" for name, value in left.items()]
    return iter(kept)


def _edited_list(statement: str, old: Any, new: TomlValue) -> str | None:
    if not isinstance(old, list) or isinstance(new, str) or not isinstance(new, Sequence):
        return None
    texts = all(isinstance(each, str) for each in old)
    return changed_list(statement, old, list(new), _value) if texts else None


def _inner(block: Sequence[str], path: Sequence[str], name: str) -> object:
    """What a table of a block holds under a name."""
    told: Any = tomllib.loads("".join(block))
    for each in (*path, name):
        told = told.get(each, {})
    return told


def _statements(block: Sequence[str]) -> Iterator[Sequence[str]]:
    """Lines that are read together: a header, a comment, an empty line, a value that may take several."""
    begin = 0
    for end in range(1, len(block) + 1):
        if _is_whole("".join(block[begin:end])):
            yield block[begin:end]
            begin = end


def _comment(statement: str, told: Mapping[str, Any]) -> str:
    """What stands behind a value as a comment."""
    for found in re.finditer("#", statement):
        try:
            if tomllib.loads(statement[: found.start()]) == told:
                return statement[found.start() :].strip()
        except ValueError:
            continue
    return ""


def _ended(line: str, line_end: str) -> str:
    return line if line.endswith("\n") else line + line_end


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: TomlValue) -> str:
    if isinstance(value, str):
        # JSON's text is TOML's, but for one character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return f"[{', '.join(map(_value, value))}]"


# -- proof -------------------------------------------------------------------------------------------------------------


def _checked(made: str, before: str, path: Sequence[str], wanted: object) -> str:
    """What was made, if it says what was wanted, and nothing else is otherwise."""
    try:
        told, told_before = tomllib.loads(made), tomllib.loads(before)
        made.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{'.'.join(path)} holds what no text file can: {error.reason}") from error
    except ValueError as error:
        raise _cannot_be_edited(path) from error
    if _taken(told, path) != wanted:
        raise _cannot_be_edited(path)
    _taken(told_before, path)
    if told != told_before:
        raise _cannot_be_edited(path)
    return made


def _taken(document: dict[str, Any], path: Sequence[str]) -> object:
    """Takes a table out of a document, and tables around it that hold nothing else; gives what it held."""
    inner: Any = document
    around = []
    for name in path[:-1]:
        around.append((inner, name))
        inner = inner.get(name)
        if not isinstance(inner, dict):
            return _GONE
    found = inner.pop(path[-1], _GONE)
    for outer, name in reversed(around):
        if not outer[name]:
            del outer[name]
    return found


def _cannot_be_edited(path: Sequence[str]) -> UsageError:
    *_, name = path
    return UsageError(
        f"{name} is not written there as a table of its own, [{'.'.join(map(_key, path))}]: change it in an editor"
    )
