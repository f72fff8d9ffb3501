"""Groups of hosts in ``skyward.toml``, ``[hosts]``: read with the file that each stands in, and changed there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..model.errors import UsageError
from .edited_toml import renamed_entry, with_table, without_table
from .home import home
from .toml_file import FILE, parsed, put_text, text_of
from .working_folder import in_current

TABLE = "hosts"


def own_file() -> Path:
    """The file of the state folder, whose groups are there in every folder."""
    return home() / FILE


def read() -> dict[str, tuple[Path, list[str]]]:
    """The hosts of each group, in the order of the files, and which file that is; of two of a name the one of the
    working folder.

    Raises:
        UsageError: a file cannot be read or used, or somebody else could have written it.
    """
    found: dict[str, tuple[Path, list[str]]] = {}
    for path in (own_file(), *in_current(FILE)):
        for name, hosts in _table(path, text_of(path)).items():
            found[name] = path, hosts
    return found


def save(path: Path, name: str, hosts: Sequence[str]) -> None:
    """Have a group hold these hosts; a new one stands behind the others.

    Raises:
        UsageError: the file cannot be used or changed, or somebody else could have written it.
        OSError: it cannot be written; it is as it was.
    """
    text = text_of(path)
    table = _raw(path, text)
    if table.get(name) != [*hosts]:
        put_text(path, text, with_table(text, (TABLE,), table | {name: [*hosts]}))


def rename(path: Path, name: str, new: str) -> None:
    """Call a group otherwise; it stays in its place.

    Raises:
        UsageError, OSError: as :func:`save`; or there is one of that name.
    """
    text = text_of(path)
    table = _there(path, text, name)
    if new in table:
        raise UsageError(f"{path} has a group {new} already")
    put_text(path, text, renamed_entry(text, (TABLE,), name, new))


def remove(path: Path, name: str) -> None:
    """Take a group out.

    Raises:
        UsageError, OSError: as :func:`save`.
    """
    text = text_of(path)
    left = {other: hosts for other, hosts in _there(path, text, name).items() if other != name}
    made = with_table(text, (TABLE,), left) if left else without_table(text, (TABLE,))
    put_text(path, text, made)


def _there(path: Path, text: str, name: str) -> dict[str, Any]:
    table = _raw(path, text)
    if name not in table:
        raise UsageError(f"{path} has no group {name} any more")
    return table


def _raw(path: Path, text: str) -> dict[str, Any]:
    table = parsed(path, text).get(TABLE, {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: hosts is no table; write [hosts], and a group in each line below")
    return table


def _table(path: Path, text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, hosts in _raw(path, text).items():
        listed = [hosts] if isinstance(hosts, str) else hosts
        if not isinstance(listed, list) or not all(isinstance(host, str) for host in listed):
            raise UsageError(f"{path}: the group {name} is no list of hosts")
        found[name] = listed
    return found
