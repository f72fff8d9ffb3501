"""The interpreters of this machine: what one is and has, and where others may be."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

from ..model.errors import ScriptError
from ..model.interpreter import Interpreter
from ..model.value import Value, value
from ..store.user_files import entries, exists, expanded, found_by, is_dir, read_text
from ..wire.safe_text import field
from . import missing_packages
from .answers import Silence, answer
from .own_interpreter import is_own
from .packages.local_packages import local_packages
from .python_versions import OLDEST, numbers

NEWEST = 20  # the minor version up to which others are looked for
# Without site: nothing of the environment's runs, only because somebody looks at a plan.
_ASK = (
    "import json, sys; n = sys.implementation.name; "
    "print(json.dumps([sys.executable, sys.prefix, list(sys.version_info[:3]), n]))"
)
OURS = "cpython"  # nodes are sent its bytecode
_FIND = "import sys; from importlib.util import find_spec; print(find_spec(sys.argv[1]) is not None)"
_SITES = ("lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3/dist-packages",
          "local/lib/python3*/dist-packages")  # fmt: skip
CONFIG = "pyvenv.cfg"
_MOST = 1 << 16  # bytes of a file that says a version
_NAMED = re.compile(r"python(3\.\d+)")
_FULL = re.compile(r"\d+\.\d+\.\d+")


@value
class KnownPython(Value):
    """An interpreter: its program, the folder of its environment, and its version, such as "3.12.1".

    A version that only files were read for may lack its last number, or be empty.
    """

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
    """Run a program to learn which Python it is: for launches alone, because it may be a project's.

    Raises:
        NoPython: it cannot be run, is no Python, or one that is too old.
    """
    found = _stat(path)
    return _ask(path, (found.st_mtime_ns, found.st_ino, found.st_size))


def read(path: str) -> KnownPython:
    """Return what files say about an interpreter; nothing is run, so that a plan executes nothing of a project.

    Raises:
        NoPython: It cannot be run, is not CPython, or is too old, as far as files say that.
    """
    _stat(path)
    if not os.access(path, os.X_OK):
        raise NoPython("it cannot be run: Permission denied")
    environment = _environment_of(path)
    said = config_of(environment) if environment else {}
    implementation = said.get("implementation", OURS).lower()
    real = os.path.realpath(path)
    known = KnownPython(
        path, environment or str(Path(real).parent.parent), _version_by_files(path, real, said)
    )
    return _usable(known, implementation)


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise NoPython(error.strerror or str(error)) from None
    except ValueError as error:  # a name that no file can have
        raise NoPython(str(error)) from None


def config_of(environment: str) -> dict[str, str]:
    """Return the entries of an environment's ``pyvenv.cfg``."""
    try:
        lines = read_text(Path(environment, CONFIG), errors="replace", most=_MOST).splitlines()
    except OSError:
        return {}
    return {name.strip().lower(): text.strip() for name, _, text in (line.partition("=") for line in lines)}


def _version_by_files(path: str, real: str, config: Mapping[str, str]) -> str:
    """Return the version of an interpreter by its environment's configuration, else by names; "" if none says it."""
    prefix = Path(real).parent.parent
    # The program decides: an environment whose link leads to another Python keeps its old configuration.
    minor = next((found[1] for each in (real, path) if (found := _NAMED.fullmatch(Path(each).name))), "")
    told = (config.get("version", ""), config.get("version_info", ""), prefix.name)
    for version in (found[0] for each in told if (found := _FULL.search(each))):
        if not minor or numbers(version)[:2] == numbers(minor):
            return version
    if not minor:
        names = {each.name for each in found_by(prefix, "lib/python3.*") if _NAMED.fullmatch(each.name)}
        minor = names.pop().removeprefix("python") if len(names) == 1 else ""
    try:
        header = read_text(
            prefix / "include" / f"python{minor}" / "patchlevel.h", errors="replace", most=_MOST
        )
    except OSError:
        return minor
    exact = re.search(r'PY_VERSION\s+"(\d+\.\d+\.\d+)', header)
    return exact[1] if exact else minor


def _usable(known: KnownPython, implementation: str) -> KnownPython:
    if implementation != OURS:
        raise NoPython(f"it is {field(implementation)}, and CPython is needed")
    if known.version and numbers(known.version) < OLDEST:
        raise NoPython(f"it is Python {known.version}, and {_text(OLDEST)} or later is needed")
    return known


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
    return _usable(known, str(implementation))


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
    folders = [folder for place in _places(environ) for folder in found_by(place, "*/bin/python3")]
    yield from map(str, sorted(folders, key=lambda path: _version_in(path.parents[1].name), reverse=True))


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    own = expanded(environ.get("HOME") or "~")
    yield Path(environ.get("PYENV_ROOT") or own / ".pyenv") / "versions"
    data = Path(environ.get("XDG_DATA_HOME") or own / ".local/share")
    yield Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python")


def _version_in(name: str) -> tuple[int, ...]:
    """``"3.12.1"``, ``"cpython-3.12.1-linux-x86_64-gnu"`` -> its numbers."""
    digits = name.lstrip("abcdefghijklmnopqrstuvwxyz-")
    return numbers(digits)


def _environment_of(program: str) -> str:
    folder = Path(program).parent.parent
    return str(folder) if exists(folder / CONFIG) else ""


def _text(version: object) -> str:
    return ".".join(map(str, version))  # type: ignore[call-overload]


def missing_in(interpreter: Interpreter, modules: Sequence[str]) -> list[str]:
    """Return the modules of these that an interpreter does not have, by its folders of packages; nothing is run.

    None are missing if its environment is still to be made, or if it has no folders of packages that are known.
    """
    if is_own(interpreter.prefix):
        return [name for name in modules if missing_packages.is_missing(name)]
    path = list(_import_path(interpreter)) if modules and not interpreter.base else []
    return [name for name in modules if path and PathFinder.find_spec(name, path) is None]


def has(interpreter: Interpreter, module: str) -> bool:
    """Check whether an interpreter has a module, by running it: for launches alone.

    Raises:
        ScriptError: It does not answer.
    """
    if is_own(interpreter.prefix):
        return not missing_packages.is_missing(module)
    try:
        done = answer([interpreter.path, "-I", "-c", _FIND, module], ())
    except Silence as error:
        why = str(error)
    except OSError as error:
        why = f"it cannot be run: {error.strerror or error}"
    else:
        if not done.returncode:
            return b"True" in done.stdout
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        why = f"it ended with exit status {done.returncode}" + (f" ({last})" if last else "")
    raise ScriptError(f"Which packages {interpreter.path} has is not known: {why}")


def _import_path(interpreter: Interpreter) -> Iterator[str]:
    """Return the folders in which an interpreter finds packages, as files say."""
    prefix = Path(interpreter.prefix)
    sites = [site for pattern in _SITES for site in found_by(prefix, pattern)]
    config = config_of(interpreter.prefix)
    if config.get("include-system-site-packages") == "true":
        base = Path(config.get("home", "")).parent
        sites += [site for pattern in _SITES for site in found_by(base, pattern)]
    for site in sites:
        yield str(site)
        yield from _added(site)
    for package in local_packages({}, interpreter.prefix, interpreter.minor):
        yield package.entry


def _added(site: Path) -> Iterator[str]:
    """Return the folders that ``.pth`` files add; their lines of code are not run."""
    try:
        files = [each for each in entries(site) if each.suffix == ".pth"]
    except OSError:
        return
    for file in files:
        try:
            lines = read_text(file, errors="replace", most=1 << 16).splitlines()
        except OSError:
            continue
        yield from (str(site / line) for line in lines if line.strip() and is_dir(site / line))
