"""Installation of an image on a node: Python packages by uv or pip, system packages by apt, and setup commands.

Runs as a program on the node, with the standard library only. Requirements, index addresses and credentials may contain
tokens. They are passed by standard input and environment, because every user can read command lines. pip's credentials
are passed in a file, because pip puts index addresses on the command lines of its children.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from skyward_core.node.bootstrap import package_index_restrictions as restrictions
from skyward_core.node.bootstrap.host_inspection import parent_pids, with_descendants
from skyward_core.util.redaction import Redactor, map_strings, secret_values, strip_credentials, url_secrets


@contextlib.contextmanager
def exit_with_client(client: int | None) -> Iterator[None]:
    """Context manager that kills this process and all descendants if the client stops reading the output.

    Args:
        client: Descriptor of the pipe or socket to the client; None to do nothing.
    """
    if client is None:
        yield
        return
    done, tell = os.pipe()
    watch = threading.Thread(target=_watch_client, args=(client, done), daemon=True)
    watch.start()
    try:
        yield
    finally:
        os.close(tell)
        watch.join()  # Wait for the thread, which checks a last time whether the client has disconnected.
        os.close(done)


def _watch_client(client: int, done: int) -> None:
    poll = select.poll()
    poll.register(client, 0)  # An empty event mask reports only errors, and that the client has closed the connection.
    poll.register(done, select.POLLIN)
    if any(descriptor == client for descriptor, _ in poll.poll()):
        _kill_descendants()


def _kill_descendants() -> None:
    """Kill this process and its descendants. They are stopped first, so that none can start another process."""
    own = {os.getpid()}
    stopped: set[int] = set()
    while new := with_descendants(own, parent_pids()) - own - stopped:
        _signal_all(new, signal.SIGSTOP)
        stopped |= new
    _signal_all(stopped, signal.SIGKILL)
    os._exit(1)


def _signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        # The process may have ended, or belong to root. In that case sudo ends the process.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


Emit = Callable[[str], None]
MAX_ERROR_LINES = 20
ANSWER_TIMEOUT = 60.0  # seconds for an interpreter to list its packages; a teardown waits for this interpreter
# Image fields that scripts and projects set in addition to those of the user (see package_index_restrictions). With
# "alone", the environment does not contain the packages of the base interpreter.
SCRIPT_FIELDS = ("index", "find_links", "no_index", "alone", restrictions.PINNED, "constraints", "folders")
# file whose existence marks a complete environment; it contains the path of the environment's interpreter
MADE_FILE = ".made"
INSTALLED_FILE = ".installed"  # file that lists the environment's packages and their versions
# Working folder of the installers: "/", because only root can write there. In a project's folder Python could import
# the project's files, and uv would read settings from parent folders.
INSTALLERS_FOLDER = "/"
EXTRA_PATH = ("~/.local/bin", "~/.cargo/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")

# Folder or bundle that contains this package. ``_MAIN`` runs a module of the package in any supported interpreter.
ROOT = str(Path(__file__).parents[3])
_MAIN = "import sys; sys.path.insert(0, sys.argv[1]); from skyward_core.node.bootstrap.{0} import main; main()"


class EnvironmentFailed(OSError):
    """An environment could not be built. The message contains the last lines of the installer."""


def environment_key(image: Mapping[str, Any], python: str, version: Sequence[int] = sys.version_info[:2]) -> str:
    """Return 16 hexadecimal digits that identify the content of an environment, ignoring variables and credentials.

    Args:
        image: Fields of the image.
        python: The base interpreter.
        version: Major and minor version of the base interpreter.
    """
    parts = {
        name: map_strings(image.get(name), strip_credentials)
        for name in ("pip", "pip_indexes", "apt", "setup", *filter(image.get, SCRIPT_FIELDS))
    }
    return hashlib.sha256(json.dumps([parts, python, version], sort_keys=True).encode()).hexdigest()[:16]


def module_command(python: str, module: str, root: str = ROOT) -> list[str]:
    """Return the command that runs the ``main`` function of a module of ``node.bootstrap``.

    Args:
        python: The interpreter.
        module: Name of the module.
        root: Folder or bundle that contains this package.
    """
    return [python, "-I", "-c", _MAIN.format(module), root]


def find_ready_environment(
    image: Mapping[str, Any],
    root: Path,
    python: str = sys.executable,
    version: Sequence[int] = sys.version_info[:2],
    ours: str = ROOT,
) -> str:
    """Return the interpreter of an existing environment, or "". Mark the environment as used.

    Args:
        image: Fields of the image.
        root: Folder of skyward on the node.
        python, version: See :func:`environment_key`.
        ours: See ``root`` of :func:`module_command`.
    """
    from skyward_core.node.bootstrap.installed_packages import unmet_requirements

    found = _find_ready(root / f"env-{environment_key(image, python, version)}")
    if found == python:
        needed = list_requirements(image)
        if unmet_requirements(needed) if python == sys.executable else find_unmet_requirements(python, needed, ours):
            return ""  # Packages of the base interpreter were removed after the environment was created.
    return found


def _find_ready(folder: Path) -> str:
    """Return the interpreter of an environment's folder; "" if it is missing or locked. Mark the folder as used."""
    if not (folder / MADE_FILE).exists():
        return ""
    with open_lock_file(folder) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return _mark_used(folder)
        except (BlockingIOError, FileNotFoundError):
            return ""


def open_lock_file(folder: Path) -> IO[str]:
    """Open an environment's lock file: locked exclusively to build or delete the environment, shared to use it."""
    return folder.with_name(f"{folder.name}.lock").open("a")


def _mark_used(folder: Path) -> str:
    """Mark a locked environment as used and return its interpreter.

    Raises:
        FileNotFoundError: If the environment is incomplete, or its interpreter was removed by an update.
    """
    made, now = folder / MADE_FILE, time.time_ns()
    # Set the time explicitly, because the file system's clock may be behind this machine's clock.
    os.utime(made, ns=(now, now))
    python = made.read_text(encoding="utf-8")
    Path(python).stat()
    return python


def ensure_environment(
    image: Mapping[str, Any],
    root: Path,
    env: Mapping[str, str],
    cwd: str,
    emit: Emit,
    client: int | None = None,
) -> str:
    """Build an image's environment on this node unless it exists.

    Args:
        image: ``python``, ``pip``, ``pip_indexes``, ``apt`` and ``setup`` of an :class:`~skyward_core.Image`, and
            ``pinned`` and ``constraints`` from a project's files.
        root: Folder of skyward on the node.
        env: Variables for the setup commands.
        cwd: Working folder of the setup commands, or "".
        emit: Called with each line of progress.
        client: Descriptor to the client if this process must end with the client.

    Returns:
        The path of the interpreter for the workers.

    Raises:
        EnvironmentFailed: If a step failed. The message names the step and contains its last lines.
    """
    secrets = Redactor([*secret_values(os.environ | dict(env)), *url_secrets(dict(image))])

    def show(line: str) -> None:
        emit(secrets.redact_text(strip_credentials(line)))

    try:
        return _build_environment(image, root, env, cwd, show, client)
    except EnvironmentFailed as error:
        raise EnvironmentFailed(secrets.redact_text(strip_credentials(str(error)))) from None
    except BrokenPipeError:
        raise  # The client disconnected, so no error can be sent to it.
    except OSError as error:
        raise EnvironmentFailed(f"{error.filename or root}: {error.strerror or error}") from error


def _build_environment(
    image: Mapping[str, Any], root: Path, env: Mapping[str, str], cwd: str, emit: Emit, client: int | None
) -> str:
    python = sys.executable
    apt, setup = (list(image.get(name) or ()) for name in ("apt", "setup"))
    alone, requirements = bool(image.get("alone")), list_requirements(image)
    missing = requirements if alone else find_unmet_requirements(python, requirements)
    if not (missing or apt or setup or alone):
        emit("all packages are already installed" if requirements else "nothing to install")
        return python
    folder = root / f"env-{environment_key(image, python)}"
    interpreter = str(folder / "bin" / "python") if missing or alone else python
    if (existing := _find_ready(folder)) and not (missing and existing == python):
        emit(f"environment {folder.name} already exists")
        return existing
    with open_lock_file(folder) as lock:
        with exit_with_client(client):
            _wait_for_lock(lock, emit)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            existing = _mark_used(folder)
            if not (missing and existing == python):
                return existing
        _clear_folder(folder)
        variables = _installer_variables(env, image.get("pip_indexes") or ())
        variables |= dict(restrictions.index_variables(image, variables))
        variables |= {_address_variable(name): address for name, address in restrictions.lock_indexes(image).items()}
        with _netrc_credentials(variables, folder / ".netrc"):
            # The installation continues if the client disconnects, because a half-finished one would block other users.
            _install_apt_packages(apt, variables, emit)
            with exit_with_client(client):
                if missing or alone:
                    _install(python, folder, image, variables, emit)
                    _add_package_folders(folder, image.get("folders") or ())
                variables["PATH"] = str(Path(interpreter).parent) + os.pathsep + variables["PATH"]
                for number, command in enumerate(setup, 1):
                    emit(f"setup {number} of {len(setup)}: {command}")
                    step = f"setup command {command!r}"
                    _run_installer(["sh", "-c", command], step, variables, emit, cwd=cwd or None)
        if requirements:
            (folder / INSTALLED_FILE).write_text(json.dumps(_list_installed(interpreter)), encoding="utf-8")
        partial = folder / ".making"
        partial.write_text(interpreter, encoding="utf-8")
        partial.replace(folder / MADE_FILE)
    return interpreter


def _clear_folder(folder: Path) -> None:
    """Replace the remains of an interrupted build by an empty folder. If the path is a link, keep the link's target."""
    try:
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFailed(
            f"cannot delete the incomplete environment {folder}: {error}. Delete it by hand."
        ) from error
    folder.mkdir(parents=True, mode=0o700)


def _wait_for_lock(lock: IO[str], emit: Emit) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        emit("waiting for another process that builds or deletes this environment")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _installer_variables(env: Mapping[str, str], indexes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    variables = dict(os.environ) | dict(env)
    # Remove relative entries of PATH, because programs of the working folder must not be run.
    known = [entry for entry in variables.get("PATH", "").split(os.pathsep) if entry.startswith("/")]
    extra = [str(Path(path).expanduser()) for path in EXTRA_PATH]
    variables["PATH"] = os.pathsep.join([*known, *(path for path in extra if path not in known)])
    variables["PIP_DISABLE_PIP_VERSION_CHECK"] = variables["PIP_NO_INPUT"] = "1"
    variables["DEBIAN_FRONTEND"] = "noninteractive"
    if indexes:
        unscoped = [(number, str(each["url"])) for number, each in enumerate(indexes) if not each.get("packages")]
        urls = [url for _, url in unscoped]
        variables["PIP_EXTRA_INDEX_URL"] = " ".join([*urls, variables.get("PIP_EXTRA_INDEX_URL", "")]).strip()
        variables["UV_INDEX"] = " ".join(f"{restrictions.index_name(number)}={url}" for number, url in unscoped)
        variables |= dict(restrictions.index_credentials(indexes))
        # One variable per restricted index, so that _netrc_credentials() can remove the credentials in its address.
        variables |= {
            _address_variable(number): str(each["url"]) for number, each in enumerate(indexes) if each.get("packages")
        }
    return variables


@contextlib.contextmanager
def _netrc_credentials(variables: dict[str, str], path: Path) -> Iterator[None]:
    """Move pip's credentials from the index addresses to a temporary netrc file.

    pip passes index addresses on the command lines of its build processes. A netrc file has one user per host, so
    credentials of a second user of a host remain in the address.
    """
    logins: dict[str, tuple[str, str]] = {}
    for name in (
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_FIND_LINKS",
        *(each for each in variables if each.startswith(_ADDRESS)),
    ):
        if name in variables:
            variables[name] = restrictions.split_credentials(variables[name], logins)
    if not logins:
        yield
        return
    lines = [
        f"machine {host} login {json.dumps(user, ensure_ascii=False)} "
        f"password {json.dumps(password, ensure_ascii=False)}\n"
        for host, (user, password) in logins.items()
    ]
    with contextlib.suppress(OSError):
        # The new netrc file replaces the user's own, so it includes the content of that file.
        own = variables.get("NETRC") or Path.home() / ".netrc"
        lines.insert(0, Path(own).read_text(encoding="utf-8") + "\n")
    if hasattr(os, "memfd_create"):
        # The file is in memory, so that no credentials remain on disk if this process is killed.
        descriptor = os.memfd_create("netrc", os.MFD_CLOEXEC)
        variables["NETRC"] = f"/proc/{os.getpid()}/fd/{descriptor}"
    else:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        variables["NETRC"] = str(path)
    with open(descriptor, "w", encoding="utf-8") as file:
        try:
            file.writelines(lines)
            file.flush()
            yield
        finally:
            path.unlink(missing_ok=True)


_ADDRESS = "SKYWARD_INDEX_"


def _address_variable(index: int | str) -> str:
    """Return the name of the environment variable that contains the address of a restricted package index."""
    return f"{_ADDRESS}{index}"


def _single_index_variables(address: str) -> dict[str, str]:
    """Return environment variables that make pip and uv use only one package index."""
    return {"PIP_INDEX_URL": address, "PIP_EXTRA_INDEX_URL": "", "UV_DEFAULT_INDEX": address, "UV_INDEX": ""}


def find_unmet_requirements(python: str, requirements: list[str], root: str = ROOT) -> list[str]:
    """Return the requirements that an interpreter does not meet, or all requirements if the check fails.

    Raises:
        EnvironmentFailed: If the interpreter does not answer in time.
    """
    if not requirements:
        return []
    found = _query_interpreter(python, root, json.dumps(requirements))
    try:
        return list(json.loads(found.stdout))
    except ValueError:
        return requirements


def _query_interpreter(python: str, root: str, request: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``node.bootstrap.installed_packages`` in an interpreter with a time limit, and return its answer.

    Raises:
        EnvironmentFailed: If the time limit was exceeded.
    """
    command = module_command(python, "installed_packages", root)
    try:
        return subprocess.run(
            command, input=request, capture_output=True, text=True, check=False, timeout=ANSWER_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"{python} did not list its packages within {ANSWER_TIMEOUT:g} s") from None


def list_requirements(image: Mapping[str, Any]) -> list[str]:
    """Return all package requirements of an image's environment, without hashes."""
    groups = image.get(restrictions.PINNED) or ()
    exact = [line.partition(" --hash=")[0] for group in groups for line in group["lines"]]
    return [*(image.get("pip") or ()), *exact, *(image.get("constraints") or ())]


def list_installed_packages(python: str, root: str = ROOT) -> dict[str, str]:
    """Return the packages of an interpreter in the format of ``installed_packages.list_packages``.

    For environments built by this module, return the list that the build saved.

    Args:
        python: The interpreter.
        root: See :func:`module_command`.
    """
    try:
        found = json.loads(Path(python).parents[1].joinpath(INSTALLED_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return _list_installed(python, root)
    return dict(found)


def _install(python: str, folder: Path, image: Mapping[str, Any], variables: dict[str, str], emit: Emit) -> None:
    requirements, indexes = list(image.get("pip") or ()), image.get("pip_indexes") or ()
    uv = shutil.which("uv", path=variables["PATH"])
    target = str(folder / "bin" / "python")
    if uv:
        _run_installer(
            [uv, "venv", "--quiet", "--allow-existing", "--python", python, str(folder)],
            "uv venv",
            variables,
            emit,
        )
        no_index = ["--no-index"] if image.get("no_index") else []
        install = [uv, "pip", "install", "--python", target, *no_index]
        _install_pinned([*install, "-r", "-"], "uv pip install", image, variables, emit)
        excluded: list[str] = []
        if restrictions.map_packages_to_indexes(indexes):
            (folder / "pyproject.toml").write_text(
                restrictions.format_pyproject(requirements, indexes), encoding="utf-8"
            )
            excluded = restrictions.unnamed_packages(requirements, indexes)
            source, given = str(folder / "pyproject.toml"), ""
        else:
            source, given = "-", "\n".join(requirements)
        command = [*install, "-r", source, *_constraint_options(folder, image, {}, excluded)]
        with _explain_index_failure(requirements, indexes):
            if requirements:
                _run_installer(command, "uv pip install", variables, emit, input_text=given)
        return
    pip = _pip_command(python, target)
    # The environment is created without pip, which it does not need and which takes seconds to install.
    bare = ["--without-pip"] if pip else []
    if not pip:
        if _run_python(python, "import venv, ensurepip").returncode:
            raise EnvironmentFailed(
                "Image(pip=...) requires uv or Python's venv with pip, but this host has neither. "
                "Install uv, or the packages python3-venv and python3-pip."
            )
        pip = [target, "-m", "pip"]
    _run_installer([python, "-m", "venv", *bare, str(folder)], "python -m venv", variables, emit)
    install = [*pip, "install", "--progress-bar", "off", "-r", "/dev/stdin"]
    _install_pinned(install, "pip install", image, variables, emit)
    if not requirements:
        return
    for number, own in restrictions.group_by_index(requirements, indexes).items():
        alone = {**variables, **_single_index_variables(variables[_address_variable(number)])}
        _run_installer([*install, "--no-deps"], "pip install", alone, emit, input_text="\n".join(own))
    installed: dict[str, str] = {}
    if restricted := restrictions.map_packages_to_indexes(indexes):
        installed = {name: version for name, version in _list_installed(target).items() if name in restricted}
    limits = _constraint_options(
        folder, image, installed, [package for package in restricted if package not in installed]
    )
    with _explain_index_failure(requirements, indexes):
        _run_installer([*install, *limits], "pip install", variables, emit, input_text="\n".join(requirements))


@contextlib.contextmanager
def _explain_index_failure(requirements: Sequence[str], indexes: Sequence[restrictions.Index]) -> Iterator[None]:
    """Add an explanation to installer errors that may occur because a package is restricted to one index."""
    try:
        yield
    except EnvironmentFailed as error:
        needed = [package for package in restrictions.unnamed_packages(requirements, indexes) if package in str(error)]
        if not needed:
            raise
        names = ", ".join(needed)
        raise EnvironmentFailed(
            f"{error}\n{names}: restricted to an index of the image, but only required by another package. "
            "Add it to Image(pip=...)."
        ) from None


def _list_installed(python: str, root: str = ROOT) -> dict[str, str]:
    """Return the version of each installed package of an interpreter."""
    done = _query_interpreter(python, root)
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        raise EnvironmentFailed(f"cannot list the installed packages: {done.stderr.strip()}") from None


def _add_package_folders(folder: Path, packages: Sequence[Sequence[str]]) -> None:
    """Add folders of this machine to an environment's import path."""
    entries = "".join(f"{entry}\n" for _, entry in packages)
    for site in folder.glob("lib/python*/site-packages") if entries else ():
        (site / "folders.pth").write_text(entries, encoding="utf-8")


def _constraint_options(
    folder: Path, image: Mapping[str, Any], installed: Mapping[str, str], excluded: Sequence[str]
) -> list[str]:
    """Return installer options that enforce the image's constraints, pinned versions and installed versions."""
    exact = [
        line
        for line in list_requirements({restrictions.PINNED: image.get(restrictions.PINNED)})
        if "==" in line.partition(";")[0]
    ]
    text = restrictions.format_constraints(installed, excluded) + "".join(
        f"{each}\n" for each in [*exact, *(image.get("constraints") or ())]
    )
    if not text:
        return []
    path = folder / "constraints.txt"
    path.write_text(text, encoding="utf-8")
    return ["-c", str(path)]


def _install_pinned(
    install: Sequence[str], step: str, image: Mapping[str, Any], variables: Mapping[str, str], emit: Emit
) -> None:
    """Install the pinned packages without dependencies, each from its index. Verify hashes if the pins have any."""
    for lines, index in restrictions.iterate_pinned_groups(image):
        alone = {} if index is None else _single_index_variables(variables[_address_variable(index)])
        for hashed in (True, False):
            some = [line for line in lines if (" --hash=" in line) is hashed]
            options = ["--no-deps", "--require-hashes"] if hashed else ["--no-deps"]
            if some:
                _run_installer([*install, *options], step, {**variables, **alone}, emit, input_text="\n".join(some))


def _pip_command(python: str, target: str) -> list[str]:
    """Return the command that runs the base interpreter's pip for a new environment; [] if its pip is not usable."""
    found = _run_python(python, _ASK_PIP)
    if found.returncode:
        return []
    # Run pip as its --python option would, but with one process less.
    return [target, runner] if (runner := found.stdout.strip()) else [python, "-m", "pip", "--python", target]


_ASK_PIP = """
import os, pip, venv
runner = os.path.join(os.path.dirname(pip.__file__), "__pip-runner__.py")
print(runner if os.path.isfile(runner) else "")
"""


def _run_python(python: str, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False)


def _install_apt_packages(packages: list[str], variables: dict[str, str], emit: Emit) -> None:
    if not packages:
        return
    if shutil.which("apt-get", path=variables["PATH"]) is None:
        raise EnvironmentFailed("Image(apt=...) requires a Debian or Ubuntu host, but apt-get was not found")
    missing = [package for package in packages if not has_package(package)]
    if not missing:
        return
    as_root: list[str] = []
    if os.getuid() != 0:
        if subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode:
            raise EnvironmentFailed(
                f"cannot install the packages {', '.join(missing)}: this user has "
                "no passwordless sudo. Install them by hand, or log in as root."
            )
        as_root = ["sudo", "-n", "--preserve-env=DEBIAN_FRONTEND"]
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    _run_installer([*as_root, "apt-get", *wait, "update", "-q"], "apt-get update", variables, emit)
    _run_installer(
        [*as_root, "apt-get", *wait, "install", "-y", "-q", "--no-install-recommends", *missing],
        "apt-get install", variables, emit,
    )  # fmt: skip


def has_package(package: str) -> bool:
    name = package.partition("=")[0]
    try:
        found = subprocess.run(["dpkg-query", "-W", "-f=${Status}", name], capture_output=True, check=False)
    except FileNotFoundError:  # The system is not Debian, so it has no dpkg.
        return False
    return found.returncode == 0 and b"install ok installed" in found.stdout


def _run_installer(
    command: list[str],
    step: str,
    variables: Mapping[str, str],
    emit: Emit,
    *,
    input_text: str = "",
    cwd: str | None = INSTALLERS_FOLDER,
) -> None:
    last: deque[str] = deque(maxlen=MAX_ERROR_LINES)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=dict(variables), cwd=cwd, text=True, encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            # If the installer exited before it read its input, its exit code explains the error.
            process.stdin.write(input_text)
            process.stdin.close()
        try:
            for line in process.stdout:
                text = line.rstrip().rpartition("\r")[2]
                if text:
                    last.append(text)
                    emit(text)
        except BrokenPipeError:
            process.kill()  # The client disconnected, so stop the installer.
            raise
    if process.returncode:
        raise EnvironmentFailed(f"{step} failed with exit code {process.returncode}: " + "\n".join(last))


def main() -> None:
    """Build an image's environment for the client that reads the output.

    Reads the request as JSON from standard input. Writes one JSON object per line: progress, then the result or an
    error.
    """
    request = json.load(sys.stdin)

    def write(**values: Any) -> None:
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()

    try:
        root, line = Path(request["root"]), lambda line: write(line=line)
        python = ensure_environment(request["image"], root, request["env"], request["cwd"], line, client=1)
        found = list_installed_packages(python) if list_requirements(request["image"]) else {}
    except OSError as error:
        write(error=str(error))
    else:
        write(python=python, installed=found)
