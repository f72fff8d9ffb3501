"""Named groups of SSH hosts in skyward.toml: their reading, editing and use in commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyward_core.client.settings_edits import read_table, rename_entry, replace_text, settings_paths, write_table
from skyward_core.model.errors import UsageError
from skyward_core.store.skyward_toml import read_settings_files
from skyward_core.transport.ssh.host_address_and_python import Target
from skyward_core.util.terminal_safe_text import sanitize_line

HOSTS_TABLE = "hosts"
MAX_GROUP_NAME_LENGTH = 60  # maximum characters of a group's name
MARKS = set("@,\"'\\=[]#")


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Named group of hosts.

    Attributes:
        file: The ``skyward.toml`` that contains the group.
    """

    name: str
    file: Path
    hosts: Sequence[str]

    def add_host(self, host: str) -> None:
        """Add a host to the group.

        Raises:
            UsageError: If the host is invalid or already in the group, or the file cannot be used or changed.
            OSError: If the file cannot be written; the old file stays unchanged.
        """
        _save_group(self.file, self.name, [*self.hosts, self._check_new_host(host)])

    def replace_host(self, host: str, other: str) -> None:
        """Replace a host of the group by another host. Raises errors like :meth:`add_host`."""
        new = self._check_new_host(other)
        _save_group(self.file, self.name, [new if each == host else each for each in self.hosts])

    def remove_host(self, host: str) -> None:
        """Remove a host from the group. Raises errors like :meth:`add_host`, and a UsageError for the last host."""
        remaining = [each for each in self.hosts if each != host]
        if not remaining:
            raise UsageError(
                f"{sanitize_line(host)} is the last host of {sanitize_line(self.name)}. Remove the group instead"
            )
        _save_group(self.file, self.name, remaining)

    def rename(self, name: str) -> None:
        """Rename the group. Raises errors like :meth:`add_host`."""
        name = _check_group_name(name)
        text, table = self._read_file()
        if name in table:
            raise UsageError(f"{self.file} already has a group {name}")
        replace_text(self.file, text, rename_entry(text, (HOSTS_TABLE,), self.name, name))

    def delete(self) -> None:
        """Remove the group from its file. Raises errors like :meth:`add_host`."""
        text, table = self._read_file()
        write_table(self.file, text, (HOSTS_TABLE,), {name: table[name] for name in table if name != self.name})

    def _read_file(self) -> tuple[str, dict[str, Any]]:
        text, table = read_table(self.file, HOSTS_TABLE)
        if self.name not in table:
            raise UsageError(f"{self.file} no longer has a group {self.name}")
        return text, table

    def _check_new_host(self, host: str) -> str:
        if (host := _check_host(host)) in self.hosts:
            raise UsageError(f"{sanitize_line(host)} is already in {sanitize_line(self.name)}")
        return host


def groups() -> list[HostGroup]:
    """Return all groups; those in the working folder's file are last.

    Raises:
        UsageError: If a ``skyward.toml`` cannot be used.
    """
    found = {
        name: HostGroup(name, path, hosts)
        for path, settings in read_settings_files()
        for name, hosts in settings.hosts.items()
    }
    return list(found.values())


def _save_group(path: Path, name: str, hosts: list[str]) -> None:
    text, table = read_table(path, HOSTS_TABLE)
    if table.get(name) != hosts:
        write_table(path, text, (HOSTS_TABLE,), table | {name: hosts})


def new_group(name: str, host: str, file: Path | None = None) -> None:
    """Create a group with a host.

    Args:
        file: Target file; None for the file in the state folder, which applies in every working folder.

    Raises:
        UsageError: If the name is taken or invalid, or the file cannot be used or changed.
        OSError: If the file cannot be written; the old file stays unchanged.
    """
    if (name := _check_group_name(name)) in {each.name for each in groups()}:
        raise UsageError(f"group {name} already exists")
    _save_group(file or settings_paths()[0], name, [_check_host(host)])


def _check_group_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > MAX_GROUP_NAME_LENGTH or not name.isprintable() or " " in name or MARKS & set(name):
        raise UsageError(
            f"a group's name must have 1 to {MAX_GROUP_NAME_LENGTH} printable characters, "
            "without spaces and @ , \" ' \\ = [ ] #"
        )
    return name


def _check_host(host: str) -> str:
    host = host.strip()
    if not host.isprintable() or not host or " " in host or "," in host or host.startswith("@"):
        raise UsageError(f"{sanitize_line(host) or 'nothing'} is not a host. Write gpu1, me@gpu1:2222 or an address")
    Target("").with_host(host)
    return host


def resolve_hosts(names: Sequence[str], known: Iterable[HostGroup]) -> list[str]:
    """Return the given hosts and the hosts of the given groups, without duplicates.

    Args:
        names: Names of groups, with or without ``@``, or of hosts; empty for all groups.

    Raises:
        UsageError: If a group does not exist, or no groups exist.
    """
    by_name = {group.name: group.hosts for group in known}
    found: list[str] = []
    for name in names or by_name:
        group = name.removeprefix("@")
        if name.startswith("@") and group not in by_name:
            raise UsageError(f"[hosts] in skyward.toml has no group {sanitize_line(group)!r}.")
        found += by_name.get(group, [name])
    if not found:
        raise UsageError("[hosts] in skyward.toml has no groups. Name hosts, or add a group there")
    return list(dict.fromkeys(found))
