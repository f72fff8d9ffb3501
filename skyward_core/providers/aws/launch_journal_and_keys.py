"""Journal of EC2 launches: the pool's folder on the client, with its keys and its requests.

Each request to EC2 is recorded before it is sent, and each answer before it is used. A later client therefore knows
which resources a killed client may have created.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container
from pathlib import Path
from typing import Any

from skyward_core.model.errors import PoolError
from skyward_core.store.pool_folder import PoolKeyFolder
from skyward_core.store.state_folder import state_home
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.safe_file_access import write_atomic


class LaunchJournal(PoolKeyFolder):
    """Journal and keys of one pool on EC2."""

    provider = "aws"

    @classmethod
    def remove_folders(cls, names: Container[str]) -> None:
        """Remove the folders of pools without any remaining resources.

        Args:
            names: Folder names, derived from tags; only existing folders are removed.

        Raises:
            OSError: If a folder cannot be removed.
        """
        for path in (state_home() / cls.provider).glob("*.*"):
            if path.name in names and path.is_dir():
                cls(*path.name.rsplit(".", 1)).remove()

    def machine_known_hosts(self, machine: str) -> Path:
        """Return the path of a machine's own known_hosts file."""
        return self.path / f"known_hosts.{machine}"

    def make_keys(self) -> tuple[KeyPair, KeyPair]:
        """Create the login key and the pool's host key, unless they exist.

        Returns:
            The login key and the host key.

        Raises:
            PoolError: If the keys cannot be written.
        """
        try:
            self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
            login = self._make_key(self.login_key, f"skyward-{self.pool}")
            host = self._make_key(self.path / "host_key", f"host-of-{self.pool}")
            # All machines of the pool boot with this key, whatever their addresses. The file contains no other key.
            write_atomic(self.known_hosts, f"* {' '.join(host.public.split()[:2])}\n".encode())
        except OSError as error:
            raise PoolError(f"cannot write the keys of pool {self.pool} to {self.path}: {error}") from error
        return login, host

    def _make_key(self, path: Path, comment: str) -> KeyPair:
        public = path.with_name(f"{path.name}.pub")
        if not (path.exists() and public.exists()):
            made = make_key_pair(comment)
            write_atomic(path, made.private.encode())
            write_atomic(public, f"{made.public}\n".encode())
        return KeyPair(path.read_text(encoding="ascii"), public.read_text(encoding="ascii").strip())

    def add(self, what: str, **facts: Any) -> None:
        """Append a request or answer to the journal and flush it to disk.

        Raises:
            PoolError: If the journal cannot be written.
        """
        try:
            self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
            # The line starts with a newline, because a full disk may have cut off the previous line.
            line = f"\n{json.dumps({'what': what} | facts)}\n"
            with open(os.open(self._journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise PoolError(
                f"cannot record the requests of pool {self.pool} in {self._journal_path}: {error}"
            ) from error

    def notes(self) -> list[dict[str, Any]]:
        """Return the entries in order. Skip a line that a killed client wrote only in part.

        Raises:
            PoolError: If the journal cannot be read.
        """
        try:
            lines = self._journal_path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise PoolError(f"cannot read the recorded requests of pool {self.pool}: {error}") from error
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    @property
    def _journal_path(self) -> Path:
        return self.path / "asked.jsonl"


@value
class KeyPair(Value):
    """Ed25519 key pair in OpenSSH format.

    Attributes:
        private: Text of the private key file.
        public: Line of the public key.
    """

    private: str
    public: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r})"


def make_key_pair(comment: str) -> KeyPair:
    """Generate a key pair.

    Args:
        comment: Comment in the public key.
    """
    from skyward_core.transport.ssh.asyncssh_patches import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519", comment=comment)
    return KeyPair(key.export_private_key().decode(), key.export_public_key().decode().strip())


def machine_folder(pool: str, token: str, node: int, name: str) -> str:
    """Return the name of a node's folder on a machine.

    Args:
        name: EC2's id of the machine.
    """
    return f"{pool}.{token[:8]}.{node}-{name[-6:]}"
