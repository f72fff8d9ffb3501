"""Skyward.toml edited in place: presets, hosts, settings."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from skyward_core.model.errors import UsageError
from skyward_core.node.bootstrap.host_inspection import distrust_reason
from skyward_core.store.atomic_file import write_atomic
from skyward_core.store.state_folder import current_paths, require_current_folder, state_home
from skyward_core.store.user_settings import KEYS_TABLE, SETTINGS, SETTINGS_TABLES, validate
from skyward_core.util.user_files import MAX_SETTINGS_BYTES, exists, parse_toml, read_bytes, resolve_path

SETTINGS_FILE = "skyward.toml"


def read_settings_text(path: Path) -> str:
    """What a file holds; nothing where there is none.

    Raises:
        UsageError: it cannot be read, or somebody else could have written it.
    """
    if why := distrust_reason(str(path)):
        raise UsageError(f"{path} is not believed: {why}. Work in a folder of your own")
    try:
        return read_bytes(path, MAX_SETTINGS_BYTES).decode()  # its ends of lines stay
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} does not parse: {error}") from error


def parse_settings(path: Path, text: str) -> dict[str, Any]:
    """What a text says.

    Raises:
        UsageError: it is no TOML; names the file.
    """
    try:
        return parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{path} does not parse: {error}") from error


def replace_text(path: Path, before: str, text: str) -> None:
    """Put a text in the file's place, where that still is what was read; a link stays one.

    Raises:
        UsageError: somebody has changed it since.
        OSError: it cannot be written; it is as it was.
    """
    if read_settings_text(path) != before:
        raise UsageError(f"{path} was just changed by somebody else: try again")
    target = resolve_path(path)
    mode = target.stat().st_mode & 0o777 if exists(target) else 0o666
    write_atomic(target, text.encode(), mode=mode)


# A text of one line, a comment, or a mark: what is between the brackets of a list of texts. Texts of several lines have
# three quotation marks, which no rule here takes.
_TOKEN = re.compile(
    r"""(?P<item>"(?!"")(?:[^"\\\n]|\\.)*"|'(?!'')[^'\n]*')|(?P<comment>\#[^\n]*)|(?P<mark>[\[\],])|(?P<gap>\s+)"""
)


def edit_list(statement: str, old: Sequence[str], new: Sequence[str], write: Callable[[str], str]) -> str | None:
    """The statement ``name = [...]`` with another list; None where that has to be written anew.

    Args:
        statement: as it stands, with its comments.
        old, new: what it holds, and shall hold.
        write: gives an item as TOML.
    """
    spans = _item_spans(statement)
    if spans is None or len(spans) != len(old):
        return None
    if len(new) == len(old):
        edits = [(*spans[at], write(item)) for at, item in enumerate(new) if item != old[at]]
    elif len(new) == len(old) - 1 and (gone := _removed_index(old, new)) is not None:
        edits = [(*_removal_span(statement, spans, gone), "")]
    elif len(new) == len(old) + 1 and list(new[:-1]) == list(old) and spans:
        edits = [_append_edit(statement, spans, write(new[-1]))]
    else:
        return None
    for begin, end, text in reversed(edits):
        statement = statement[:begin] + text + statement[end:]
    try:
        told: Any = tomllib.loads(statement)
    except ValueError:
        return None
    return statement if list(told.values()) == [list(new)] else None


def _item_spans(statement: str) -> list[tuple[int, int]] | None:
    """Where each item stands; None where the statement holds something else than a list of plain texts."""
    start = re.match(r"""\s*(?:"[^"\n]*"|'[^'\n]*'|[A-Za-z0-9_-]+)\s*=\s*(?=\[)""", statement)
    if start is None:
        return None
    at, found, depth = start.end(), list[tuple[int, int]](), 0
    while at < len(statement):
        token = _TOKEN.match(statement, at)
        if token is None:
            return None
        if token["item"]:
            found.append(token.span())
        depth += {"[": 1, "]": -1}.get(token["mark"] or "", 0)
        if depth == 0 or depth > 1:
            return found if depth == 0 else None
        at = token.end()
    return None


def _removed_index(old: Sequence[str], new: Sequence[str]) -> int | None:
    return next((at for at in range(len(old)) if [*old[:at], *old[at + 1 :]] == list(new)), None)


def _removal_span(statement: str, spans: Sequence[tuple[int, int]], at: int) -> tuple[int, int]:
    """What goes with an item: its comma, and where it has a line to itself all of that."""
    begin, end = spans[at]
    line = statement.rfind("\n", 0, begin) + 1
    behind = re.compile(r"[ \t]*,?[ \t]*(?:\#[^\n]*)?(?:\n|$)").match(statement, end)
    if behind is not None and not statement[line:begin].strip():
        return line, behind.end()
    comma = re.compile(r"\s*,[ \t]*").match(statement, end)
    if at + 1 < len(spans) and comma is not None:
        return begin, comma.end()
    before = re.search(r",[ \t]*$", statement[:begin])
    return (before.start() if before is not None else begin), end


def _append_edit(statement: str, spans: Sequence[tuple[int, int]], text: str) -> tuple[int, int, str]:
    """Where one more stands, and what is written there."""
    begin, end = spans[-1]
    line = statement.rfind("\n", 0, begin) + 1
    indent = statement[line:begin]
    behind = re.compile(r"(?P<comma>[ \t]*,)?(?P<rest>[ \t]*(?:\#[^\n]*)?\r?\n)").match(statement, end)
    if indent.strip() or behind is None or not line:
        return end, end, f", {text}"
    comma = behind["comma"] or ""
    return end, behind.end(), f"{comma or ','}{behind['rest']}{indent}{text}{',' if comma else ''}\n"


_ENTRY_PATTERN = re.compile(r"""(\s*)("[^"\n]*"|'[^'\n]*'|[A-Za-z0-9_-]+)(\s*=)""")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_MISSING = object()

TomlValue = str | bool | int | float | Sequence[str] | Mapping[str, str]


def set_table(text: str, path: Sequence[str], values: Mapping[str, TomlValue]) -> str:
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
    lines = _split_lines(text)
    found = _table_range(lines, path)
    if found is None:
        before = [*lines[:-1], _with_line_end(lines[-1], line_end)] if lines else []
        gap = [line_end] if before and before[-1].strip() else []
        made = [*before, *gap, *_format_table(path, values, line_end)]
    else:
        begin, end = found
        made = [*lines[:begin], *_edit_table(lines[begin:end], path, values, line_end), *lines[end:]]
    return _verify_edit("".join(made), text, path, dict(values))


def rename_entry(text: str, path: Sequence[str], old: str, new: str) -> str:
    """The text with another name for one of a table's values, which stays where it is.

    Raises:
        UsageError: as :func:`with_table`.
        ValueError: the text is no TOML.
    """
    before: Any = tomllib.loads(text)
    lines = _split_lines(text)
    found = _table_range(lines, path)
    if found is None:
        raise _edit_error(path)
    begin, end = found
    made = []
    for statement in map("".join, _split_statements(lines[begin:end])):
        key = _ENTRY_PATTERN.match(statement)
        is_it = key is not None and list(tomllib.loads(statement)) == [old]
        made.append(f"{key[1]}{_format_key(new)}{key[3]}{statement[key.end() :]}" if key and is_it else statement)
    for name in path:
        before = before[name]
    renamed = {new if name == old else name: value for name, value in before.items()}
    return _verify_edit("".join([*lines[:begin], *made, *lines[end:]]), text, path, renamed)


def remove_table(text: str, path: Sequence[str]) -> str:
    """The text without a table, and what stands in it.

    Raises:
        UsageError: there is none, or it is written in a way that cannot be changed.
        ValueError: the text is no TOML.
    """
    tomllib.loads(text)
    lines = _split_lines(text)
    found = _table_range(lines, path)
    if found is None:
        raise _edit_error(path)
    begin, end = found
    while begin and end == len(lines) and not lines[begin - 1].strip():
        begin -= 1  # nothing follows that the empty lines would keep apart
    return _verify_edit("".join(lines[:begin] + lines[end:]), text, path, _MISSING)


# -- where things stand ------------------------------------------------------------------------------------------------


def _split_lines(text: str) -> list[str]:
    """Lines as TOML has them, with their ends."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _table_range(lines: Sequence[str], path: Sequence[str]) -> tuple[int, int] | None:
    """From a table's header to the end of what is in it: comments above the next header are that one's."""
    begin = end = None
    for number, header in _find_headers(lines):
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


def _find_headers(lines: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Numbers of lines that begin a table, with its names; of an array of tables, its names and ``[]``."""
    for number, line in enumerate(lines):
        if (names := _header_names(line)) and _is_valid_toml("".join(lines[:number])):
            yield number, names


def _header_names(line: str) -> tuple[str, ...]:
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


def _is_valid_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except ValueError:
        return False
    return True


# -- writing -----------------------------------------------------------------------------------------------------------


def _format_table(path: Sequence[str], values: Mapping[str, TomlValue], line_end: str) -> Iterator[str]:
    yield f"[{'.'.join(map(_format_key, path))}]{line_end}"
    for name, value in values.items():
        yield f"{_format_key(name)} = {_format_value(value)}{line_end}"


def _edit_table(
    block: Sequence[str], path: Sequence[str], values: Mapping[str, TomlValue], line_end: str
) -> Iterator[str]:
    """The lines of a table, with other values; what is new stands behind the last of its own statements."""
    left = dict(values)
    kept: list[str] = []
    last = 1  # lines until behind the last statement of the table itself, not of one in it
    inner: str | None = None  # the table in it that these lines are of
    stays = True  # whether that says what it is to say
    for lines in _split_statements(block):
        statement = "".join(lines)
        if len(lines) == 1 and (names := _header_names(statement)):
            inner = names[len(path)] if len(names) > len(path) else None
            stays = inner is None or values.get(inner) == _nested_value(block, path, inner)
            if stays:
                if inner is not None:
                    left.pop(inner, None)
                kept.append(_with_line_end(statement, line_end))
            continue
        told = tomllib.loads(statement)
        if not told or (inner is not None and stays):  # a comment, nothing, or what stays
            kept.append(_with_line_end(statement, line_end))
            continue
        if inner is not None:
            continue
        ((name, value),) = told.items()
        if name in left and left[name] == value:
            kept.append(_with_line_end(statement, line_end))
            del left[name]
        elif name in left and (edited := _edit_list_statement(statement, value, left[name])) is not None:
            kept.append(_with_line_end(edited, line_end))
            del left[name]
        elif name in left:
            comment = _trailing_comment(statement, told)
            written = f"{_format_key(name)} = {_format_value(left.pop(name))}{'  ' + comment if comment else ''}"
            kept.append(written + line_end)
        else:
            continue
        last = len(kept)
    kept[last:last] = [f"{_format_key(name)} = {_format_value(value)}{line_end}" for name, value in left.items()]
    return iter(kept)


def _edit_list_statement(statement: str, old: Any, new: TomlValue) -> str | None:
    if not isinstance(old, list) or isinstance(new, str) or not isinstance(new, Sequence):
        return None
    texts = all(isinstance(each, str) for each in old)
    return edit_list(statement, old, list(new), _format_value) if texts else None


def _nested_value(block: Sequence[str], path: Sequence[str], name: str) -> object:
    """What a table of a block holds under a name."""
    told: Any = tomllib.loads("".join(block))
    for each in (*path, name):
        told = told.get(each, {})
    return told


def _split_statements(block: Sequence[str]) -> Iterator[Sequence[str]]:
    """Lines that are read together: a header, a comment, an empty line, a value that may take several."""
    begin = 0
    for end in range(1, len(block) + 1):
        if _is_valid_toml("".join(block[begin:end])):
            yield block[begin:end]
            begin = end


def _trailing_comment(statement: str, told: Mapping[str, Any]) -> str:
    """What stands behind a value as a comment."""
    for found in re.finditer("#", statement):
        try:
            if tomllib.loads(statement[: found.start()]) == told:
                return statement[found.start() :].strip()
        except ValueError:
            continue
    return ""


def _with_line_end(line: str, line_end: str) -> str:
    return line if line.endswith("\n") else line + line_end


def _format_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _format_value(name)


def _format_value(value: TomlValue) -> str:
    if isinstance(value, str):
        # JSON's text is TOML's, but for one character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_format_key(name)} = {_format_value(each)}" for name, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return f"[{', '.join(map(_format_value, value))}]"


# -- proof -------------------------------------------------------------------------------------------------------------


def _verify_edit(made: str, before: str, path: Sequence[str], wanted: object) -> str:
    """What was made, if it says what was wanted, and nothing else is otherwise."""
    try:
        told, told_before = tomllib.loads(made), tomllib.loads(before)
        made.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{'.'.join(path)} holds what no text file can: {error.reason}") from error
    except ValueError as error:
        raise _edit_error(path) from error
    if _pop_table(told, path) != wanted:
        raise _edit_error(path)
    _pop_table(told_before, path)
    if told != told_before:
        raise _edit_error(path)
    return made


def _pop_table(document: dict[str, Any], path: Sequence[str]) -> object:
    """Takes a table out of a document, and tables around it that hold nothing else; gives what it held."""
    inner: Any = document
    around = []
    for name in path[:-1]:
        around.append((inner, name))
        inner = inner.get(name)
        if not isinstance(inner, dict):
            return _MISSING
    found = inner.pop(path[-1], _MISSING)
    for outer, name in reversed(around):
        if not outer[name]:
            del outer[name]
    return found


def _edit_error(path: Sequence[str]) -> UsageError:
    *_, name = path
    return UsageError(
        f"{name} is not written there as a table of its own, [{'.'.join(map(_format_key, path))}]: change it in "
        "an editor"
    )


HOSTS_TABLE = "hosts"


def user_settings_file() -> Path:
    """The file of the state folder, whose groups are there in every folder."""
    return state_home() / SETTINGS_FILE


def read_host_groups() -> dict[str, tuple[Path, list[str]]]:
    """The hosts of each group, in the order of the files, and which file that is; of two of a name the one of the
    working folder.

    Raises:
        UsageError: a file cannot be read or used, or somebody else could have written it.
    """
    found: dict[str, tuple[Path, list[str]]] = {}
    for path in (user_settings_file(), *current_paths(SETTINGS_FILE)):
        for name, hosts in _read_groups(path, read_settings_text(path)).items():
            found[name] = path, hosts
    return found


def save_host_groups(path: Path, name: str, hosts: Sequence[str]) -> None:
    """Have a group hold these hosts; a new one stands behind the others.

    Raises:
        UsageError: the file cannot be used or changed, or somebody else could have written it.
        OSError: it cannot be written; it is as it was.
    """
    text = read_settings_text(path)
    table = _groups_table(path, text)
    if table.get(name) != [*hosts]:
        replace_text(path, text, set_table(text, (HOSTS_TABLE,), table | {name: [*hosts]}))


def rename_group(path: Path, name: str, new: str) -> None:
    """Call a group otherwise; it stays in its place.

    Raises:
        UsageError, OSError: as :func:`save`; or there is one of that name.
    """
    text = read_settings_text(path)
    table = _require_group(path, text, name)
    if new in table:
        raise UsageError(f"{path} has a group {new} already")
    replace_text(path, text, rename_entry(text, (HOSTS_TABLE,), name, new))


def remove_group(path: Path, name: str) -> None:
    """Take a group out.

    Raises:
        UsageError, OSError: as :func:`save`.
    """
    text = read_settings_text(path)
    left = {other: hosts for other, hosts in _require_group(path, text, name).items() if other != name}
    made = set_table(text, (HOSTS_TABLE,), left) if left else remove_table(text, (HOSTS_TABLE,))
    replace_text(path, text, made)


def _require_group(path: Path, text: str, name: str) -> dict[str, Any]:
    table = _groups_table(path, text)
    if name not in table:
        raise UsageError(f"{path} has no group {name} any more")
    return table


def _groups_table(path: Path, text: str) -> dict[str, Any]:
    table = parse_settings(path, text).get(HOSTS_TABLE, {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: hosts is no table; write [hosts], and a group in each line below")
    return table


def _read_groups(path: Path, text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, hosts in _groups_table(path, text).items():
        listed = [hosts] if isinstance(hosts, str) else hosts
        if not isinstance(listed, list) or not all(isinstance(host, str) for host in listed):
            raise UsageError(f"{path}: the group {name} is no list of hosts")
        found[name] = listed
    return found


def read_settings() -> dict[str, Any]:
    """What the file says, by table and name; whether it can be used nobody has looked at.

    Raises:
        UsageError: the file cannot be read or used, or somebody else could have written it.
    """
    whole = parse_settings(user_settings_file(), read_settings_text(user_settings_file()))
    tables = {name: whole.get(name, {}) for name in SETTINGS_TABLES}
    return {
        f"{name}.{key}": value
        for name, table in tables.items()
        if isinstance(table, dict)
        for key, value in table.items()
    }


def set_setting(name: str, value: TomlValue) -> None:
    """Have a setting be this from now on; one of the table of keys is the app's to look at.

    Args:
        name: as ``user_settings.UserSetting`` has it; ``keys.`` and an action's id for a key.

    Raises:
        UsageError: there is no such setting, or it cannot be this; or the file cannot be used or changed.
        OSError: it cannot be written; it is as it was.
    """
    table, _, key = name.partition(".")
    if table != KEYS_TABLE:
        settings = [each for each in SETTINGS if each.name == name]
        if not settings:
            raise UsageError(f"there is no setting {name}")
        try:
            validate(settings[0], value)
        except ValueError as error:
            raise UsageError(f"{name} cannot be that: {error}") from None
    _write_table(table, {key: value})


def reset_setting(name: str) -> None:
    """Have the default hold again.

    Raises:
        UsageError, OSError: as :func:`change`.
    """
    table, _, key = name.partition(".")
    _write_table(table, {}, without=key)


def _write_table(table: str, values: dict[str, TomlValue], without: str = "") -> None:
    path = user_settings_file()
    text = read_settings_text(path)
    before = parse_settings(path, text).get(table, {})
    if not isinstance(before, dict):
        raise UsageError(f"{path}: {table} has to be a table, [{table}]")
    after = {key: value for key, value in before.items() if key != without} | values
    if after != before:
        replace_text(path, text, set_table(text, (table,), after) if after else remove_table(text, (table,)))


PRESETS_TABLE = "presets"


def read_presets() -> dict[str, tuple[Path, Any]]:
    """What is under each name, and in which file.

    Raises:
        UsageError: a file cannot be read or used, or somebody else could have written it.
    """
    found: dict[str, tuple[Path, Any]] = {}
    for path in (state_home() / SETTINGS_FILE, *current_paths(SETTINGS_FILE)):
        table = parse_settings(path, read_settings_text(path)).get(PRESETS_TABLE, {})
        if not isinstance(table, dict):
            raise UsageError(f"{path}: presets is no table; write each as [presets.NAME]")
        found |= {name: (path, entry) for name, entry in table.items()}
    return dict(sorted(found.items()))


def save_preset(name: str, values: Mapping[str, TomlValue]) -> Path:
    """Write a preset into the working folder's file, in place of one of that name; gives its path.

    Raises:
        UsageError: the file cannot be used, or somebody else could have written it, or that table is written in a way
            that cannot be changed.
        OSError: it cannot be written; it is as it was.
    """
    path = require_current_folder() / SETTINGS_FILE
    text = read_settings_text(path)
    parse_settings(path, text)
    replace_text(path, text, set_table(text, (PRESETS_TABLE, name), values))
    return path


def delete_preset(name: str, path: Path) -> None:
    """Take a preset out of a file.

    Raises:
        UsageError: as :func:`save`.
        OSError: as :func:`save`.
    """
    text = read_settings_text(path)
    parse_settings(path, text)
    replace_text(path, text, remove_table(text, (PRESETS_TABLE, name)))
