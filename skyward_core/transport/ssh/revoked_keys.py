"""``RevokedHostKeys`` of ssh_config(5): keys that no host may show, as text or as OpenSSH's binary list."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from ...model.errors import HostKeyError
from ...store.user_files import read_bytes
from .asyncssh_import import asyncssh

KRL = b"SSHKRL\n\0"


def revokes(file: Path, key: asyncssh.SSHKey) -> bool:
    """Whether a file lists a key.

    Raises:
        HostKeyError: the file cannot be read or judged, by which OpenSSH refuses all hosts.
    """
    try:
        data = read_bytes(file)
    except OSError as error:
        raise _unusable(file, error.strerror or str(error)) from error
    return _in_krl(file, key) if data.startswith(KRL) else key in _keys(data)


def _keys(data: bytes) -> list[asyncssh.SSHKey]:
    found = []
    for line in data.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                found.append(asyncssh.import_public_key(text))
            except ValueError:
                continue  # as OpenSSH does
    return found


def _in_krl(file: Path, key: asyncssh.SSHKey) -> bool:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise _unusable(file, "only ssh-keygen can read it, which is not on PATH")
    with tempfile.NamedTemporaryFile(suffix=".pub") as shown:
        shown.write(key.export_public_key())
        shown.flush()
        done = subprocess.run(
            [program, "-Q", "-f", str(file), shown.name],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    if done.returncode and "REVOKED" not in done.stdout:
        raise _unusable(file, (done.stderr or done.stdout).strip())
    return done.returncode != 0


def _unusable(file: Path, why: str) -> HostKeyError:
    return HostKeyError(
        f"The list of revoked host keys {file} (RevokedHostKeys in ~/.ssh/config) cannot be used ({why}), so no host "
        "is believed; mend it, or take the line out."
    )
