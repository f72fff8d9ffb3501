"""``skyward-tui trust`` and ``ssh``: whose key to believe, and a shell on a pool's node."""

from __future__ import annotations

import os
import shutil
import sys

from skyward_core.front import hosts
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError

from .console import Console
from .reach import opened, up


def trust(host: str, known_hosts: str | None, yes: bool, console: Console) -> int:
    """Show a host's key, and write it down as known if the person says so.

    Raises:
        HostKeyError: another key of the host is known, so this one may be a stranger's.
        UsageError: there is nobody to ask.
    """
    shown = hosts.shown_key(host, known_hosts)
    key = shown.key
    found = {"host": host, "kind": key.kind, "fingerprint": key.fingerprint}
    console.note(f"host {host} ({key.name} port {key.port}) shows the {key.kind} key {key.fingerprint}")
    if shown.is_known():
        console.note("it is known already")
        console.result(found | {"accepted": True, "file": None})
        return exit_status.OK
    if not yes:
        if not console.is_terminal:
            raise UsageError(
                "nobody is here to compare fingerprints: look at it on the host, then give --yes"
            )
        if not console.confirm("is it the one that the host itself prints? then accept it"):
            console.note("it was not accepted")
            console.result(found | {"accepted": False, "file": None})
            return exit_status.FAILED
    file = shown.accept()
    console.note(f"written to {file}")
    console.result(found | {"accepted": True, "file": str(file)})
    return exit_status.OK


def shell(pool: str, node: int, include: bool, console: Console) -> int:
    """Become ``ssh`` to a node of a pool.

    Raises:
        UsageError: no such pool is up, it has no such node, or it is not on hosts reached over SSH; or there is
            no ``ssh`` here.
    """
    if shutil.which("ssh") is None:
        raise UsageError("there is no ssh on this machine's PATH: install OpenSSH's client")
    with opened(console) as session:
        (row,) = up(session, (pool,))
        file = hosts.ssh_config(session.ledger, row, node)
    if include and (line := hosts.include_ssh_config()):
        console.note(f"added to ~/.ssh/config: {line}; now plain `ssh {row.name}-{node}` works too")
    sys.stdout.flush()
    os.execvp("ssh", ["ssh", "-F", str(file), f"{row.name}-{node}"])
