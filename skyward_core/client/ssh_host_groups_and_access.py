"""SSH hosts of the user: named groups in skyward.toml, host keys, checks, GPU use, configuration for ``ssh POOL``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyward_core import providers
from skyward_core.client.settings_edits import read_table, rename_entry, replace_text, settings_paths, write_table
from skyward_core.model.errors import UsageError, error_message
from skyward_core.model.machines_checks_and_gpu_use import Check
from skyward_core.model.machines_checks_and_gpu_use import GpuUse as GpuUse
from skyward_core.providers.provider import ReachedOverSSH
from skyward_core.providers.ssh.free_gpu_choice import HostGpuUsage as HostGpuUsage
from skyward_core.providers.ssh.provider import SSH
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.store.skyward_toml import read_settings_files
from skyward_core.transport.ssh import connection
from skyward_core.transport.ssh import known_hosts as host_keys
from skyward_core.transport.ssh.host_address_and_python import Target
from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import (
    add_include_line,
    include_line,
    resolve,
    write_pool_config,
)
from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import configured_hosts as configured_hosts
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


@dataclass(frozen=True, slots=True)
class PresentedHostKey:
    """Key that a host presents, and what the known_hosts files contain about the host. ``host`` is the name as the user
    gave it.
    """

    host: str
    key: host_keys.ServerKey
    known: host_keys.KnownKeys

    def is_known(self) -> bool:
        """Check whether the key is already trusted. If not, the user may accept it.

        Raises:
            HostKeyError: If the key is revoked, or another key of the same type is known for the host: this key may be
            an attacker's.
        """
        if self.known.is_revoked(self.key.key):
            raise host_keys.refused_key_error(self.host, "its key is revoked")
        if self.known.verdict(self.key.key) == "known":
            return True
        if any(host_keys.key_type(other) == self.key.key_type for other in self.known.trusted):
            raise host_keys.changed_key_error(self.key, self.known)
        return False

    def accept(self) -> Path:
        """Add the key to the known hosts, and return the path of the file.

        Raises:
            HostKeyError: If the file cannot be written.
        """
        return host_keys.accept_key(self.key)


def fetch_host_key(host: str, known_hosts: str | None = None) -> PresentedHostKey:
    """Request the key of a host, without logging in.

    Args:
        host: Name of the host as the user gives it, ``[user@]name[:port]``.
        known_hosts: File with known keys; None for the files of the user's SSH configuration and skyward-tui's own
            file.

    Raises:
        HostKeyError: If the key of a jump host is unknown, or a file cannot be read.
        Unreachable: If the host cannot be reached.
        PoolError: If the host presents no key.
        UsageError: If the SSH configuration cannot be used.
    """
    return asyncio.run(_fetch_host_key(host, known_hosts))


async def _fetch_host_key(host: str, known_hosts: str | None) -> PresentedHostKey:
    target = Target("", known_hosts=known_hosts).with_host(host)
    key = await connection.fetch_host_key(target)
    route = await resolve(target)
    return PresentedHostKey(host, key, host_keys.look_up(route.known_hosts, key.name, key.port, route.revoked))


def ssh_config(ledger: Ledger, pool: PoolRow, node: int, alias: str = "") -> Path:
    """Write an SSH configuration for the nodes of a pool, for use as ``ssh -F FILE ALIAS-NODE``.

    Args:
        ledger: The ledger.
        pool: The pool, which may have ended.
        node: Number of a node that the file must contain.
        alias: Name for the pool in the file; "" for its own name.

    Raises:
        UsageError: If the pool has no such node, or its nodes are not reached over SSH.
        OSError: If the file cannot be written.
    """
    targets = ssh_targets(ledger, pool, "which has no hosts to log in to")
    if node >= len(targets):
        nodes = f"{len(targets)} node{'' if len(targets) == 1 else 's'}"
        raise UsageError(f"pool {pool.name} has {nodes}, 0 to {len(targets) - 1}; not {node}")
    return asyncio.run(write_pool_config(alias or pool.name, targets))


def ssh_targets(ledger: Ledger, pool: PoolRow, refusal: str) -> list[Target]:
    """Return the SSH targets of a pool's nodes.

    Raises:
        UsageError: If the nodes are not reached over SSH. ``refusal`` ends the message, after the provider's name.
    """
    provider = providers.provider_from_json(pool.provider)
    if not isinstance(provider, ReachedOverSSH):
        raise UsageError(f"pool {pool.name} is on provider {provider.name}, {refusal}")
    return [provider.target(machine.address) for machine in ledger.machines(pool.token)]


def include_ssh_config() -> str:
    """Make ``~/.ssh/config`` include the files of :func:`ssh_config`. Return the added line, or "" if it was already
    there.
    """
    return include_line() if add_include_line() else ""


def list_gpu_use(
    hosts: Sequence[str], report: Callable[[HostGpuUsage], None] = lambda seen: None
) -> list[HostGpuUsage]:
    """Return the GPUs of each host and the users of these GPUs, in the order of the hosts. No files remain on the
    hosts.

    Waits for all hosts; a host that does not answer takes some seconds.

    Args:
        report: Receives each result as soon as it is known, in the calling thread. Invalid host names are results, too.
    """

    async def one(host: str) -> HostGpuUsage:
        try:
            seen = await SSH([host]).look_at(host)
        except UsageError as error:
            seen = HostGpuUsage(host, (), error_message(error).rstrip("."), False)
        report(seen)
        return seen

    async def every() -> list[HostGpuUsage]:
        return await asyncio.gather(*map(one, hosts))

    return asyncio.run(every())


def check(host: str) -> list[Check]:
    """Check a host: reachability, host key, Python, disk, GPUs, address and clock.

    Raises:
        UsageError: If the host name is invalid.
    """
    return asyncio.run(SSH([host]).check())


def as_json(seen: HostGpuUsage) -> dict[str, Any]:
    """Return the GPU usage of a host as JSON data: memory in bytes, utilization in percent, and a state per GPU."""
    return {
        "host": seen.host,
        "reached": seen.reached,
        "why": seen.why,
        "free": sum(gpu.is_free for gpu in seen.gpus),
        "gpus": [
            {
                "number": gpu.number,
                "id": gpu.id,
                "model": gpu.model,
                "memory_used": gpu.used,
                "memory_total": gpu.total,
                "utilization": gpu.util,
                "free": gpu.is_free,
                "state": gpu.state,
                "taken_by": gpu.holder or None,
                "processes": [
                    {
                        "pid": each.pid,
                        "user": each.user or None,
                        "command": each.command or None,
                        "memory": each.memory,
                        "computes": each.computes,
                    }
                    for each in gpu.processes
                ],
            }
            for gpu in seen.gpus
        ],
    }
