"""A provider's folder for one pool on the client, and the id that marks what this client makes at a provider."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from skyward_core.model.errors import PoolError
from skyward_core.store.state_folder import state_home


class PoolKeyFolder:
    """Keys of one pool, and what was asked of its provider.

    Args:
        pool: Name of the pool.
        token: Token of the pool.

    Attributes:
        provider: Name of the folder for all pools of a provider.
    """

    provider: ClassVar[str]

    def __init__(self, pool: str, token: str) -> None:
        self.pool, self.token = pool, token
        self.path = state_home() / self.provider / f"{pool}.{token}"

    @classmethod
    def find_all(cls, pool: str) -> Iterator[Self]:
        """Yield the folders of all pools of a name: of one that is up, and of others of which something was left."""
        for path in sorted((state_home() / cls.provider).glob(f"{pool}.*")):
            yield cls(pool, path.name.rpartition(".")[2])

    @property
    def login_key(self) -> Path:
        """The file of the key that opens the pool's machines."""
        return self.path / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The file with the host keys that the pool's machines show."""
        return self.path / "known_hosts"

    def remove(self) -> None:
        """Remove the folder.

        Raises:
            OSError: It cannot be removed.
        """
        while self.path.exists():
            with suppress(FileNotFoundError):  # another client removes it, too
                shutil.rmtree(self.path)


def ledger_id(provider: str) -> str:
    """Return the id of this client's ledger for a provider; it is made once for each state folder.

    Raises:
        PoolError: It cannot be written.
    """
    if known := known_ledger_id(provider):
        return known
    path = state_home() / provider / "ledger-id"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # of several clients that find none, one makes it
            name = file.read().strip()
            if not name:
                name = secrets.token_hex(8)
                file.write(name)
            return name
    except OSError as error:
        raise PoolError(f"what this client makes cannot be marked, as {path} cannot be written: {error}") from error


def known_ledger_id(provider: str) -> str:
    """Return the same id where something was ever made; else ""."""
    try:
        return (state_home() / provider / "ledger-id").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""
