"""Folder on the client for one pool of a provider, and the id that marks this client's resources at the provider."""

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
    """Folder with the keys of one pool and the journal of requests to its provider.

    Args:
        pool: Name of the pool.
        token: Token of the pool.

    Attributes:
        provider: Name of the parent folder, which contains the folders of all pools of a provider.
    """

    provider: ClassVar[str]

    def __init__(self, pool: str, token: str) -> None:
        self.pool, self.token = pool, token
        self.path = state_home() / self.provider / f"{pool}.{token}"

    @classmethod
    def find_all(cls, pool: str) -> Iterator[Self]:
        """Yield the folders of all pools with a name: the current pool's, and those that earlier pools left."""
        for path in sorted((state_home() / cls.provider).glob(f"{pool}.*")):
            yield cls(pool, path.name.rpartition(".")[2])

    @property
    def login_key(self) -> Path:
        """File of the SSH key that opens the pool's machines."""
        return self.path / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """File with the host keys of the pool's machines."""
        return self.path / "known_hosts"

    def remove(self) -> None:
        """Remove the folder.

        Raises:
            OSError: If the folder cannot be removed.
        """
        while self.path.exists():
            with suppress(FileNotFoundError):  # another client removes the folder at the same time
                shutil.rmtree(self.path)


def ledger_id(provider: str) -> str:
    """Return the id of this client's ledger for a provider, creating the id on first use.

    Raises:
        PoolError: If the id cannot be written.
    """
    if known := known_ledger_id(provider):
        return known
    path = state_home() / provider / "ledger-id"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # if several clients find no id, only one creates it
            name = file.read().strip()
            if not name:
                name = secrets.token_hex(8)
                file.write(name)
            return name
    except OSError as error:
        raise PoolError(f"cannot tag resources as created by this client: {path} cannot be written: {error}") from error


def known_ledger_id(provider: str) -> str:
    """Return the id of :func:`ledger_id` without creating it; "" if there is none."""
    try:
        return (state_home() / provider / "ledger-id").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""
