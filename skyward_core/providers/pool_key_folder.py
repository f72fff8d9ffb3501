"""Folder on the client with the keys of one pool of a provider."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

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
