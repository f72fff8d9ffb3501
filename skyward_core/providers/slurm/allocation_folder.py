"""A pool's own folder on the client: the key that opens its nodes, those that they show, when it was asked for."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ...model.errors import PoolError
from ...store.home import home
from ...store.whole_file import write_whole
from .texts import AllocatedNode

_FOLDER = "slurm"


def ledger_id() -> str:
    """Which ledger knows of what this client submits; made once for each home.

    Raises:
        PoolError: it cannot be written.
    """
    path = home() / _FOLDER / "ledger-id"
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            draft = path.with_name(f"ledger-id.{secrets.token_hex(4)}")
            write_whole(draft, secrets.token_hex(8).encode())
            with suppress(FileExistsError):  # of several clients that find none, one makes it
                os.link(draft, path)
            draft.unlink()
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise PoolError(
            f"what this client submits cannot be marked, as {path} cannot be written: {error}"
        ) from error


class AllocationFolder:
    """See the module.

    Args:
        pool: the pool's name.
        token: the pool's.
    """

    def __init__(self, pool: str, token: str) -> None:
        self.pool, self.token = pool, token
        self.path = home() / _FOLDER / f"{pool}.{token}"

    @classmethod
    def all_of(cls, pool: str) -> Iterator[AllocationFolder]:
        """The folders of pools of a name: of one that is up, and of others of which something was left."""
        for path in sorted((home() / _FOLDER).glob(f"{pool}.*")):
            yield cls(pool, path.name.rpartition(".")[2])

    @property
    def login_key(self) -> Path:
        """The file of the key that opens the pool's nodes."""
        return self.path / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The file that says which key each of them shows."""
        return self.path / "known_hosts"

    def make(self) -> None:
        """Have it there, before anything is asked for.

        Raises:
            PoolError: it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
        except OSError as error:
            raise PoolError(f"the folder of pool {self.pool} cannot be made: {error}") from error

    def begin(self) -> str:
        """Write down that the allocation is about to be asked for; gives the public key that its nodes let in.

        Raises:
            PoolError: it cannot be written.
        """
        from ...transport.ssh.asyncssh_import import asyncssh

        public = self.path / "id_ed25519.pub"
        try:
            if not (self.login_key.exists() and public.exists()):
                key = asyncssh.generate_private_key("ssh-ed25519", comment=f"skyward-{self.pool}")
                write_whole(self.login_key, key.export_private_key())
                write_whole(public, key.export_public_key())
            write_whole(self._begun, f"{time.time():.3f}".encode())
            return " ".join(public.read_text(encoding="ascii").split()[:2])
        except OSError as error:
            raise PoolError(
                f"the key of pool {self.pool} cannot be written to {self.path}: {error}"
            ) from error

    @property
    def begun(self) -> float | None:
        """When it was asked for last, Unix time; None where it never was, or nobody here knows."""
        try:
            return float(self._begun.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def answered(self, *, submitted: bool) -> None:
        """Write down what Slurm has answered.

        Args:
            submitted: whether it has taken the job.

        Raises:
            PoolError: it cannot be written.
        """
        try:
            if submitted:
                self._begun.replace(self._submitted)
            else:
                self._begun.unlink()
        except OSError as error:
            raise PoolError(f"what Slurm has answered cannot be written to {self.path}: {error}") from error

    @property
    def asked_nothing(self) -> bool:
        """Whether Slurm was never asked for anything that it might have taken."""
        return self.path.exists() and not (self._begun.exists() or self._submitted.exists())

    def trust(self, nodes: Sequence[AllocatedNode]) -> None:
        """Write down which keys the pool's nodes show.

        Raises:
            PoolError: they cannot be written.
        """
        lines = [f"[{node.address}]:{node.port} {node.host_key}\n" for node in nodes]
        try:
            write_whole(self.known_hosts, "".join(lines).encode())
        except OSError as error:
            raise PoolError(f"the keys of pool {self.pool}'s nodes cannot be written: {error}") from error

    def remove(self) -> None:
        """Forget all of it.

        Raises:
            OSError: it cannot be removed.
        """
        while self.path.exists():
            with suppress(FileNotFoundError):  # another client removes it, too
                shutil.rmtree(self.path)

    @property
    def _begun(self) -> Path:
        return self.path / "begun"

    @property
    def _submitted(self) -> Path:
        return self.path / "submitted"
