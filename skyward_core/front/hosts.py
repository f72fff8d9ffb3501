"""Hosts by themselves: whose key to believe, and the way for a plain ``ssh`` to a pool's nodes."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from pathlib import Path

from .. import providers
from ..model.errors import UsageError
from ..providers.base import ReachedOverSSH
from ..store.ledger import Ledger
from ..store.ledger_rows import PoolRow
from ..transport.ssh import connect, host_keys, openssh_config
from ..transport.ssh.route import resolve
from ..transport.ssh.target import Target


@dataclass(frozen=True, slots=True)
class ShownKey:
    """The key that a host shows now, beside what the known_hosts files say; ``host``: as it was asked for."""

    host: str
    key: host_keys.ServerKey
    known: host_keys.Known

    def is_known(self) -> bool:
        """Whether it is believed already; where not, it may be.

        Raises:
            HostKeyError: it is revoked, or another of its kind is known, so that this one may be a stranger's.
        """
        if self.known.is_revoked(self.key.key):
            raise host_keys.refused(self.host, "its key is revoked")
        if self.known.verdict(self.key.key) == "known":
            return True
        if any(host_keys.kind(other) == self.key.kind for other in self.known.trusted):
            raise host_keys.changed(self.key, self.known)
        return False

    def accept(self) -> Path:
        """Write it down as known; returns the file.

        Raises:
            HostKeyError: the file cannot be written.
        """
        return host_keys.accept(self.key)


def shown_key(host: str, known_hosts: str | None = None) -> ShownKey:
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
    return asyncio.run(_look(host, known_hosts))


async def _look(host: str, known_hosts: str | None) -> ShownKey:
    target = Target("", known_hosts=known_hosts).named(host)
    key = await connect.fetch_host_key(target)
    route = await resolve(target)
    return ShownKey(host, key, host_keys.look_up(route.known_hosts, key.name, key.port, route.revoked))


def ssh_config(ledger: Ledger, pool: PoolRow, node: int) -> Path:
    """Write down how to log in to the nodes of a pool that is up, for ``ssh -F FILE POOL-NODE``.

    Raises:
        UsageError: it has no such node, or is not on hosts reached over SSH.
        OSError: the file cannot be written.
    """
    return _written(ledger, pool, node, pool.name)


def _written(ledger: Ledger, pool: PoolRow, node: int, alias: str) -> Path:
    machines = ledger.machines(pool.token)
    provider = providers.from_json(pool.provider)
    if not isinstance(provider, ReachedOverSSH):
        raise UsageError(f"pool {pool.name} is on {provider.name}: there is no host to log in to")
    if node >= len(machines):
        nodes = f"{len(machines)} node{'' if len(machines) == 1 else 's'}"
        raise UsageError(f"pool {pool.name} has {nodes}, 0 to {len(machines) - 1}; not {node}")
    targets = [provider.target(machine.address) for machine in machines]
    return asyncio.run(openssh_config.write(alias, targets))


def copy_command(ledger: Ledger, pool: PoolRow, node: int, folder: str) -> str:
    """What a person types to have a folder of a node, also of a pool that has ended.

    Raises:
        UsageError: as :func:`ssh_config`.
        OSError: as there.
    """
    file = _written(ledger, pool, node, pool.key)  # its name may be another pool's by now
    target = f"outputs/{pool.key}"
    words = ["scp", "-r", "-F", str(file), f"{pool.key}-{node}:{folder}", f"{target}/n{node}"]
    return f"mkdir -p {shlex.quote(target)} && {shlex.join(words)}"


def include_ssh_config() -> str:
    """Have the person's own ``~/.ssh/config`` include what :func:`ssh_config` writes; the line added, or ""."""
    return openssh_config.include_line() if openssh_config.add_include_line() else ""
