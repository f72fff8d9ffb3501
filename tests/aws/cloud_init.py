"""User-data as cloud-init reads it, the part of it that the bed knows.

Forms: a script (``#!``), ``#cloud-config`` and ``#cloud-boothook``, each alone or as part of a MIME message, gzipped or
not. Of cloud-config: bootcmd, write_files, ssh_keys (ed25519), ssh_authorized_keys, disable_root, runcmd; and some keys
that change nothing here. What is not known is a problem, which ``cloud-init status`` and the bed tell.
"""

from __future__ import annotations

import base64
import gzip
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import message_from_bytes
from typing import Any

import yaml

# Of no consequence on a host of the lab.
_IGNORED = {
    *(
        "growpart",
        "no_ssh_fingerprints",
        "package_update",
        "package_upgrade",
        "preserve_hostname",
        "resize_rootfs",
    ),
    *(
        "ssh",
        "ssh_deletekeys",
        "ssh_genkeytypes",
        "ssh_publish_hostkeys",
        "ssh_pwauth",
        "ssh_quiet_keygen",
        "timezone",
    ),
}


@dataclass(slots=True)
class Wish:
    """What user-data asks for.

    Attributes:
        host_key: private, as OpenSSH writes it; empty for the host's own.
        authorized: public keys beside the key pair's.
        early: shell text that runs before sshd starts.
        scripts: run after that, in order.
        problems: what could not be understood.
    """

    host_key: str = ""
    authorized: list[str] = field(default_factory=list)
    root_may_log_in: bool = False
    early: list[str] = field(default_factory=list)
    scripts: list[bytes] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read(data: bytes) -> Wish:
    """Never fails: cloud-init goes on with what it understands."""
    wish = Wish()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    for part in _parts(data):
        _take(part, wish)
    return wish


def _parts(data: bytes) -> Iterator[bytes]:
    head = data[:200].lower()
    if b"content-type: multipart" in head or b"mime-version:" in head:
        for part in message_from_bytes(data).walk():
            if not part.is_multipart():
                content = part.get_payload(decode=True)
                yield content if isinstance(content, bytes) else b""
    elif data.strip():
        yield data


def _take(part: bytes, wish: Wish) -> None:
    if part.startswith(b"#!"):
        wish.scripts.append(part)
    elif part.startswith(b"#cloud-boothook"):
        wish.early.insert(0, part.partition(b"\n")[2].decode())
    elif part.startswith(b"#cloud-config"):
        try:
            config = yaml.safe_load(part)
        except yaml.YAMLError as error:
            wish.problems.append(f"cloud-config is no YAML: {error}")
            return
        _configure(config or {}, wish)
    else:
        wish.problems.append(f"unhandled user-data that begins with {part[:20]!r}")


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
            if others := set(value) - {"ed25519_private", "ed25519_public"}:
                wish.problems.append(f"host keys of other kinds than ed25519: {', '.join(sorted(others))}")
        elif name == "ssh_authorized_keys":
            wish.authorized.extend(value)
        elif name == "disable_root":
            wish.root_may_log_in = not value
        elif name not in _IGNORED:
            wish.problems.append(f"cloud-config's {name!r} is not known to the bed")


def _shell(commands: list[Any]) -> str:
    """One line for each: a list is a command's words, a text is the shell's."""
    return "\n".join(shlex.join(map(str, one)) if isinstance(one, list) else str(one) for one in commands)


def _write(file: dict[str, Any]) -> str:
    content = file.get("content", "")
    raw = content if isinstance(content, bytes) else str(content).encode()
    encoding = str(file.get("encoding", "")).lower()
    if "b64" in encoding or "base64" in encoding:
        raw = base64.b64decode(raw)
    if "gz" in encoding:
        raw = gzip.decompress(raw)
    path = shlex.quote(file["path"])
    into = ">>" if file.get("append") else ">"
    text = base64.b64encode(raw).decode()
    lines = [f'mkdir -p "$(dirname {path})"', f"base64 -d {into} {path} <<'END'\n{text}\nEND"]
    lines.append(f"chmod {shlex.quote(str(file.get('permissions', '0644')))} {path}")
    if owner := file.get("owner"):
        lines.append(f"chown {shlex.quote(owner)} {path}")
    return "\n".join(lines)
