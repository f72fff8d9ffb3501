"""``skyward-tui trust`` and ``ssh``: whose key to believe, and a shell on a pool's node."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys

from skyward_core import providers
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError
from skyward_core.providers.base import ReachedOverSSH
from skyward_core.transport.ssh import connect, host_keys, openssh_config
from skyward_core.transport.ssh.target import Target

from ..words import count
from .console import Console
from .reach import opened, up


def trust(host: str, known_hosts: str | None, yes: bool, console: Console) -> int:
    """Show a host's key, and write it down as known if the person says so.

    Raises:
        HostKeyError: another key of the host is known, so this one may be a stranger's.
        UsageError: there is nobody to ask.
    """
    key, known = asyncio.run(_look(host, known_hosts))
    found = {"host": host, "kind": key.kind, "fingerprint": key.fingerprint}
    console.note(f"host {host} ({key.name} port {key.port}) shows the {key.kind} key {key.fingerprint}")
    if known.is_revoked(key.key):
        raise host_keys.refused(host, "its key is revoked")
    if known.verdict(key.key) == "known":
        console.note("it is known already")
        console.result(found | {"accepted": True, "file": None})
        return exit_status.OK
    if any(host_keys.kind(other) == key.kind for other in known.trusted):
        raise host_keys.changed(key, known)
    if not yes:
        if not console.is_terminal:
            raise UsageError(
                "nobody is here to compare fingerprints: look at it on the host, then give --yes"
            )
        if not console.confirm("is it the one that the host itself prints? then accept it"):
            console.note("it was not accepted")
            console.result(found | {"accepted": False, "file": None})
            return exit_status.FAILED
    file = host_keys.accept(key)
    console.note(f"written to {file}")
    console.result(found | {"accepted": True, "file": str(file)})
    return exit_status.OK


async def _look(host: str, known_hosts: str | None) -> tuple[host_keys.ServerKey, host_keys.Known]:
    target = Target("", known_hosts=known_hosts).named(host)
    key = await connect.fetch_host_key(target)
    route = await connect.resolve(target)
    return key, host_keys.look_up(route.known_hosts, key.name, key.port, route.revoked)


def shell(pool: str, node: int, include: bool, console: Console) -> int:
    """Become ``ssh`` to a node of a pool.

    Raises:
        UsageError: no such pool is up, it has no such node, or it is not on hosts reached over SSH; or there is
            no ``ssh`` here.
    """
    if shutil.which("ssh") is None:
        raise UsageError("there is no ssh on this machine's PATH: install OpenSSH's client")
    with opened(console) as session:
        up(session, (pool,))
        row = next(row for row in session.ledger.live() if row.name == pool)
        machines = session.ledger.machines(row.token)
    provider = providers.from_json(row.provider)
    if not isinstance(provider, ReachedOverSSH):
        raise UsageError(f"pool {pool} is on {provider.name}: there is no host to log in to")
    if node >= len(machines):
        raise UsageError(
            f"pool {pool} has {count(len(machines), 'node')}, 0 to {len(machines) - 1}; not {node}"
        )
    targets = [provider.target(machine.address) for machine in machines]
    file = asyncio.run(openssh_config.write(pool, targets))
    if include and openssh_config.add_include_line():
        console.note(
            f"added to ~/.ssh/config: {openssh_config.include_line()}; now plain `ssh {pool}-{node}` works too"
        )
    sys.stdout.flush()
    os.execvp("ssh", ["ssh", "-F", str(file), f"{pool}-{node}"])
