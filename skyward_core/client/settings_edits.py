"""In-place edits of ``skyward.toml`` that preserve its layout and comments."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import UsageError, convert_errors
from skyward_core.node.bootstrap.host_inspection import distrust_reason
from skyward_core.store.default_and_forbidden_working_folders import current_paths
from skyward_core.store.state_folder import SETTINGS_FILE, state_home
from skyward_core.util import safe_file_access

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.container import Container
    from tomlkit.items import Item


def read_settings_text(path: Path) -> str:
    """Return the text of a ``skyward.toml``; "" if the file does not exist.

    Raises:
        UsageError: If the file cannot be read, or another user could have written it.
    """
    if reason := distrust_reason(str(path)):
        raise UsageError(f"Refusing to read {path}: {reason}. Run from a folder that only you can write to")
    with convert_errors(f"{path} cannot be read", UsageError):
        try:
            data = safe_file_access.read_bytes(path, safe_file_access.MAX_SETTINGS_BYTES)
        except FileNotFoundError:
            return ""
    with convert_errors(f"{path} does not parse", UsageError, UnicodeDecodeError):
        return data.decode()  # decode bytes, because read_text would convert the line endings


def parse_settings(path: Path, text: str) -> dict[str, Any]:
    """Parse the text of a ``skyward.toml``.

    Raises:
        UsageError: If the text is not TOML. The message names the file.
    """
    with convert_errors(f"{path} does not parse", UsageError, ValueError):
        return safe_file_access.parse_toml(text)


def settings_paths() -> list[Path]:
    """Return the paths of the user's settings file, and of the working folder's file, which takes precedence."""
    return [state_home() / SETTINGS_FILE, *current_paths(SETTINGS_FILE)]


def read_table(path: Path, name: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a ``skyward.toml``, and one of its tables.

    Raises:
        UsageError: If the file cannot be read or used, another user could have written it, or the value is not a table.
    """
    text = read_settings_text(path)
    table = parse_settings(path, text).get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {name} is not a table. Write it as [{name}]")
    return text, table


def write_table(path: Path, text: str, names: Sequence[str], values: Mapping[str, TomlValue]) -> None:
    """Replace all values of a table; without values, remove the table.

    Args:
        text: Text of the file, as it was read.

    Raises:
        UsageError: If the file has changed since it was read, or its layout does not allow the edit.
        OSError: If the file cannot be written; the old file stays unchanged.
    """
    replace_text(path, text, set_table(text, names, values) if values else remove_table(text, names))


def replace_text(path: Path, before: str, text: str) -> None:
    """Write a file if its text is unchanged since it was read. A symbolic link stays a link. Raises errors like
    :func:`write_table`.
    """
    if read_settings_text(path) != before:
        raise UsageError(f"{path} was changed by another process. Try again")
    target = safe_file_access.resolve_path(path)
    mode = target.stat().st_mode & 0o777 if safe_file_access.exists(target) else 0o666
    safe_file_access.write_atomic(target, text.encode(), mode=mode)


_MISSING = object()

TomlValue = str | bool | int | float | Sequence[str] | Mapping[str, str]


def set_table(text: str, path: Sequence[str], values: Mapping[str, TomlValue]) -> str:
    """Return the text after replacing all values of a table; everything else stays unchanged.

    Args:
        text: Whole TOML document.
        path: Names of the nested tables, outermost first.

    Raises:
        UsageError: If the layout of the table does not allow the edit, or a value cannot be written.
    """
    import tomlkit

    line_end = _line_end(text)
    if text and not text.endswith("\n"):
        text += line_end
    document = _parse_document(text, path)
    if found := _find_table(document, path):
        container, index = found[-1]
        _update_table(container.body[index][1], values, line_end)
        return _verify_edit(document.as_string(), text, path, dict(values))
    gap = line_end if text.strip() and text.splitlines()[-1].strip() else ""
    header = f"[{tomlkit.key(list(path)).as_string()}]{line_end}"
    entries = [
        f"{tomlkit.key(name).as_string()} = {_inline_item(value).as_string()}{line_end}"
        for name, value in values.items()
    ]
    return _verify_edit("".join([text, gap, header, *entries]), text, path, dict(values))


def rename_entry(text: str, path: Sequence[str], old: str, new: str) -> str:
    """Return the text after renaming a key of a table; the entry keeps its position.

    Raises:
        UsageError: In the same cases as in :func:`set_table`.
    """
    import tomlkit

    document = _parse_document(text, path)
    container, index = _require_table(document, path)[-1]
    body = container.body[index][1].value.body
    for at, (key, item) in enumerate(body):
        if key is not None and key.key == old:
            body[at] = tomlkit.key(new), item
    values: Any = tomllib.loads(text)
    for name in path:
        values = values[name]
    renamed = {new if name == old else name: value for name, value in values.items()}
    return _verify_edit(document.as_string(), text, path, renamed)


def remove_table(text: str, path: Sequence[str]) -> str:
    """Return the text without a table. Comments above the next table's header stay.

    Raises:
        UsageError: If the table does not exist, or its layout does not allow the edit.
    """
    document = _parse_document(text, path)
    found = _require_table(document, path)
    trivia = _trailing_trivia(found[-1][0].body[found[-1][1]][1])
    for container, index in reversed(found):
        container.body[index : index + 1] = trivia
        if any(key is not None for key, _ in container.body):
            break
        # Next, remove the outer table, because tomlkit would print its header although it is empty.
        trivia = container.body
    rest = document.as_string().rstrip()
    return _verify_edit(rest + _line_end(text) if rest else "", text, path, _MISSING)


def _parse_document(text: str, path: Sequence[str]) -> TOMLDocument:
    import tomlkit  # imported late, because most commands change no settings

    try:
        return tomlkit.parse(text)
    except ValueError as error:
        raise _edit_error(path) from error


# Containers and indexes of nested tables, the outermost first.
TablePath = list[tuple["Container", int]]


def _find_table(container: Container, path: Sequence[str]) -> TablePath:
    """Return the location of a table that has its own header; empty if there is none."""
    from tomlkit.items import Table

    for index, (key, item) in enumerate(container.body):
        if key is None or key.key != path[0] or key.is_dotted() or not isinstance(item, Table):
            continue
        if len(path) == 1:
            return [(container, index)]
        if found := _find_table(item.value, path[1:]):
            return [(container, index), *found]
    return []


def _require_table(document: Container, path: Sequence[str]) -> TablePath:
    if found := _find_table(document, path):
        return found
    raise _edit_error(path)


def _update_table(table: Any, values: Mapping[str, TomlValue], line_end: str) -> None:
    """Change a table in place. New values go after the table's last value, before comments and nested tables."""
    import tomlkit
    from tomlkit.items import AoT, Array, Table

    for name in [name for name in table if name not in values]:
        table.remove(name)
    for name, value in values.items():
        if name not in table or table[name] == value:
            continue
        if isinstance(table[name], Table) and isinstance(value, Mapping):
            _update_table(table[name], value, line_end)
        elif not (isinstance(table[name], Array) and isinstance(value, list) and _update_array(table[name], value)):
            table[name] = value
    added = [(tomlkit.key(name), _inline_item(value)) for name, value in values.items() if name not in table]
    body = table.value.body
    own = [at for at, (key, item) in enumerate(body, 1) if key is not None and not isinstance(item, AoT | Table)]
    for _, item in added:
        item.trivia.trail = line_end
    body[(own or [0])[-1] : (own or [0])[-1]] = added


def _inline_item(value: TomlValue) -> Item:
    import tomlkit

    if not isinstance(value, Mapping):
        return tomlkit.item(value)
    table = tomlkit.inline_table()
    table.update(value)
    return table


def _update_array(array: Any, values: Any) -> bool:
    """Update a list in place, so that the comments of unchanged items stay. Return whether the list now has the wanted
    items.
    """
    if len(array) == len(values):
        for at, item in enumerate(values):
            if array[at] != item:
                array[at] = item
    else:
        for at in reversed(range(len(array))):
            if array[at] not in values:
                del array[at]
        array.extend(values[len(array) :])
    return bool(array == values)


def _trailing_trivia(table: Any) -> list[Any]:
    """Return the empty lines and comments at the end of a table, which precede the next header."""
    body = table.value.body
    while body and isinstance(body[-1][1], type(table)):
        body = body[-1][1].value.body
    own = [at for at, (key, _) in enumerate(body, 1) if key is not None]
    return list(body[(own or [0])[-1] :])


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _verify_edit(made: str, before: str, path: Sequence[str], value: object) -> str:
    """Return the edited text, after checking that it has the wanted values and that all others are unchanged."""
    try:
        parsed, parsed_before = tomllib.loads(made), tomllib.loads(before)
        made.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{'.'.join(path)} contains a character that cannot be saved: {error.reason}") from error
    except ValueError as error:
        raise _edit_error(path) from error
    if _pop_table(parsed, path) != value:
        raise _edit_error(path)
    _pop_table(parsed_before, path)
    if parsed != parsed_before:
        raise _edit_error(path)
    return made


def _pop_table(document: dict[str, Any], path: Sequence[str]) -> object:
    """Remove a table from a document, and outer tables that become empty. Return the value of the table."""
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
    return UsageError(f"{path[-1]} is not a separate table [{'.'.join(path)}] in the file. Edit the file by hand")
