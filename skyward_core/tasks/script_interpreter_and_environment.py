"""Selection of the interpreter that loads a script, and creation of its environment.

The first of these sources decides: the user's option, the script's inline metadata, the ``.venv`` of the script's
project, the environment of the shell, and finally the interpreter that runs this program.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from skyward_core.model.errors import PoolError, ScriptError, UsageError, convert_errors
from skyward_core.model.outcomes_states_and_alerts import signal_name
from skyward_core.model.specs import Interpreter
from skyward_core.node.bootstrap import image_environment as environment
from skyward_core.node.bootstrap.host_inspection import distrust_reason
from skyward_core.node.bootstrap.image_environment import MADE_FILE, open_lock_file
from skyward_core.store.state_folder import ENVIRONMENTS_FOLDER, state_home
from skyward_core.tasks import missing_packages
from skyward_core.tasks.bounded_subprocess import CancellationToken, QueryTimeout, kill_group, run_bounded
from skyward_core.tasks.packages.inline_metadata import InlineMetadata, read_inline_metadata
from skyward_core.tasks.packages.package_specs_and_local_packages import find_local_packages
from skyward_core.tasks.python_compatibility import (
    MIN_PYTHON,
    OWN_SOURCE,
    is_own_environment,
    is_satisfiable,
    own_interpreter,
    parse_version,
    satisfies,
)
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.safe_file_access import (
    exists,
    expand_user,
    find_matching,
    folders_up_to_project,
    is_dir,
    list_entries,
    read_text,
    resolve_path,
    try_lock,
)
from skyward_core.util.terminal_safe_text import sanitize_line

NEWEST_MINOR = 20  # highest minor version of Python 3 that the search for interpreters looks for
# Run without the site module (-S), so that the preview of a plan runs no code of the environment.
_VERSION_CODE = (
    "import json, sys; n = sys.implementation.name; "
    "print(json.dumps([sys.executable, sys.prefix, list(sys.version_info[:3]), n]))"
)
REQUIRED_IMPLEMENTATION = "cpython"  # required Python implementation, because nodes receive CPython bytecode
_SITE_PATTERNS = ("lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3/dist-packages",
          "local/lib/python3*/dist-packages")  # fmt: skip
VENV_CONFIG_FILE = "pyvenv.cfg"
_MAX_FILE_BYTES = 1 << 16  # maximum bytes read from a file that contains a version
_PYTHON_NAME = re.compile(r"python(3\.\d+)")
_FULL_VERSION = re.compile(r"\d+\.\d+\.\d+")


@value
class PythonInfo(Value):
    """Interpreter: its program, the folder of its environment, and its version, such as "3.12.1".

    A version that was only read from files may lack its last number, or be empty.
    """

    path: str
    prefix: str
    version: str


class UnusablePython(ValueError):
    """Program that cannot run a script. The message states the reason, without the program's name."""


def own_base_python() -> PythonInfo:
    """Return the base interpreter of this program's environment, which still exists after a tool has recreated it."""
    base = getattr(sys, "_base_executable", "") or sys.executable
    return PythonInfo(os.path.realpath(base), sys.base_prefix, _join_version(sys.version_info[:3]))


def query_python(path: str) -> PythonInfo:
    """Run a program to determine its Python version. Only for launches, because the program may belong to a project.

    Raises:
        UnusablePython: If the program cannot be run, is not CPython, or is too old.
    """
    found = _stat_program(path)
    return _query_cached(path, (found.st_mtime_ns, found.st_ino, found.st_size))


def read_python(path: str) -> PythonInfo:
    """Return the properties of an interpreter from its files, without running code of a project.

    Raises:
        UnusablePython: If the program cannot be run, is not CPython, or is too old, as far as its files show.
    """
    _stat_program(path)
    if not os.access(path, os.X_OK):
        raise UnusablePython("it cannot be run: Permission denied")
    environment = _find_environment(path)
    config = read_venv_config(environment) if environment else {}
    implementation = config.get("implementation", REQUIRED_IMPLEMENTATION).lower()
    real = os.path.realpath(path)
    known = PythonInfo(path, environment or str(Path(real).parent.parent), _find_version(path, real, config))
    return _require_usable(known, implementation)


def _stat_program(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise UnusablePython(error.strerror or str(error)) from None
    except ValueError as error:  # Python raises ValueError for a path with a zero byte
        raise UnusablePython(str(error)) from None


def read_venv_config(environment: str) -> dict[str, str]:
    """Return the entries of an environment's ``pyvenv.cfg``."""
    try:
        lines = read_text(Path(environment, VENV_CONFIG_FILE), errors="replace", most=_MAX_FILE_BYTES).splitlines()
    except OSError:
        return {}
    return {name.strip().lower(): text.strip() for name, _, text in (line.partition("=") for line in lines)}


def _find_version(path: str, real: str, config: Mapping[str, str]) -> str:
    """Return the version of an interpreter from its environment's configuration or its file names; "" if unknown."""
    prefix = Path(real).parent.parent
    # The version in the file name takes precedence, because pyvenv.cfg becomes outdated if the link to Python changes.
    minor = next((found[1] for each in (real, path) if (found := _PYTHON_NAME.fullmatch(Path(each).name))), "")
    texts = (config.get("version", ""), config.get("version_info", ""), prefix.name)
    for version in (found[0] for each in texts if (found := _FULL_VERSION.search(each))):
        if not minor or parse_version(version)[:2] == parse_version(minor):
            return version
    if not minor:
        names = {each.name for each in find_matching(prefix, "lib/python3.*") if _PYTHON_NAME.fullmatch(each.name)}
        minor = names.pop().removeprefix("python") if len(names) == 1 else ""
    try:
        header = read_text(
            prefix / "include" / f"python{minor}" / "patchlevel.h", errors="replace", most=_MAX_FILE_BYTES
        )
    except OSError:
        return minor
    exact = re.search(r'PY_VERSION\s+"(\d+\.\d+\.\d+)', header)
    return exact[1] if exact else minor


def _require_usable(known: PythonInfo, implementation: str) -> PythonInfo:
    if implementation != REQUIRED_IMPLEMENTATION:
        raise UnusablePython(f"it is {sanitize_line(implementation)}, but CPython is required")
    if known.version and parse_version(known.version) < MIN_PYTHON:
        raise UnusablePython(f"it is Python {known.version}, but {_join_version(MIN_PYTHON)} or later is required")
    return known


@lru_cache(maxsize=64)  # cached, because the launch form queries the interpreter after each key press
def _query_cached(path: str, unchanged: tuple[int, ...]) -> PythonInfo:
    try:
        done = run_bounded([path, "-I", "-S", "-c", _VERSION_CODE], unchanged)
    except QueryTimeout as error:
        raise UnusablePython(f"it did not print its version within {error.seconds:g} s") from None
    except OSError as error:
        raise UnusablePython(f"it cannot be run: {error.strerror or error}") from None
    try:
        program, prefix, version, implementation = json.loads(done.stdout)
        known = PythonInfo(
            str(program or path),
            _find_environment(str(program or path)) or str(prefix),
            _join_version(version),
        )
    except (ValueError, TypeError):
        errors = done.stderr.decode(errors="replace").strip().splitlines()
        raise UnusablePython(f"it is not a usable Python ({errors[0] if errors else 'no output'})") from None
    return _require_usable(known, str(implementation))


def find_program(environment: Path) -> Path | None:
    """Return the interpreter in the folder of an environment; None if there is none."""
    programs = (environment / "bin" / name for name in ("python", "python3"))
    return next((each for each in programs if os.path.lexists(each)), None)


def find_other_pythons(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield Python programs of other versions, the newest first: programs in PATH, then those of pyenv and uv."""
    # Skip shims, because they query their version manager, which takes longer than all other steps. Skip relative
    # entries of PATH, because they would select any program in the current folder.
    entries = environ.get("PATH", os.defpath).split(os.pathsep)
    search = os.pathsep.join(each for each in entries if each.startswith("/") and Path(each).name != "shims")
    for minor in range(NEWEST_MINOR, MIN_PYTHON[1] - 1, -1):
        if found := shutil.which(f"python3.{minor}", path=search):
            yield os.path.realpath(found) if Path(found).is_symlink() else found
    folders = [folder for place in _python_folders(environ) for folder in find_matching(place, "*/bin/python3")]
    yield from map(str, sorted(folders, key=lambda path: _parse_folder_version(path.parents[1].name), reverse=True))


def _python_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    own = expand_user(environ.get("HOME") or "~")
    yield Path(environ.get("PYENV_ROOT") or own / ".pyenv") / "versions"
    data = Path(environ.get("XDG_DATA_HOME") or own / ".local/share")
    yield Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python")


def _parse_folder_version(name: str) -> tuple[int, ...]:
    """Return the version numbers in a folder name, such as ``"cpython-3.12.1-linux-x86_64-gnu"``."""
    return parse_version(name.lstrip("abcdefghijklmnopqrstuvwxyz-"))


def _find_environment(program: str) -> str:
    folder = Path(program).parent.parent
    return str(folder) if exists(folder / VENV_CONFIG_FILE) else ""


def _join_version(version: object) -> str:
    return ".".join(map(str, version))  # type: ignore[call-overload]


def find_missing_modules(interpreter: Interpreter, modules: Sequence[str]) -> list[str]:
    """Return the modules that an interpreter lacks. Looks into its package folders, without running it.

    The result is empty if the interpreter's environment does not exist yet, or has no known package folders.
    """
    if is_own_environment(interpreter.prefix):
        return [name for name in modules if missing_packages.is_missing(name)]
    path = list(_find_import_path(interpreter)) if modules and not interpreter.base else []
    return [name for name in modules if path and PathFinder.find_spec(name, path) is None]


def _find_import_path(interpreter: Interpreter) -> Iterator[str]:
    """Yield the folders from which an interpreter imports packages, as determined from files."""
    prefix = Path(interpreter.prefix)
    sites = [site for pattern in _SITE_PATTERNS for site in find_matching(prefix, pattern)]
    config = read_venv_config(interpreter.prefix)
    if config.get("include-system-site-packages") == "true":
        base = Path(config.get("home", "")).parent
        sites += [site for pattern in _SITE_PATTERNS for site in find_matching(base, pattern)]
    for site in sites:
        yield str(site)
        yield from _pth_folders(site)
    yield from (package.entry for package in find_local_packages({}, interpreter.prefix, interpreter.minor))


def _pth_folders(site: Path) -> Iterator[str]:
    """Yield the folders that ``.pth`` files add to ``sys.path``, without running code lines in these files."""
    try:
        files = [each for each in list_entries(site) if each.suffix == ".pth"]
    except OSError:
        return
    for file in files:
        try:
            lines = read_text(file, errors="replace", most=1 << 16).splitlines()
        except OSError:
            continue
        yield from (str(site / line) for line in lines if line.strip() and is_dir(site / line))


QueryPython = Callable[[str], PythonInfo]

VENV_FOLDER = ".venv"
# Environment variables that contain the folder of the active environment.
ENVIRONMENT_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX")


def choose_interpreter(
    script: Path,
    python: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    ask: QueryPython = read_python,
) -> Interpreter:
    """Choose the interpreter of a script.

    Args:
        python: The user's choice: path of an interpreter, or its name in PATH.
        environ: Environment variables of the shell.
        ask: Returns the properties of a program. By default they are read from files; a launch runs the program.

    Raises:
        UsageError: If the user's choice is not a usable interpreter.
        ScriptError: If the script, its project or the shell names an unusable interpreter. The message contains the
            fix.
    """
    metadata = read_inline_metadata(script)
    if python is not None:
        return _from_option(script, os.fspath(python), metadata, environ, ask)
    if metadata is not None:
        base = find_base(metadata.requires_python, f"The inline metadata of {script}", environ, ask)
        return make_interpreter(base, metadata.environment, f"inline metadata of {script.name}")
    found, notes = _find_project_venv(script)
    if found is not None:
        return _from_venv(found, _venv_source(found), notes, ask)
    return _from_shell(environ, notes, ask)


@value
class InterpreterOption(Value):
    """Interpreter that the user may select.

    Attributes:
        path: Path of the program.
        source: Description of where the choice comes from; "" for an interpreter that was only found by the search.
    """

    path: str
    source: str = ""


def list_interpreters(script: Path | None, environ: Mapping[str, str]) -> list[InterpreterOption]:
    """Return the available interpreters in the order of automatic selection, without running them.

    Args:
        script: None if no script is chosen yet.
        environ: Environment variables of the process.
    """
    found: dict[str, InterpreterOption] = {}
    for path, source in _find_interpreters(script, environ):
        where = os.path.abspath(path)  # noqa: PTH100  an environment's program is a link, which must not be resolved
        found.setdefault(where, InterpreterOption(where, source))
    return list(found.values())


def _find_interpreters(script: Path | None, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    venv, _ = (None, ()) if script is None else _find_project_venv(script)
    folders = [(venv, _venv_source(venv))] if venv else []
    folders += [(Path(text), name) for name in ENVIRONMENT_VARIABLES if (text := environ.get(name))]
    for folder, source in folders:
        if (program := find_program(folder)) is not None:
            yield str(program), source
    yield sys.executable, OWN_SOURCE
    yield from ((path, "") for path in find_other_pythons(environ))


def _venv_source(venv: Path) -> str:
    return f"{VENV_FOLDER} of project {venv.parent.name or venv.parent}"


def _from_option(
    script: Path, python: str, metadata: InlineMetadata | None, environ: Mapping[str, str], ask: QueryPython
) -> Interpreter:
    if not python.strip():
        raise UsageError("--python is empty. Give a path, or a name in PATH")
    path = expand_user(python)
    if is_dir(path):
        inside = find_program(path)
        advice = f"Name the interpreter in it: {inside}" if inside else "Name an interpreter"
        raise UsageError(f"--python {python} is a folder. {advice}")
    if os.sep not in python:
        named = shutil.which(python, path=environ.get("PATH", os.defpath))
        if named is None and not exists(path):
            raise UsageError(
                f"--python {python}: PATH has no such program. Give {_suggest_python(python, environ, ask)}"
            )
        path = Path(named or path)
    with convert_errors(f"--python {python:.200} cannot be used", UsageError, UnusablePython):
        known = ask(str(path.absolute()))
    notes = (f"the inline metadata of {script.name} is ignored because of --python",) if metadata else ()
    return Interpreter(known.path, known.prefix, known.version, "--python", notes=notes)


def _suggest_python(python: str, environ: Mapping[str, str], ask: QueryPython) -> str:
    """Return an interpreter whose version is the given text, or advice to name a path. Used if PATH lacks the name."""
    if not re.fullmatch(r"\d+(\.\d+)+", python):
        return "a path"
    version = parse_version(python)
    for program in (own_base_python().path, *find_other_pythons(environ)):
        with suppress(UnusablePython):
            if parse_version(ask(program).version)[: len(version)] == version:
                return program
    return f"a path: Python {python} was not found"


def make_interpreter(
    base: PythonInfo, asked: Mapping[str, Any], source: str, notes: tuple[str, ...] = ()
) -> Interpreter:
    """Return the interpreter of an environment to be created for a script, which contains only the requested packages.

    Args:
        base: Interpreter that the environment is created from.
        asked: Requested packages, as fields of an image.
        source: Description of the file that requests the packages.
        notes: Interpreters that were skipped, with the reason.
    """

    image = {**asked, "alone": True}
    key = environment.environment_key(image, base.path, parse_version(base.version)[:2])
    folder = state_home() / ENVIRONMENTS_FOLDER / f"env-{key}"
    return Interpreter(
        str(folder / "bin" / "python"),
        str(folder),
        base.version,
        source,
        base=base.path,
        environment=image,
        notes=notes,
    )


def find_base(
    specifier: str,
    subject: str,
    environ: Mapping[str, str] = os.environ,
    ask: QueryPython = read_python,
) -> PythonInfo:
    """Return the base interpreter of an environment: this program's own if it matches, else the newest that matches.

    Args:
        specifier: Version specifier in ``requires-python`` syntax.
        subject: Description of the file that requests the version, for errors.

    Raises:
        ScriptError: If no interpreter matches.
    """
    base = own_base_python()
    if satisfies(base.version, specifier):
        return base
    seen = {base.version}
    for program in find_other_pythons(environ):
        try:
            known = ask(program)
        except UnusablePython:
            continue
        if satisfies(known.version, specifier):
            return known
        seen.add(known.version)
    if not is_satisfiable(specifier):
        oldest = ".".join(map(str, MIN_PYTHON))
        raise ScriptError(f'{subject} requires Python "{specifier}", but {oldest} or later is required')
    raise ScriptError(
        f'{subject} requires Python "{specifier}", but only '
        f"{', '.join(sorted(seen, key=parse_version))} was found. "
        "Install one, for example with uv python install"
    )


def _find_project_venv(script: Path) -> tuple[Path | None, tuple[str, ...]]:
    """Return the ``.venv`` beside a script or above it in its project, and notes about a ``.venv`` that was skipped."""
    for folder in folders_up_to_project(resolve_path(script).parent):
        found = folder / VENV_FOLDER
        if not os.path.lexists(found):
            continue
        return (None, (f"{found} was skipped: {reason}",)) if (reason := distrust_reason(str(found))) else (found, ())
    return None, ()


def _from_shell(environ: Mapping[str, str], notes: tuple[str, ...], ask: QueryPython) -> Interpreter:
    for name in ENVIRONMENT_VARIABLES:
        folder = environ.get(name)
        if not folder:
            continue
        if not is_dir(folder):  # the folder of the active environment was deleted after its activation
            notes = (*notes, f"{name} was skipped: folder {folder} does not exist")
            continue
        # Ignore the environment of this program, because the user activated it for the program and not for scripts.
        if is_own_environment(folder):
            break
        return _from_venv(Path(folder), name, notes, ask)
    return own_interpreter(notes)


def _from_venv(folder: Path, source: str, notes: tuple[str, ...], ask: QueryPython) -> Interpreter:
    if is_own_environment(str(folder)):
        return own_interpreter(notes, source, chosen=True)
    program = find_program(folder)
    remedy = "Recreate or remove it" if source.startswith(VENV_FOLDER) else f"Recreate it, or unset {source}"
    if program is None:
        raise ScriptError(f"{folder} ({source}) has no bin/python. {remedy}")
    if not exists(program):
        raise ScriptError(
            f"{folder} ({source}) is broken: its bin/{program.name} leads to {os.path.realpath(program)}, which "
            f"does not exist. {remedy}"
        )
    try:
        known = ask(str(program))
    except UnusablePython as error:
        raise ScriptError(f"{program} ({source}) cannot be used: {error}. {remedy}") from None
    return Interpreter(known.path, known.prefix, known.version, source, notes=notes)


# Packages that this library imports. If a project installs its own versions, these take precedence.
REQUIRED_PACKAGES, OPTIONAL_PACKAGES = ("cloudpickle",), ("pynvml",)
Files = tuple[tuple[str, bytes], ...]


@value
class LibraryPathEntries(Value):
    """Entries of ``sys.path`` that make this library available to another interpreter.

    Attributes:
        first: Folder that contains only our package. It precedes all entries of a project.
        last: Folder with the dependencies of our package, for projects that do not have them.
    """

    first: str
    last: str


def library_path_entries() -> LibraryPathEntries:
    """Create the library folder if necessary, mark it as used, and return its ``sys.path`` entries.

    Raises:
        PoolError: If the folder cannot be written, or a required package is not installed.
    """
    with convert_errors("Cannot copy this library for scripts of other interpreters"):
        return _make_library_entries(_read_library_files())


def _make_library_entries(files: Files) -> LibraryPathEntries:
    folder = state_home() / ENVIRONMENTS_FOLDER / f"env-{_hash_files(files)}"
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Hold a lock on this folder, so that no process deletes it while it prunes old environments.
    with open_lock_file(folder) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            os.utime(folder / MADE_FILE)
        except FileNotFoundError:
            _make_package_folder(folder, files)
    return LibraryPathEntries(str(folder / "first"), str(folder / "last"))


def _make_package_folder(folder: Path, files: Files) -> None:
    """Replace all files of the library folder, because a power failure may have left existing files incomplete."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(data)
    (folder / MADE_FILE).touch()


@cache
def _read_library_files() -> Files:
    """Return the files to write to the library folder: content by path in the folder."""
    parts = (
        ("first", ("skyward_core",)),
        ("last", REQUIRED_PACKAGES),
        ("last", [name for name in OPTIONAL_PACKAGES if find_spec(name)]),
    )
    return tuple(
        (f"{part}/{name}", path.read_bytes()) for part, packages in parts for name, path in _iter_sources(packages)
    )


@cache
def _hash_files(files: Files) -> str:
    digest = hashlib.sha256()
    for name, data in files:
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:16]


def _iter_sources(packages: tuple[str, ...] | list[str]) -> Iterator[tuple[str, Path]]:
    for package in packages:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise PoolError(f"The Python package {package} is not installed. Reinstall this library.")
        origin = Path(spec.origin)
        if not spec.submodule_search_locations:
            yield origin.name, origin
            continue
        above = origin.parent.parent
        found = (path for path in origin.parent.rglob("*") if path.name.endswith((".py", ".json")) and path.is_file())
        yield from ((str(path.relative_to(above)), path) for path in sorted(found))


ReportLine = Callable[[str], None]
MAX_ERROR_CHARACTERS = 2000  # maximum characters of a failed process's output that an error message contains
MAX_LINE_BYTES = 1 << 20  # maximum bytes of a line of an installer's output
REMOVAL_TRIES = 40  # number of attempts, 0.05 s apart, to remove a folder in which killed installers may still write


def ensure_interpreter(interpreter: Interpreter, report: ReportLine, stop: CancellationToken) -> None:
    """Create the environment of an interpreter unless it exists, and mark the environment as used.

    Args:
        report: Receives lines about the progress.
        stop: Cancels the creation.

    Raises:
        PoolError: If the environment cannot be created. The message has the last lines of the installer.
        Cancelled: If ``stop`` was cancelled. An incomplete environment is removed.
    """
    if not interpreter.base:
        return
    root = state_home() / ENVIRONMENTS_FOLDER
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    version = parse_version(interpreter.version)[:2]
    if not environment.find_ready_environment(interpreter.environment, root, interpreter.base, version):
        report(f"creating the environment of the {interpreter.source} with Python {interpreter.version}")
        _make_environment(interpreter, root, report, stop)


def _make_environment(interpreter: Interpreter, root: Path, report: ReportLine, stop: CancellationToken) -> None:
    request = {"image": dict(interpreter.environment), "root": str(root), "env": {}, "cwd": ""}
    library = library_path_entries().first
    try:
        answer = run_builder(interpreter.base, library, request, report, stop)
    except BaseException:
        _remove_environment(Path(interpreter.prefix))
        raise
    if not answer.get("python"):
        raise PoolError(
            f"The environment of the {interpreter.source} cannot be created on this machine: {answer['error']}"
        )


def run_builder(
    python: str, library: str, request: Mapping[str, Any], report: ReportLine, stop: CancellationToken
) -> dict[str, Any]:
    """Run the builder of an environment as a process. Return its answer, which has the reason as "error" if no
    environment was created.

    Args:
        python: The builder's interpreter.
        library: Folder or bundle that contains this package.
        request: Request to ``image_environment.main``.
        report: Receives lines about the progress.
        stop: Cancels the creation.

    Raises:
        OSError: If the builder cannot be started.
        Cancelled: If ``stop`` was cancelled.
    """
    answer: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            environment.module_command(python, "image_environment", library),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # in its own session, so that Ctrl-C in the terminal reaches only the client
        ) as process,
        stop.on_cancel(lambda: kill_group(process)),
    ):
        try:
            assert process.stdin is not None and process.stdout is not None
            # The builder has ended before it read the request; its exit status explains the reason.
            with suppress(BrokenPipeError):
                # Write the request to standard input, because other users could see secrets in command-line arguments.
                process.stdin.write(json.dumps(request).encode())
                process.stdin.close()
            while line := process.stdout.readline(MAX_LINE_BYTES):
                message = _parse_line(line)
                if "line" in message:
                    report(str(message["line"]))
                else:
                    answer = dict(message) or answer
            # Wait without reaping the process, so that its process group can still be killed.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            # Kill remaining child processes, because they could write into the folder of the next attempt.
            if not answer.get("python"):
                kill_group(process)
        if not answer.get("python"):
            status = process.wait()
            errors.seek(0)
            last_words = errors.read().decode(errors="replace").strip()[-MAX_ERROR_CHARACTERS:]
            ended = f"exited with status {status}" if status >= 0 else f"was killed by {signal_name(-status)}"
            answer["error"] = answer.get("error") or last_words or f"the builder process {ended}"
    return answer


def _remove_environment(folder: Path) -> None:
    """Remove an incomplete environment unless another process uses it. Retries, because killed installers end late."""
    with environment.open_lock_file(folder) as lock:
        for _ in range(REMOVAL_TRIES):
            if not try_lock(lock) or (folder / environment.MADE_FILE).exists() or folder.is_symlink():
                return
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                return
            time.sleep(0.05)


def _parse_line(line: bytes) -> Mapping[str, Any]:
    """Parse a line of the builder's output, which is a JSON object.

    Return {} for other output, such as that of a startup file.
    """
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if type(message) is dict else {}


def missing_frameworks(script: Path, interpreter: Interpreter | None = None) -> list[str]:
    """Return the frameworks that a script imports at module level and that its interpreter lacks.

    Frameworks imported inside functions are not included: plugins add them to the ranks' environment. The result is
    empty if there is no interpreter, because choosing one reports the reason.

    Args:
        interpreter: None to choose the interpreter of the script.

    Raises:
        ScriptError: If the script cannot be read, or is not Python.
    """
    imported = missing_packages.imported_frameworks(script)
    try:
        interpreter = interpreter or choose_interpreter(script)
    except (ScriptError, UsageError):
        return []
    return find_missing_modules(interpreter, imported)


def lacks_module(interpreter: Interpreter, module: str) -> bool:
    """Check whether an interpreter lacks a module. An environment that does not exist yet lacks all modules."""
    return bool(interpreter.base or find_missing_modules(interpreter, [module]))
