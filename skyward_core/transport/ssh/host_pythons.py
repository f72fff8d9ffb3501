"""Which Pythons a host has: told where it lacks the one that is wanted, and by a check-up."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...model.value import Value, value
from ...tasks.python_versions import OLDEST, numbers

# As in :mod:`.command_channel`, for any login shell: no newline, no single quote, no backslash, no "!".
SEARCH = "PATH=$PATH:$HOME/.local/bin:$HOME/.cargo/bin:/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin;"
UV_S, PYENV_S = '"$HOME"/.local/share/uv/python', '"$HOME"/.pyenv/versions'
# $3 is the interpreter that somebody has named. Each says its version itself, as names of files may mislead.
LIST = (
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
        return tuple(each for each in self.versions if numbers(each) >= OLDEST)

    def of(self, minor: str) -> str:
        """The newest of a minor version; "" where it has none."""
        return next((each for each in self.versions if minor_of(each) == minor), "")

    def __str__(self) -> str:
        return f"it has Python {', '.join(self.versions)}" if self.versions else "it has no Python at all"


def minor_of(version: str) -> str:
    """``"3.12.1"`` -> ``"3.12"``."""
    return ".".join(version.split(".")[:2])


def heard(said: bytes) -> HostPythons:
    """What a host has said.

    Args:
        said: what ``LIST`` has gathered; all else that the host may say counts for nothing.
    """
    found = {each.decode() for each in _VERSION.findall(said)}
    return HostPythons(tuple(sorted(found, key=numbers, reverse=True)), b" uv;" in said)


def newest_of_each(versions: Iterable[str]) -> list[str]:
    """The first of each minor version."""
    found: dict[str, str] = {}
    for each in versions:
        found.setdefault(minor_of(each), each)
    return list(found.values())
