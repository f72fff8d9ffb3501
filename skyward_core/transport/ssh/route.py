"""The way to a host, as the configuration has it."""

from __future__ import annotations

from pathlib import Path

from ...model.value import Value, value
from .target import SSH_PORT


@value
class Route(Value):
    """What a target comes to once ``~/.ssh/config`` has been read.

    Attributes:
        name: what known_hosts files know the host by.
        has_alias: whether that is a ``HostKeyAlias``.
        revoked: files of keys that no host may show.
        host_key_algorithms: whether the configuration names those that a host may sign with.
    """

    host: str
    port: int
    user: str
    name: str
    has_alias: bool
    jump: str | None
    known_hosts: tuple[Path, ...]
    revoked: tuple[Path, ...]
    ciphers: tuple[str, ...]
    host_key_algorithms: bool
    identities: tuple[str, ...]
    proxy_command: str | None

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"

    @property
    def known_port(self) -> int:
        """The port that known_hosts files know the host by: with an alias they go by none."""
        return SSH_PORT if self.has_alias else self.port
