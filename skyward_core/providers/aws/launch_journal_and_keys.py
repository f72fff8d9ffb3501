"""Journal of EC2 launches: the pool's folder on the client, with its keys and its requests.

Each request to EC2 is written here before it is sent, and its answer before it is used. So a later client knows that
resources of a client that died may exist.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container
from pathlib import Path
from typing import Any

from skyward_core.model.errors import PoolError
from skyward_core.providers.pool_key_folder import PoolKeyFolder
from skyward_core.store.atomic_file import write_atomic
from skyward_core.store.state_folder import state_home
from skyward_core.util.light_dataclass import Value, value


class LaunchJournal(PoolKeyFolder):
    """See the module."""

    provider = "aws"

    @classmethod
    def remove_folders(cls, names: Container[str]) -> None:
        """Remove the folders of pools of which nothing is left anywhere.

        Args:
            names: theirs, as tags tell them; they are compared with those that there are.

        Raises:
            OSError: one cannot be removed.
        """
        for path in (state_home() / cls.provider).glob("*.*"):
            if path.name in names and path.is_dir():
                cls(*path.name.rsplit(".", 1)).remove()

    def machine_known_hosts(self, machine: str) -> Path:
        """The file that says which key a machine shows from then on."""
        return self.path / f"known_hosts.{machine}"

    def make_keys(self) -> tuple[KeyPair, KeyPair]:
        """The key to log in with, and the one that machines show; each is made once.

        Raises:
            PoolError: they cannot be written.
        """
        try:
            self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
            login = self._make_key(self.login_key, f"skyward-{self.pool}")
            host = self._make_key(self.path / "host_key", f"host-of-{self.pool}")
            # Whatever address a machine of the pool gets, it shows this key, and nothing else is in this file.
            write_atomic(self.known_hosts, f"* {' '.join(host.public.split()[:2])}\n".encode())
        except OSError as error:
            raise PoolError(f"the keys of pool {self.pool} cannot be written to {self.path}: {error}") from error
        return login, host

    def _make_key(self, path: Path, comment: str) -> KeyPair:
        public = path.with_name(f"{path.name}.pub")
        if not (path.exists() and public.exists()):
            made = make_key_pair(comment)
            write_atomic(path, made.private.encode())
            write_atomic(public, f"{made.public}\n".encode())
        return KeyPair(path.read_text(encoding="ascii"), public.read_text(encoding="ascii").strip())

    def add(self, what: str, **facts: Any) -> None:
        """Write down, on disk, what is about to be asked, or what was answered.

        Raises:
            PoolError: it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
            # It begins a line: what a full disk took the half of has not ended its own.
            line = f"\n{json.dumps({'what': what} | facts)}\n"
            with open(os.open(self._journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise PoolError(
                f"what pool {self.pool} asks for cannot be written to {self._journal_path}: {error}"
            ) from error

    def notes(self) -> list[dict[str, Any]]:
        """All of it, in its order; a line that a dying client has not finished is left out.

        Raises:
            PoolError: it cannot be read.
        """
        try:
            lines = self._journal_path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise PoolError(f"what pool {self.pool} has asked for cannot be read: {error}") from error
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
    """An ed25519 key as OpenSSH writes it.

    Attributes:
        private: the text of its file.
        public: the line for others.
    """

    private: str
    public: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r})"


def make_key_pair(comment: str) -> KeyPair:
    """A new key.

    Args:
        comment: what it is for, in a word.
    """
    from skyward_core.transport.ssh.asyncssh_import import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519", comment=comment)
    return KeyPair(key.export_private_key().decode(), key.export_public_key().decode().strip())
