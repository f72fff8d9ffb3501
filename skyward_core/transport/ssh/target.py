"""Hosts as people name them; imports nothing that speaks SSH."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ...model.errors import UsageError
from ...model.value import Value, value

SSH_PORT = 22
LONGEST = 255  # characters of a name: more than the domain name system has
HOST_NEVER = frozenset("'`\"$\\;&<>|(){},")
USER_NEVER = frozenset("'`\";&<>|(){}")
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

    def __post_init__(self) -> None:
        if why := why_unsafe(self.host, self.user or ""):
            raise UsageError(f"{self.login!r:.200} names no host: {why}.")
        for hop in self.jump.split(",") if self.jump else ():
            Target("").named(hop)

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
        user, _, rest = text.strip().removeprefix("ssh://").rpartition("@")
        host, port = rest, ""
        if rest.startswith("["):  # [address]:port, as IPv6 needs it
            host, _, port = rest[1:].partition("]")
            port = port.removeprefix(":")
        elif rest.count(":") == 1:
            host, _, port = rest.partition(":")
        if not host:
            raise UsageError(
                f"{text!r:.200} names no host; write a name, an address, user@host or user@host:port."
            )
        if port and not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
            raise UsageError(
                f"{text!r:.200} has no such port {port!r:.20}; ports are numbers from 1 to 65535."
            )
        return replace(self, host=host, user=user or self.user, port=int(port) if port else self.port)


def why_unsafe(host: str, user: str) -> str:
    """Return why a host or user name is refused, "" if it is accepted.

    Both are put into commands of the user's configuration (``ProxyCommand``, ``Match exec``). These are the rules of
    OpenSSH (``ssh_valid_hostname`` and ``ssh_valid_ruser``), which releases before 9.6 do not apply.
    """
    if host.startswith("-") or user.startswith("-"):
        return "a name does not begin with '-'"
    if len(host) > LONGEST or len(user) > LONGEST:
        return f"a name has {LONGEST} characters at most"
    if found := next((c for c in host if c in HOST_NEVER or c.isspace() or not c.isprintable()), ""):
        return f"a host name does not contain {found!r}"
    if found := next((c for c in user if c in USER_NEVER or not c.isprintable()), ""):
        return f"a user name does not contain {found!r}"
    if " -" in user or user.endswith("\\"):
        return "a user name does not contain ' -' and does not end with a backslash"
    return ""
