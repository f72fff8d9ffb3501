"""Groups of hosts that a person has: listed, edited in ``skyward.toml``, and looked at for who uses their GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.errors import UsageError, what_of
from ..model.gpu_use import GpuUse as GpuUse
from ..model.machine import Check
from ..providers.ssh.provider import SSH
from ..providers.ssh.shared import HostLook as HostLook
from ..store import kept_hosts as kept
from ..transport.ssh.target import Target
from ..wire.safe_text import field

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

    def added(self, host: str) -> None:
        """Have one more host in it.

        Raises:
            UsageError: that is none, or is in it; or the file cannot be used or changed.
            OSError: it cannot be written; it is as it was.
        """
        kept.save(self.file, self.name, [*self.hosts, self._new(host)])

    def exchanged(self, host: str, other: str) -> None:
        """Have another host in a host's place; raises as :meth:`added`."""
        new = self._new(other)
        kept.save(self.file, self.name, [new if each == host else each for each in self.hosts])

    def removed(self, host: str) -> None:
        """Have it without a host; raises as :meth:`added`, and where it would be empty."""
        left = [each for each in self.hosts if each != host]
        if not left:
            raise UsageError(f"{field(host)} is the last host of {field(self.name)}: remove the group")
        kept.save(self.file, self.name, left)

    def renamed(self, name: str) -> None:
        """Call it otherwise; raises as :meth:`added`."""
        kept.rename(self.file, self.name, _name(name))

    def deleted(self) -> None:
        """Take it out of its file; raises as :meth:`added`."""
        kept.remove(self.file, self.name)

    def _new(self, host: str) -> str:
        if (host := _host(host)) in self.hosts:
            raise UsageError(f"{field(host)} is in {field(self.name)} already")
        return host


def groups() -> list[HostGroup]:
    """All of them, those of the working folder last.

    Raises:
        UsageError: a ``skyward.toml`` cannot be used.
    """
    return [HostGroup(name, path, hosts) for name, (path, hosts) in kept.read().items()]


def new_group(name: str, host: str, file: Path | None = None) -> None:
    """Begin a group with a host.

    Args:
        file: where; None for the one of the state folder, which holds everywhere.

    Raises:
        UsageError: there is one of that name, or there can be none; or the file cannot be used or changed.
        OSError: it cannot be written; it is as it was.
    """
    if (name := _name(name)) in kept.read():
        raise UsageError(f"there is a group {name} already")
    kept.save(file or kept.own_file(), name, [_host(host)])


def _name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > LONGEST or not name.isprintable() or " " in name or MARKS & set(name):
        raise UsageError(
            f"a group's name has 1 to {LONGEST} letters that can be seen, no space, and none of @ , \" ' \\ = [ ] #"
        )
    return name


def _host(host: str) -> str:
    host = host.strip()
    if not host.isprintable() or not host or " " in host or "," in host or host.startswith("@"):
        raise UsageError(f"{field(host) or 'nothing'} is no host: write gpu1, me@gpu1:2222 or an address")
    Target("").named(host)
    return host


def meant(names: Sequence[str], known: Iterable[HostGroup]) -> list[str]:
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
            raise UsageError(f"There is no group {field(group)!r} under [hosts] in skyward.toml.")
        found += by_name.get(group, [name])
    if not found:
        raise UsageError("there are no groups under [hosts] in skyward.toml: name hosts, or write some there")
    return list(dict.fromkeys(found))


def look(hosts: Sequence[str], said: Callable[[HostLook], None] = lambda seen: None) -> list[HostLook]:
    """Each host's GPUs and who uses them, in the order of the hosts; nothing is left on them.

    Waits for all: for a host that does not answer some seconds.

    Args:
        said: hears each as soon as it is known, in the thread that called; also of one whose name is no host's.
    """

    async def one(host: str) -> HostLook:
        try:
            seen = await SSH([host]).look_at(host)
        except UsageError as error:
            seen = HostLook(host, (), what_of(error).rstrip("."), False)
        said(seen)
        return seen

    async def every() -> list[HostLook]:
        return await asyncio.gather(*map(one, hosts))

    return asyncio.run(every())


def check(host: str) -> list[Check]:
    """What works on a host, in words: reachable, its key, Python, disk, GPUs, address, clock.

    Raises:
        UsageError: that is no host's name.
    """
    provider = SSH([host])
    return asyncio.run(provider.check())


def as_json(seen: HostLook) -> dict[str, Any]:
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
