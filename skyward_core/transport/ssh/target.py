"""Hosts as people name them; imports nothing that speaks SSH."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ...model.errors import UsageError
from ...model.value import Value, value

SSH_PORT = 22
Policy = Literal["known", "ask", "accept-new"]


@value
class Target(Value):
    """A host as a person names it, and how to reach it; see :class:`~skyward_core.providers.ssh.provider.SSH`."""

    host: str
    user: str | None = None
    port: int | None = None
    keys: tuple[str, ...] = ()
    known_hosts: str | None = None
    config: bool = True
    jump: str | None = None
    host_keys: Policy = "known"
    via: Target | None = None  # the jump host, where it is reached in other ways than the host itself

    @property
    def label(self) -> str:
        """The host as a command line takes it."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def login(self) -> str:
        """The same with the user, where one is named."""
        return f"{self.user}@{self.label}" if self.user else self.label

    def named(self, text: str) -> Target:
        """The same wishes for another host, given as ``[user@]host[:port]`` or an alias.

        Raises:
            UsageError: the text names no host.
        """
        user, _, rest = text.strip().rpartition("@")
        host, port = rest, ""
        if rest.startswith("["):  # [address]:port, as IPv6 needs it
            host, _, port = rest[1:].partition("]")
            port = port.removeprefix(":")
        elif rest.count(":") == 1:
            host, _, port = rest.partition(":")
        if not host or host.startswith("-") or any(c.isspace() for c in host):
            raise UsageError(
                f"{text!r} names no host; write a name, an address, user@host or user@host:port."
            )
        if port and not (port.isdigit() and 0 < int(port) < 65536):
            raise UsageError(f"{text!r} has no such port {port!r}; ports are numbers from 1 to 65535.")
        return replace(self, host=host, user=user or self.user, port=int(port) if port else self.port)
