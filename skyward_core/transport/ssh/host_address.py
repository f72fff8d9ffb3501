"""Hosts as users name them: user, host, port, jump hosts."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from skyward_core.model.errors import UsageError
from skyward_core.tasks.packages.requires_python import MIN_PYTHON, parse_version
from skyward_core.transport.transport import MINOR
from skyward_core.util.light_dataclass import Value, value

SSH_PORT = 22
LONGEST = 255  # characters of a name: more than the domain name system has
HOST_FORBIDDEN = frozenset("'`\"$\\;&<>|(){},")
USER_FORBIDDEN = frozenset("'`\";&<>|(){}")
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
        if reason := why_unsafe(self.host, self.user or ""):
            raise UsageError(f"{self.login!r:.200} names no host: {reason}.")
        for hop in self.jump.split(",") if self.jump else ():
            Target("").with_host(hop)

    @property
    def label(self) -> str:
        """The host as a command line takes it."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def login(self) -> str:
        """The same with the user, where one is named."""
        return f"{self.user}@{self.label}" if self.user else self.label

    def with_host(self, text: str) -> Target:
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
            raise UsageError(f"{text!r:.200} names no host; write a name, an address, user@host or user@host:port.")
        if port and not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
            raise UsageError(f"{text!r:.200} has no such port {port!r:.20}; ports are numbers from 1 to 65535.")
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
    if found := next((c for c in host if c in HOST_FORBIDDEN or c.isspace() or not c.isprintable()), ""):
        return f"a host name does not contain {found!r}"
    if found := next((c for c in user if c in USER_FORBIDDEN or not c.isprintable()), ""):
        return f"a user name does not contain {found!r}"
    if " -" in user or user.endswith("\\"):
        return "a user name does not contain ' -' and does not end with a backslash"
    return ""


@value(frozen=True)
class WantedPython(Value):
    """See the module.

    Attributes:
        named: the interpreter that somebody has named for the host, or "" to look for one.
        minor: its version, such as "3.12".
        here: one of this machine, which the host may have at the same place, or "".
        fetches: whether a uv there may fetch it; who only looks at a host changes nothing there.
    """

    named: str = ""
    minor: str = MINOR
    here: str = sys.executable
    fetches: bool = True

    @classmethod
    def of(cls, named: str | None, loaded_with: Sequence[str] | None) -> WantedPython:
        """What ranks need by what their functions are pickled.

        Args:
            loaded_with: as ``script_interpreter.Interpreter.for_hosts`` has it; None for what runs this.
        """
        minor, here = loaded_with or (MINOR, "")
        return cls(named or "", minor, sys.executable if minor == MINOR else here)

    @property
    def is_client_version(self) -> bool:
        """Whether it has the version of the Python that runs this, and so reads its bytecode."""
        return self.minor == MINOR

    @property
    def version_origin(self) -> str:
        """What its version is that of, in words that follow "the version that"."""
        return "runs here" if self.is_client_version else "the script is loaded with"


# As in ``ssh.bootstrap_channel``, for any login shell: no newline, no single quote, no backslash, no "!".
SET_PATH = "PATH=$PATH:$HOME/.local/bin:$HOME/.cargo/bin:/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin;"
UV_S, PYENV_S = '"$HOME"/.local/share/uv/python', '"$HOME"/.pyenv/versions'
# $3 is the interpreter that somebody has named. Each says its version itself, as names of files may mislead.
LIST_PYTHONS = (
    'i=20;set -- "$3" python3 python;while test $i -ge 9;do set -- "$@" python3.$i;i=$((i-1));done;'
    f'f=;for p in "$@" {UV_S}/*/bin/python3 {PYENV_S}/*/bin/python3;do v=$("$p" -V 2>&1)&&f="$f $v;";done;'
    'command -v uv >/dev/null 2>&1&&f="$f uv;";set -f;'  # what they say is no pattern
)
_VERSION = re.compile(rb"Python (\d+\.\d+(?:\.\d+)?)[^;]*;")


@value(frozen=True)
class HostPythons(Value):
    """What a login finds on a host.

    Attributes:
        versions: such as "3.12.1", the newest first.
        has_uv: whether there is a uv, which can fetch others.
    """

    versions: tuple[str, ...]
    has_uv: bool = False

    @property
    def usable(self) -> tuple[str, ...]:
        """Those that ranks can have."""
        return tuple(each for each in self.versions if parse_version(each) >= MIN_PYTHON)

    def __str__(self) -> str:
        return f"it has Python {', '.join(self.versions)}" if self.versions else "it has no Python at all"


def minor_of(version: str) -> str:
    """``"3.12.1"`` -> ``"3.12"``."""
    return ".".join(version.split(".")[:2])


def parse_pythons(said: bytes) -> HostPythons:
    """What a host has said.

    Args:
        said: what ``LIST`` has gathered; all else that the host may say counts for nothing.
    """
    found = {each.decode() for each in _VERSION.findall(said)}
    return HostPythons(tuple(sorted(found, key=parse_version, reverse=True)), b" uv;" in said)


def newest_per_minor(versions: Iterable[str]) -> list[str]:
    """The first of each minor version."""
    found: dict[str, str] = {}
    for each in versions:
        found.setdefault(minor_of(each), each)
    return list(found.values())
