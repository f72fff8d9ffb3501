"""Subset of cloud-init's user-data that pools and tests of the simulation use.

Supported forms: a script (``#!``), or ``#cloud-config`` with bootcmd, write_files, ssh_keys (ed25519), runcmd, and some
keys without effect on hosts of the lab. Everything else is a problem, which ``cloud-init status`` and the simulation
report.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any

import yaml

# Without effect on a host of the lab.
_IGNORED = {"package_update", "package_upgrade", "ssh_deletekeys", "ssh_genkeytypes", "ssh_pwauth"}


@dataclass(slots=True)
class Wish:
    """Parsed user-data.

    Attributes:
        host_key: Private key, as OpenSSH writes it; empty for the host's own.
        early: Shell text that runs before sshd starts.
        scripts: Scripts that run after that, in order.
        problems: Parts that were not understood.
    """

    host_key: str = ""
    early: list[str] = field(default_factory=list)
    scripts: list[bytes] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read(data: bytes) -> Wish:
    """Return the requests of user-data. Never fails: cloud-init continues with the parts that it understands."""
    wish = Wish()
    if data.startswith(b"#!"):
        wish.scripts.append(data)
    elif data.startswith(b"#cloud-config"):
        try:
            _configure(yaml.safe_load(data) or {}, wish)
        except yaml.YAMLError as error:
            wish.problems.append(f"cloud-config is no YAML: {error}")
    elif data.strip():
        wish.problems.append(f"unhandled user-data that begins with {data[:20]!r}")
    return wish


def _configure(config: dict[str, Any], wish: Wish) -> None:
    for name, value in config.items():
        if name == "bootcmd":
            wish.early.append(_shell(value))
        elif name == "write_files":
            wish.early.extend(_write(file) for file in value)
        elif name == "runcmd":
            wish.scripts.append(f"#!/bin/sh\n{_shell(value)}\n".encode())
        elif name == "ssh_keys":
            wish.host_key = value.get("ed25519_private", "")
        elif name not in _IGNORED:
            wish.problems.append(f"cloud-config's {name!r} is not known to the bed")


def _shell(commands: list[Any]) -> str:
    """Return shell code with one line per command. A list is the words of a command, a text is shell code."""
    return "\n".join(shlex.join(map(str, one)) if isinstance(one, list) else str(one) for one in commands)


def _write(file: dict[str, Any]) -> str:
    path = shlex.quote(file["path"])
    return "\n".join(
        (
            f'mkdir -p "$(dirname {path})"',
            f"printf %s {shlex.quote(file['content'])} > {path}",
            f"chmod {shlex.quote(file['permissions'])} {path}",
        )
    )
