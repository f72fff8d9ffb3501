"""A person's settings, changed in the ``skyward.toml`` of their home: all else in it stays as they wrote it."""

from __future__ import annotations

from typing import Any

from ..model.errors import UsageError
from .edited_toml import TomlValue, with_table, without_table
from .kept_hosts import own_file
from .own_settings import KEYS, SETTINGS, TABLES, check
from .toml_file import parsed, put_text, text_of


def given() -> dict[str, Any]:
    """What the file says, by table and name; whether it can be used nobody has looked at.

    Raises:
        UsageError: the file cannot be read or used, or somebody else could have written it.
    """
    whole = parsed(own_file(), text_of(own_file()))
    tables = {name: whole.get(name, {}) for name in TABLES}
    return {
        f"{name}.{key}": value
        for name, table in tables.items()
        if isinstance(table, dict)
        for key, value in table.items()
    }


def change(name: str, value: TomlValue) -> None:
    """Have a setting be this from now on; one of the table of keys is the app's to look at.

    Args:
        name: as :class:`.own_settings.OwnSetting` has it; ``keys.`` and an action's id for a key.

    Raises:
        UsageError: there is no such setting, or it cannot be this; or the file cannot be used or changed.
        OSError: it cannot be written; it is as it was.
    """
    table, _, key = name.partition(".")
    if table != KEYS:
        settings = [each for each in SETTINGS if each.name == name]
        if not settings:
            raise UsageError(f"there is no setting {name}")
        try:
            check(settings[0], value)
        except ValueError as error:
            raise UsageError(f"{name} cannot be that: {error}") from None
    _put(table, {key: value})


def forget(name: str) -> None:
    """Have the default hold again.

    Raises:
        UsageError, OSError: as :func:`change`.
    """
    table, _, key = name.partition(".")
    _put(table, {}, without=key)


def _put(table: str, values: dict[str, TomlValue], without: str = "") -> None:
    path = own_file()
    text = text_of(path)
    before = parsed(path, text).get(table, {})
    if not isinstance(before, dict):
        raise UsageError(f"{path}: {table} has to be a table, [{table}]")
    after = {key: value for key, value in before.items() if key != without} | values
    if after != before:
        put_text(path, text, with_table(text, (table,), after) if after else without_table(text, (table,)))
