"""Host addresses as users write them (user, host, port, jump hosts), and Python versions on hosts."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from skyward_core.model.errors import UsageError
from skyward_core.tasks.python_compatibility import MIN_PYTHON, MINOR_VERSION, parse_version
from skyward_core.util.light_dataclass import Value, value

SSH_PORT = 22
MAX_NAME_LENGTH = 255  # maximum characters of a host name; DNS allows 253
HOST_FORBIDDEN = frozenset("'`\"$\\;&<>|(){},@")
USER_FORBIDDEN = frozenset("'`\";&<>|(){}")
Policy = Literal["known", "ask", "accept-new"]


def format_host(host: str, user: str | None = None, port: int | None = None) -> str:
    """Return a host in the syntax that :meth:`Target.with_host` parses."""
    colons = host.count(":")
    bracketed = f"[{host}]" if colons == 1 or host.startswith("[") or (colons and port is not None) else host
    text = bracketed if port is None else f"{bracketed}:{port}"
    return f"{user}@{text}" if user else text


@value
class Target(Value):
    """Host as written by the user, with settings to reach it; see :class:`~skyward_core.providers.ssh.provider.SSH`."""

    host: str
    user: str | None = None
    port: int | None = None
    keys: tuple[str, ...] = ()
    known_hosts: str | None = None
    config: bool = True
    jump: str | None = None
    host_keys: Policy = "known"
    via: Target | None = None  # jump host that has its own settings

    def __post_init__(self) -> None:
        if reason := why_unsafe(self.host, self.user or ""):
            raise UsageError(f"{self.login!r:.200} is not a valid host: {reason}.")
        for hop in self.jump.split(",") if self.jump else ():
            Target("").with_host(hop)

    @property
    def label(self) -> str:
        """The host and its port, without the user, in the syntax of the command line."""
        return format_host(self.host, None, self.port)

    @property
    def login(self) -> str:
        """The host, preceded by the user's name on it if one is given."""
        return format_host(self.host, self.user, self.port)

    @property
    def ssh_command(self) -> str:
        """The command line that opens a shell on the host."""
        port = ["-p", str(self.port)] if self.port is not None else []
        return shlex.join(["ssh", *port, format_host(self.host, self.user)])

    def with_host(self, text: str) -> Target:
        """Return the same settings for another host, given as ``[user@]host[:port]`` or an alias.

        Raises:
            UsageError: If the text is not a valid host.
        """
        user, _, rest = text.strip().removeprefix("ssh://").rpartition("@")
        host, port = rest, ""
        if rest.startswith("["):  # IPv6 addresses are written as [address]:port.
            host, _, port = rest[1:].rpartition("]")
            port = port.removeprefix(":")
        elif rest.count(":") == 1:
            host, _, port = rest.partition(":")
        if not host:
            raise UsageError(f"{text!r:.200} is not a valid host: use a name, an address, user@host or user@host:port.")
        if port and not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
            raise UsageError(f"{text!r:.200}: invalid port {port!r:.20}: use a number from 1 to 65535.")
        return replace(self, host=host, user=user or self.user, port=int(port) if port else self.port)


def why_unsafe(host: str, user: str) -> str:
    """Return why a host or user name is unsafe to use in commands; "" if it is safe.

    Commands of the user's configuration contain the names (``ProxyCommand``, ``Match exec``). The rules are those of
    OpenSSH (``ssh_valid_hostname`` and ``ssh_valid_ruser``), which releases before 9.6 do not apply.
    """
    if host.startswith("-") or user.startswith("-"):
        return "a name must not begin with '-'"
    if len(host) > MAX_NAME_LENGTH or len(user) > MAX_NAME_LENGTH:
        return f"a name must have at most {MAX_NAME_LENGTH} characters"
    if found := next((c for c in host if c in HOST_FORBIDDEN or c.isspace() or not c.isprintable()), ""):
        return f"a host name must not contain {found!r}"
    if found := next((c for c in user if c in USER_FORBIDDEN or not c.isprintable()), ""):
        return f"a user name must not contain {found!r}"
    if " -" in user or user.endswith("\\") or user != user.strip():
        return "a user name must not contain ' -', begin or end with a space, or end with a backslash"
    return ""


@value(frozen=True)
class WantedPython(Value):
    """Requirements on the Python interpreter that runs ranks on a host.

    Attributes:
        named: Interpreter that the user chose for the host, or "" to search for one.
        minor: Required minor version, for example "3.12".
        here: Path of this machine's interpreter, if the host may have the same path, or "".
        fetches: Whether uv may install a Python on the host; false for inspections, which change nothing.
    """

    named: str = ""
    minor: str = MINOR_VERSION
    here: str = sys.executable
    fetches: bool = True

    @classmethod
    def of(cls, named: str | None, loaded_with: Sequence[str] | None) -> WantedPython:
        """Return the Python that ranks need to load functions pickled by the client.

        Args:
            named: Interpreter that the user chose, or None.
            loaded_with: Value of ``specs.Interpreter.for_hosts``; None for this process's interpreter.
        """
        minor, here = loaded_with or (MINOR_VERSION, "")
        return cls(named or "", minor, sys.executable if minor == MINOR_VERSION else here)

    @property
    def is_client_version(self) -> bool:
        """Whether the required Python version is that of this process, so that hosts can run its bytecode."""
        return self.minor == MINOR_VERSION

    @property
    def version_origin(self) -> str:
        """Reason why this version is required, as the rest of a sentence that begins with "the version that"."""
        return "runs here" if self.is_client_version else "the script is loaded with"


# These commands must work in any login shell, like those in ``ssh.host_command_channel``. They therefore contain no
# newline, single quote, backslash or "!".
SET_PATH = "PATH=$PATH:$HOME/.local/bin:$HOME/.cargo/bin:/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin;"
UV_S, PYENV_S = '"$HOME"/.local/share/uv/python', '"$HOME"/.pyenv/versions'
# $3 is the chosen interpreter. Each interpreter prints its version, because a file name may state another version.
LIST_PYTHONS = (
    'i=20;set -- "$3" python3 python;while test $i -ge 9;do set -- "$@" python3.$i;i=$((i-1));done;'
    f'f=;for p in "$@" {UV_S}/*/bin/python3 {PYENV_S}/*/bin/python3;do v=$("$p" -V 2>&1)&&f="$f $v;";done;'
    # ``set -f`` disables globbing, so that the output is not expanded
    'command -v uv >/dev/null 2>&1&&f="$f uv;";set -f;'
)
_VERSION = re.compile(rb"Python (\d+\.\d+(?:\.\d+)?)[^;]*;")


@value(frozen=True)
class HostPythons(Value):
    """Python interpreters that were found on a host.

    Attributes:
        versions: Versions such as "3.12.1", the newest first.
        has_uv: Whether uv is installed, which can install other versions.
        is_incomplete: Whether a matching interpreter lacks modules that an agent needs.
    """

    versions: tuple[str, ...]
    has_uv: bool = False
    is_incomplete: bool = False

    @property
    def usable(self) -> tuple[str, ...]:
        """Versions on the host that this package supports, so that ranks can use them."""
        return tuple(each for each in self.versions if parse_version(each) >= MIN_PYTHON)

    def __str__(self) -> str:
        lacks = ", but without asyncio or zlib, as in Debian's python3-minimal" if self.is_incomplete else ""
        return f"it has Python {', '.join(self.versions)}{lacks}" if self.versions else "it has no Python"


def minor_of(version: str) -> str:
    """Return the minor version: ``"3.12.1"`` -> ``"3.12"``."""
    return ".".join(version.split(".")[:2])


def parse_pythons(output: bytes) -> HostPythons:
    """Return the interpreters that the output of the ``LIST_PYTHONS`` command lists. Ignore other text."""
    found = {each.decode() for each in _VERSION.findall(output)}
    return HostPythons(tuple(sorted(found, key=parse_version, reverse=True)), b" uv;" in output, b" lacks;" in output)


def newest_per_minor(versions: Iterable[str]) -> list[str]:
    """Return for each minor version the first full version in a list."""
    found: dict[str, str] = {}
    for each in versions:
        found.setdefault(minor_of(each), each)
    return list(found.values())
