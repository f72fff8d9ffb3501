"""SSH hosts of the user: host keys, named groups, checks, GPU use, and configuration for ``ssh POOL``."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyward_core import providers
from skyward_core.client.settings_file import read_table, rename_entry, replace_text, settings_paths, write_table
from skyward_core.model.errors import UsageError, error_message
from skyward_core.model.machines import Check
from skyward_core.model.machines import GpuUse as GpuUse
from skyward_core.providers.provider import ReachedOverSSH
from skyward_core.providers.ssh.free_gpu_choice import HostGpuUsage as HostGpuUsage
from skyward_core.providers.ssh.provider import SSH
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.store.state_folder import read_settings_files
from skyward_core.transport.ssh import connection, ssh_config_export
from skyward_core.transport.ssh import known_hosts as host_keys
from skyward_core.transport.ssh.effective_ssh_config import resolve
from skyward_core.transport.ssh.host_address import Target
from skyward_core.util.terminal_safe_text import sanitize_line


@dataclass(frozen=True, slots=True)
class PresentedHostKey:
    """The key that a host shows now, beside what the known_hosts files say; ``host``: as it was asked for."""

    host: str
    key: host_keys.ServerKey
    known: host_keys.KnownKeys

    def is_known(self) -> bool:
        """Whether it is believed already; where not, it may be.

        Raises:
            HostKeyError: it is revoked, or another of its kind is known, so that this one may be a stranger's.
        """
        if self.known.is_revoked(self.key.key):
            raise host_keys.refused_key_error(self.host, "its key is revoked")
        if self.known.verdict(self.key.key) == "known":
            return True
        if any(host_keys.key_type(other) == self.key.key_type for other in self.known.trusted):
            raise host_keys.changed_key_error(self.key, self.known)
        return False

    def accept(self) -> Path:
        """Write it down as known; returns the file.

        Raises:
            HostKeyError: the file cannot be written.
        """
        return host_keys.accept_key(self.key)


def fetch_host_key(host: str, known_hosts: str | None = None) -> PresentedHostKey:
    """Ask a host for its key; nothing else is sent to it.

    Args:
        host: as the person calls it, ``[user@]name[:port]``.
        known_hosts: the file to go by; None for those of the person's SSH configuration and our own.

    Raises:
        HostKeyError: the key of a jump host is not known, or a file cannot be read.
        Unreachable: the host cannot be reached.
        PoolError: it showed no key.
        UsageError: the SSH configuration cannot be used.
    """
    return asyncio.run(_fetch_host_key(host, known_hosts))


async def _fetch_host_key(host: str, known_hosts: str | None) -> PresentedHostKey:
    target = Target("", known_hosts=known_hosts).with_host(host)
    key = await connection.fetch_host_key(target)
    route = await resolve(target)
    return PresentedHostKey(host, key, host_keys.look_up(route.known_hosts, key.name, key.port, route.revoked))


def ssh_config(ledger: Ledger, pool: PoolRow, node: int) -> Path:
    """Write down how to log in to the nodes of a pool that is up, for ``ssh -F FILE POOL-NODE``.

    Raises:
        UsageError: it has no such node, or is not on hosts reached over SSH.
        OSError: the file cannot be written.
    """
    return _write_ssh_config(ledger, pool, node, pool.name)


def _write_ssh_config(ledger: Ledger, pool: PoolRow, node: int, alias: str) -> Path:
    machines = ledger.machines(pool.token)
    provider = providers.provider_from_json(pool.provider)
    if not isinstance(provider, ReachedOverSSH):
        raise UsageError(f"pool {pool.name} is on {provider.name}: there is no host to log in to")
    if node >= len(machines):
        nodes = f"{len(machines)} node{'' if len(machines) == 1 else 's'}"
        raise UsageError(f"pool {pool.name} has {nodes}, 0 to {len(machines) - 1}; not {node}")
    targets = [provider.target(machine.address) for machine in machines]
    return asyncio.run(ssh_config_export.write(alias, targets))


def copy_command(ledger: Ledger, pool: PoolRow, node: int, folder: str) -> str:
    """What a person types to have a folder of a node, also of a pool that has ended.

    Raises:
        UsageError: as :func:`ssh_config`.
        OSError: as there.
    """
    file = _write_ssh_config(ledger, pool, node, pool.key)  # its name may be another pool's by now
    target = f"outputs/{pool.key}"
    words = ["scp", "-r", "-F", str(file), f"{pool.key}-{node}:{folder}", f"{target}/n{node}"]
    return f"mkdir -p {shlex.quote(target)} && {shlex.join(words)}"


def include_ssh_config() -> str:
    """Have the person's own ``~/.ssh/config`` include what :func:`ssh_config` writes; the line added, or ""."""
    return ssh_config_export.include_line() if ssh_config_export.add_include_line() else ""


HOSTS_TABLE = "hosts"
LONGEST = 60  # characters of a group's name
MARKS = set("@,\"'\\=[]#")


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Hosts by one name.

    Attributes:
        file: the ``skyward.toml`` that it stands in.
    """

    name: str
    file: Path
    hosts: Sequence[str]

    def add_host(self, host: str) -> None:
        """Have one more host in it.

        Raises:
            UsageError: that is none, or is in it; or the file cannot be used or changed.
            OSError: it cannot be written; it is as it was.
        """
        _save_group(self.file, self.name, [*self.hosts, self._check_new_host(host)])

    def replace_host(self, host: str, other: str) -> None:
        """Have another host in a host's place; raises as :meth:`added`."""
        new = self._check_new_host(other)
        _save_group(self.file, self.name, [new if each == host else each for each in self.hosts])

    def remove_host(self, host: str) -> None:
        """Have it without a host; raises as :meth:`added`, and where it would be empty."""
        left = [each for each in self.hosts if each != host]
        if not left:
            raise UsageError(f"{sanitize_line(host)} is the last host of {sanitize_line(self.name)}: remove the group")
        _save_group(self.file, self.name, left)

    def rename(self, name: str) -> None:
        """Call it otherwise; raises as :meth:`added`."""
        name = _check_group_name(name)
        text, table = self._read_file()
        if name in table:
            raise UsageError(f"{self.file} has a group {name} already")
        replace_text(self.file, text, rename_entry(text, (HOSTS_TABLE,), self.name, name))

    def delete(self) -> None:
        """Take it out of its file; raises as :meth:`added`."""
        text, table = self._read_file()
        write_table(self.file, text, (HOSTS_TABLE,), {name: table[name] for name in table if name != self.name})

    def _read_file(self) -> tuple[str, dict[str, Any]]:
        text, table = read_table(self.file, HOSTS_TABLE)
        if self.name not in table:
            raise UsageError(f"{self.file} has no group {self.name} any more")
        return text, table

    def _check_new_host(self, host: str) -> str:
        if (host := _check_host(host)) in self.hosts:
            raise UsageError(f"{sanitize_line(host)} is in {sanitize_line(self.name)} already")
        return host


def groups() -> list[HostGroup]:
    """All of them, those of the working folder last.

    Raises:
        UsageError: a ``skyward.toml`` cannot be used.
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
    """Begin a group with a host.

    Args:
        file: where; None for the one of the state folder, which holds everywhere.

    Raises:
        UsageError: there is one of that name, or there can be none; or the file cannot be used or changed.
        OSError: it cannot be written; it is as it was.
    """
    if (name := _check_group_name(name)) in {each.name for each in groups()}:
        raise UsageError(f"there is a group {name} already")
    _save_group(file or settings_paths()[0], name, [_check_host(host)])


def _check_group_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > LONGEST or not name.isprintable() or " " in name or MARKS & set(name):
        raise UsageError(
            f"a group's name has 1 to {LONGEST} letters that can be seen, no space, and none of @ , \" ' \\ = [ ] #"
        )
    return name


def _check_host(host: str) -> str:
    host = host.strip()
    if not host.isprintable() or not host or " " in host or "," in host or host.startswith("@"):
        raise UsageError(f"{sanitize_line(host) or 'nothing'} is no host: write gpu1, me@gpu1:2222 or an address")
    Target("").with_host(host)
    return host


def resolve_hosts(names: Sequence[str], known: Iterable[HostGroup]) -> list[str]:
    """The hosts of some groups, and those that are named themselves, each once.

    Args:
        names: of groups, with or without ``@``, or of hosts; none for all groups.

    Raises:
        UsageError: there is no such group, or are none at all.
    """
    by_name = {group.name: group.hosts for group in known}
    found: list[str] = []
    for name in names or by_name:
        group = name.removeprefix("@")
        if name.startswith("@") and group not in by_name:
            raise UsageError(f"There is no group {sanitize_line(group)!r} under [hosts] in skyward.toml.")
        found += by_name.get(group, [name])
    if not found:
        raise UsageError("there are no groups under [hosts] in skyward.toml: name hosts, or write some there")
    return list(dict.fromkeys(found))


def list_gpu_use(hosts: Sequence[str], said: Callable[[HostGpuUsage], None] = lambda seen: None) -> list[HostGpuUsage]:
    """Each host's GPUs and who uses them, in the order of the hosts; nothing is left on them.

    Waits for all: for a host that does not answer some seconds.

    Args:
        said: hears each as soon as it is known, in the thread that called; also of one whose name is no host's.
    """

    async def one(host: str) -> HostGpuUsage:
        try:
            seen = await SSH([host]).look_at(host)
        except UsageError as error:
            seen = HostGpuUsage(host, (), error_message(error).rstrip("."), False)
        said(seen)
        return seen

    async def every() -> list[HostGpuUsage]:
        return await asyncio.gather(*map(one, hosts))

    return asyncio.run(every())


def check(host: str) -> list[Check]:
    """What works on a host, in words: reachable, its key, Python, disk, GPUs, address, clock.

    Raises:
        UsageError: that is no host's name.
    """
    provider = SSH([host])
    return asyncio.run(provider.check())


def as_json(seen: HostGpuUsage) -> dict[str, Any]:
    """A look for programs: bytes, percent, and of each GPU its state in words."""
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


# -- there --------------------------------------------------------------------------------------------------


# -- here ---------------------------------------------------------------------------------------------------
