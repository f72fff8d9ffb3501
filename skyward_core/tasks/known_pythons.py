"""The interpreters of this machine: what one is, and where others may be."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from ..model.value import Value, value
from ..wire.safe_text import field
from .answers import Silence, answer
from .python_versions import OLDEST, numbers

NEWEST = 20  # the minor version up to which others are looked for
# Without site: nothing of the environment's runs, only because somebody looks at a plan.
_ASK = (
    "import json, sys; n = sys.implementation.name; "
    "print(json.dumps([sys.executable, sys.prefix, list(sys.version_info[:3]), n]))"
)
OURS = "cpython"  # nodes are sent its bytecode


@value
class KnownPython(Value):
    """An interpreter: its program, the folder of its environment, and its version, such as "3.12.1"."""

    path: str
    prefix: str
    version: str


class NoPython(ValueError):
    """A program that is none which could run a script; says why, without its name."""


def own_base() -> KnownPython:
    """The one that ours is an environment of: it stays where a tool's environment is made anew with each release."""
    base = getattr(sys, "_base_executable", "") or sys.executable
    return KnownPython(os.path.realpath(base), sys.base_prefix, _text(sys.version_info[:3]))


def ask(path: str) -> KnownPython:
    """What a program says of itself.

    Raises:
        NoPython: it cannot be run, is no Python, or one that is too old.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        raise NoPython(error.strerror or str(error)) from None
    except ValueError as error:  # a name that no file can have
        raise NoPython(str(error)) from None
    return _ask(path, (found.st_mtime_ns, found.st_ino, found.st_size))


@lru_cache(maxsize=64)  # a form asks as often as somebody types
def _ask(path: str, unchanged: tuple[int, ...]) -> KnownPython:
    try:
        done = answer([path, "-I", "-S", "-c", _ASK], unchanged)
    except Silence as error:
        raise NoPython(f"it has not said its version for {error.seconds:g} s") from None
    except OSError as error:
        raise NoPython(f"it cannot be run: {error.strerror or error}") from None
    try:
        program, prefix, version, implementation = json.loads(done.stdout)
        known = KnownPython(
            str(program or path), _environment_of(str(program or path)) or str(prefix), _text(version)
        )
    except (ValueError, TypeError):
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise NoPython(
            f"it is no Python that we can use ({said[0] if said else 'it says nothing'})"
        ) from None
    if implementation != OURS:
        raise NoPython(f"it is {field(str(implementation))}, and CPython is needed")
    if numbers(known.version) < OLDEST:
        raise NoPython(f"it is Python {known.version}, and {_text(OLDEST)} or later is needed")
    return known


def program_of(environment: Path) -> Path | None:
    """The interpreter in the folder of an environment; None where there is none."""
    programs = (environment / "bin" / name for name in ("python", "python3"))
    return next((each for each in programs if os.path.lexists(each)), None)


def others(environ: Mapping[str, str]) -> Iterator[str]:
    """Programs of other versions that may be here, of the newest first: by name in PATH, then what pyenv and uv have
    installed."""
    # Shims ask their manager which version is meant here, and that takes longer than all the rest. A relative entry
    # leads to whatever lies in the folder that we are in: nobody has asked for that by its name.
    entries = environ.get("PATH", os.defpath).split(os.pathsep)
    search = os.pathsep.join(each for each in entries if each.startswith("/") and Path(each).name != "shims")
    for minor in range(NEWEST, OLDEST[1] - 1, -1):
        if found := shutil.which(f"python3.{minor}", path=search):
            yield os.path.realpath(found) if Path(found).is_symlink() else found
    folders = [folder for place in _places(environ) for folder in place.glob("*/bin/python3")]
    yield from map(str, sorted(folders, key=lambda path: _version_in(path.parents[1].name), reverse=True))


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    own = Path(environ.get("HOME") or "~").expanduser()
    yield Path(environ.get("PYENV_ROOT") or own / ".pyenv") / "versions"
    data = Path(environ.get("XDG_DATA_HOME") or own / ".local/share")
    yield Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python")


def _version_in(name: str) -> tuple[int, ...]:
    """``"3.12.1"``, ``"cpython-3.12.1-linux-x86_64-gnu"`` -> its numbers."""
    digits = name.lstrip("abcdefghijklmnopqrstuvwxyz-")
    return numbers(digits)


def _environment_of(program: str) -> str:
    folder = Path(program).parent.parent
    return str(folder) if (folder / "pyvenv.cfg").exists() else ""


def _text(version: object) -> str:
    return ".".join(map(str, version))  # type: ignore[call-overload]
