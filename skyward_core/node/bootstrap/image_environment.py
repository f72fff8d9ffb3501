"""Image environments built by uv or pip, apt and setup commands (a program).

Runs on the node, with the standard library only. Requirements go to the installers by standard input, index
addresses by environment and, as pip hands those on to its children's command lines, which every user can read, pip's
credentials by a file: each may hold a token. None is shown.
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

from skyward_core.node.bootstrap.package_indexes import (
    PINNED,
    Index,
    format_constraints,
    format_pyproject,
    group_by_index,
    index_credentials,
    index_name,
    index_variables,
    iterate_pinned_groups,
    lock_indexes,
    map_packages_to_indexes,
    split_credentials,
    unnamed_packages,
)
from skyward_core.util.redaction import Redactor, map_strings, secret_values, strip_credentials, url_secrets


@contextlib.contextmanager
def exit_with_client(reads: int | None) -> Iterator[None]:
    """End this process, and all that it has started, once nobody reads any more what it says.

    Args:
        reads: our end of the pipe or socket at whose other end the client reads; None for no client.
    """
    if reads is None:
        yield
        return
    done, tell = os.pipe()
    watch = threading.Thread(target=_watch_client, args=(reads, done), daemon=True)
    watch.start()
    try:
        yield
    finally:
        os.close(tell)
        watch.join()  # not before the client was looked for once more
        os.close(done)


def _watch_client(reads: int, done: int) -> None:
    poll = select.poll()
    poll.register(reads, 0)  # which tells of errors and the other side's end alone
    poll.register(done, select.POLLIN)
    if any(descriptor == reads for descriptor, _ in poll.poll()):
        _kill_descendants()


def _kill_descendants() -> None:
    """Stopped first, so that none starts another between our look and its end."""
    stopped: set[int] = set()
    while new := _find_descendants(os.getpid()) - stopped:
        _signal_all(new, signal.SIGSTOP)
        stopped |= new
    _signal_all(stopped, signal.SIGKILL)
    os._exit(1)


def _signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended; it is sudo's, and ends by itself
            os.kill(pid, number)


def _find_descendants(root: int) -> set[int]:
    """Processes that run below one; none where there is no /proc."""
    parents: dict[int, int] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc")) if os.path.isdir("/proc") else ()):  # noqa: PTH208, PTH112
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                parents[pid] = int(parent)
    found: set[int] = set()
    while new := {pid for pid, parent in parents.items() if parent == root or parent in found} - found:
        found |= new
    return found


Emit = Callable[[str], None]
MAX_ERROR_LINES = 20
ANSWER_TIMEOUT = 60.0  # seconds in which an interpreter tells what packages it has: a pool's end waits for it
# What only scripts and projects ask for, in their own words: see places() and pinned.py; "alone": nothing that the
# interpreter has counts.
SCRIPT_FIELDS = ("index", "find_links", "no_index", "alone", PINNED, "constraints", "folders")
MADE_FILE = ".made"  # a file of a whole environment, with its interpreter's path
INSTALLED_FILE = ".installed"  # another, with what is installed there
# Where installers run: Python would import what lies beside a project's files, and uv obey settings of any folder
# above; there, those are root's alone.
INSTALLERS_FOLDER = "/"
EXTRA_PATH = ("~/.local/bin", "~/.cargo/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")

# What runs a function of this package's in any interpreter of this version: a folder or the bundle is where it is.
ROOT = str(Path(__file__).parents[3])
_MAIN = "import sys; sys.path.insert(0, sys.argv[1]); from skyward_core.node.bootstrap.{0} import main; main()"


class EnvironmentFailed(OSError):
    """An environment could not be made; the message holds the installer's last lines."""


def environment_key(image: Mapping[str, Any], python: str, version: Sequence[int] = sys.version_info[:2]) -> str:
    """16 hexadecimal digits for what an environment holds; variables and credentials are no part of it.

    Args:
        python: the interpreter that it is made of.
        version: that one's, the first two numbers.
    """
    parts = {
        name: map_strings(image.get(name), strip_credentials)
        for name in ("pip", "pip_indexes", "apt", "setup", *filter(image.get, SCRIPT_FIELDS))
    }
    content = json.dumps([parts, python, version], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def module_command(python: str, module: str, root: str = ROOT) -> list[str]:
    """What runs the ``main`` of a module beside this one.

    Args:
        root: the folder or bundle that has this package, for an interpreter of a project's nothing else with it.
    """
    return [python, "-I", "-c", _MAIN.format(module), root]


def find_ready_environment(
    image: Mapping[str, Any],
    root: Path,
    python: str = sys.executable,
    version: Sequence[int] = sys.version_info[:2],
    ours: str = ROOT,
) -> str:
    """The interpreter of an image's environment where that is made already, else "". It counts as used now.

    Args:
        python, version: as of :func:`key`.
        ours: as ``root`` of :func:`own_command`.
    """
    from skyward_core.node.bootstrap.missing_requirements import unmet_requirements

    found = _find_ready(root / f"env-{environment_key(image, python, version)}")
    if found == python:
        wanted = list_requirements(image)
        if unmet_requirements(wanted) if python == sys.executable else find_unmet_requirements(python, wanted, ours):
            return ""  # it had the packages by itself when it was set up, and has lost some since
    return found


def _find_ready(folder: Path) -> str:
    """The same by the environment's folder; "", too, while somebody makes or removes it."""
    if not (folder / MADE_FILE).exists():
        return ""
    with open_lock_file(folder) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return _mark_used(folder)
        except (BlockingIOError, FileNotFoundError):
            return ""


def open_lock_file(folder: Path) -> IO[str]:
    """The file to have locked while an environment is made or removed; shared, while it is told to be used."""
    return folder.with_name(f"{folder.name}.lock").open("a")


def _mark_used(folder: Path) -> str:
    """The interpreter of an environment that is locked: from now on it is none that nobody has used for long.

    Raises:
        FileNotFoundError: it is not made, or its interpreter was since updated away.
    """
    made, now = folder / MADE_FILE, time.time_ns()
    os.utime(made, ns=(now, now))  # the file system's own clock may be behind that of the ledger
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
    """Have an image's environment on this node.

    Args:
        image: ``python``, ``pip``, ``pip_indexes``, ``apt`` and ``setup`` of an :class:`~skyward_core.Image`; what a
            project's files come to (``pinned``, ``constraints``).
        root: our folder on the node.
        env: variables of the setup commands.
        cwd: where the setup commands run, or "".
        emit: takes each line that the installers print.
        client: the descriptor that it reads from, where this process is to end with it.

    Returns:
        The path of the interpreter to run the workers with.

    Raises:
        EnvironmentFailed: says which step failed, and its last lines.
    """
    secrets = Redactor([*secret_values(os.environ | dict(env)), *url_secrets(dict(image))])

    def show(line: str) -> None:
        emit(secrets.redact_text(strip_credentials(line)))

    try:
        return _build_environment(image, root, env, cwd, show, client)
    except EnvironmentFailed as error:
        raise EnvironmentFailed(secrets.redact_text(strip_credentials(str(error)))) from None
    except BrokenPipeError:
        raise  # nobody hears of it any more
    except OSError as error:
        raise EnvironmentFailed(f"{error.filename or root}: {error.strerror or error}") from error


def _build_environment(
    image: Mapping[str, Any], root: Path, env: Mapping[str, str], cwd: str, emit: Emit, client: int | None
) -> str:
    python = sys.executable
    apt, setup = (list(image.get(name) or ()) for name in ("apt", "setup"))
    alone, wanted = bool(image.get("alone")), list_requirements(image)
    missing = wanted if alone else find_unmet_requirements(python, wanted)
    if not (missing or apt or setup or alone):
        emit("the interpreter has everything already" if wanted else "nothing to install")
        return python
    folder = root / f"env-{environment_key(image, python)}"
    interpreter = str(folder / "bin" / "python") if missing or alone else python
    if (there := _find_ready(folder)) and not (missing and there == python):
        emit(f"environment {folder.name} is there already")
        return there
    with open_lock_file(folder) as lock:
        with exit_with_client(client):
            _wait_for_lock(lock, emit)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            there = _mark_used(folder)
            if not (missing and there == python):
                return there
        _clear_folder(folder)
        variables = _installer_variables(env, image.get("pip_indexes") or ())
        variables |= dict(index_variables(image, variables))
        variables |= {_address_variable(name): address for name, address in lock_indexes(image).items()}
        with _netrc_credentials(variables, folder / ".netrc"):
            _install_apt_packages(
                apt, variables, emit
            )  # to its end, also for nobody: half of it would lie in all others' way
            with exit_with_client(client):
                if missing or alone:
                    _install(python, folder, image, variables, emit)
                    _add_package_folders(folder, image.get("folders") or ())
                variables["PATH"] = str(Path(interpreter).parent) + os.pathsep + variables["PATH"]
                for number, command in enumerate(setup, 1):
                    emit(f"setup {number} of {len(setup)}: {command}")
                    what = f"setup command {command!r}"
                    _run_installer(["sh", "-c", command], what, variables, emit, cwd=cwd or None)
        if wanted:
            (folder / INSTALLED_FILE).write_text(json.dumps(_list_installed(interpreter)), encoding="utf-8")
        partial = folder / ".making"
        partial.write_text(interpreter, encoding="utf-8")
        partial.replace(folder / MADE_FILE)
    return interpreter


def _clear_folder(folder: Path) -> None:
    """An empty folder in the place of what a start left that was ended half way; a link's target is left alone."""
    try:
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFailed(
            f"what was left half made in {folder} cannot be removed ({error}): remove it by hand"
        ) from error
    folder.mkdir(parents=True, mode=0o700)


def _wait_for_lock(lock: IO[str], emit: Emit) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        emit("somebody else is making or removing this environment; waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _installer_variables(env: Mapping[str, str], indexes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    variables = dict(os.environ) | dict(env)
    # No entry is the working folder's, and what lies in that is not for us to run.
    known = [entry for entry in variables.get("PATH", "").split(os.pathsep) if entry.startswith("/")]
    extra = [str(Path(path).expanduser()) for path in EXTRA_PATH]
    variables["PATH"] = os.pathsep.join([*known, *(path for path in extra if path not in known)])
    variables["PIP_DISABLE_PIP_VERSION_CHECK"] = variables["PIP_NO_INPUT"] = "1"
    variables["DEBIAN_FRONTEND"] = "noninteractive"
    if indexes:
        everybodys = [(number, str(each["url"])) for number, each in enumerate(indexes) if not each.get("packages")]
        urls = [url for _, url in everybodys]
        variables["PIP_EXTRA_INDEX_URL"] = " ".join([*urls, variables.get("PIP_EXTRA_INDEX_URL", "")]).strip()
        variables["UV_INDEX"] = " ".join(f"{index_name(number)}={url}" for number, url in everybodys)
        variables |= dict(index_credentials(indexes))
        # By number, as long as it takes: _netrc() takes credentials out of them, too.
        variables |= {
            _address_variable(number): str(each["url"]) for number, each in enumerate(indexes) if each.get("packages")
        }
    return variables


@contextlib.contextmanager
def _netrc_credentials(variables: dict[str, str], path: Path) -> Iterator[None]:
    """Take pip's credentials out of its indexes' addresses, into a file for the time that it takes.

    pip gives the addresses to the pip that installs what a build needs on its command line. A second user at the
    same host has no place in such a file, and stays in its address.
    """
    taken: dict[str, tuple[str, str]] = {}
    for name in (
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_FIND_LINKS",
        *(each for each in variables if each.startswith(_ADDRESS)),
    ):
        if name in variables:
            variables[name] = split_credentials(variables[name], taken)
    if not taken:
        yield
        return
    lines = [
        f"machine {host} login {json.dumps(user, ensure_ascii=False)} "
        f"password {json.dumps(password, ensure_ascii=False)}\n"
        for host, (user, password) in taken.items()
    ]
    with contextlib.suppress(OSError):  # it takes the place of the user's own file, where there is one
        own = variables.get("NETRC") or Path.home() / ".netrc"
        lines.insert(0, Path(own).read_text(encoding="utf-8") + "\n")
    if hasattr(os, "memfd_create"):  # on no disk: should we be killed, nothing of it stays
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
    """The variable with the address of an index that is kept to some packages."""
    return f"{_ADDRESS}{index}"


def _single_index_variables(address: str) -> dict[str, str]:
    """Variables by which installers look at one index and no other."""
    return {"PIP_INDEX_URL": address, "PIP_EXTRA_INDEX_URL": "", "UV_DEFAULT_INDEX": address, "UV_INDEX": ""}


def find_unmet_requirements(python: str, requirements: list[str], root: str = ROOT) -> list[str]:
    """Those of the requirements that the interpreter does not meet; all of them where it cannot tell.

    Raises:
        EnvironmentFailed: it says nothing.
    """
    if not requirements:
        return []
    try:
        found = subprocess.run(
            module_command(python, "missing_requirements", root),
            input=json.dumps(requirements).encode(),
            capture_output=True,
            check=False,
            timeout=ANSWER_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"{python} has not said within {ANSWER_TIMEOUT:g} s what is installed") from None
    try:
        return list(json.loads(found.stdout))
    except ValueError:
        return requirements


def list_requirements(image: Mapping[str, Any]) -> list[str]:
    """All that an environment must meet, as requirements without hashes."""
    groups = image.get(PINNED) or ()
    exact = [line.partition(" --hash=")[0] for group in groups for line in group["lines"]]
    return [*(image.get("pip") or ()), *exact, *(image.get("constraints") or ())]


def list_installed_packages(python: str, root: str = ROOT) -> dict[str, str]:
    """Return the packages that ranks of an interpreter find, as ``installed_packages.list_packages`` lists them. For an
    environment that was made here these are the packages that were installed then.

    Args:
        root: as of :func:`own_command`.
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
        nowhere = ["--no-index"] if image.get("no_index") else []
        install = [uv, "pip", "install", "--python", target, *nowhere]
        _install_pinned([*install, "-r", "-"], "uv pip install", image, variables, emit)
        never: list[str] = []
        if map_packages_to_indexes(indexes):
            (folder / "pyproject.toml").write_text(format_pyproject(requirements, indexes), encoding="utf-8")
            never = unnamed_packages(requirements, indexes)
            wanted, given = str(folder / "pyproject.toml"), ""
        else:
            wanted, given = "-", "\n".join(requirements)
        command = [*install, "-r", wanted, *_constraint_options(folder, image, {}, never)]
        with _explain_index_failure(requirements, indexes):
            if requirements:
                _run_installer(command, "uv pip install", variables, emit, given=given)
        return
    pip = _pip_command(python, target)
    bare = ["--without-pip"] if pip else []  # its own pip would take seconds, and is not needed
    if not pip:
        if not _has_pip(python, "venv", "ensurepip"):
            raise EnvironmentFailed(
                "this host has neither uv nor Python's venv with pip, and Image(pip=...) needs one of them: "
                "install uv, or the packages python3-venv and python3-pip"
            )
        pip = [target, "-m", "pip"]
    _run_installer([python, "-m", "venv", *bare, str(folder)], "python -m venv", variables, emit)
    install = [*pip, "install", "--progress-bar", "off", "-r", "/dev/stdin"]
    _install_pinned(install, "pip install", image, variables, emit)
    if not requirements:
        return
    for number, own in group_by_index(requirements, indexes).items():
        alone = {**variables, **_single_index_variables(variables[_address_variable(number)])}
        _run_installer([*install, "--no-deps"], "pip install", alone, emit, given="\n".join(own))
    there: dict[str, str] = {}
    if kept := map_packages_to_indexes(indexes):
        there = {name: version for name, version in _list_installed(target).items() if name in kept}
    limits = _constraint_options(folder, image, there, [package for package in kept if package not in there])
    with _explain_index_failure(requirements, indexes):
        _run_installer([*install, *limits], "pip install", variables, emit, given="\n".join(requirements))


@contextlib.contextmanager
def _explain_index_failure(requirements: Sequence[str], indexes: Sequence[Index]) -> Iterator[None]:
    """Explain the failure of an installer that was not let have a package from just anywhere."""
    try:
        yield
    except EnvironmentFailed as error:
        needed = [package for package in unnamed_packages(requirements, indexes) if package in str(error)]
        if not needed:
            raise
        names = ", ".join(needed)
        raise EnvironmentFailed(
            f"{error}\n{names}: an index of the image is kept to it, and only another package asks for it, for which "
            "installers would look anywhere; name it in Image(pip=...), too"
        ) from None


def _list_installed(python: str, root: str = ROOT) -> dict[str, str]:
    """The packages that an interpreter has, as ``installed_packages.list_packages`` tells them."""
    command = module_command(python, "installed_packages", root)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"{python} has not said within {ANSWER_TIMEOUT:g} s what is installed") from None
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        raise EnvironmentFailed(f"what was installed cannot be looked at: {done.stderr.strip()}") from None


def _add_package_folders(folder: Path, packages: Sequence[Sequence[str]]) -> None:
    """Have an environment find packages that lie in folders of this machine."""
    entries = "".join(f"{entry}\n" for _, entry in packages)
    for site in folder.glob("lib/python*/site-packages") if entries else ():
        (site / "folders.pth").write_text(entries, encoding="utf-8")


def _constraint_options(
    folder: Path, image: Mapping[str, Any], there: Mapping[str, str], never: Sequence[str]
) -> list[str]:
    """Options that keep installers to what an image limits, to what it has pinned, and to versions that are there."""
    exact = [line for line in list_requirements({PINNED: image.get(PINNED)}) if "==" in line.partition(";")[0]]
    text = format_constraints(there, never) + "".join(
        f"{each}\n" for each in [*exact, *(image.get("constraints") or ())]
    )
    if not text:
        return []
    path = folder / "constraints.txt"
    path.write_text(text, encoding="utf-8")
    return ["-c", str(path)]


def _install_pinned(
    install: Sequence[str], what: str, image: Mapping[str, Any], variables: Mapping[str, str], emit: Emit
) -> None:
    """Install what an image has pinned: as it is, each from its index; what has hashes only with one of them."""
    for lines, index in iterate_pinned_groups(image):
        alone = {} if index is None else _single_index_variables(variables[_address_variable(index)])
        for hashed in (True, False):
            some = [line for line in lines if (" --hash=" in line) is hashed]
            options = ["--no-deps", "--require-hashes"] if hashed else ["--no-deps"]
            if some:
                _run_installer([*install, *options], what, {**variables, **alone}, emit, given="\n".join(some))


def _pip_command(python: str, target: str) -> list[str]:
    """What runs the pip of an interpreter for an environment that is made of it; nothing where it cannot make one."""
    found = _run_python(python, _ASK_PIP)
    if found.returncode:
        return []
    # What its --python comes to in the end, less a pip that starts another.
    return [target, runner] if (runner := found.stdout.strip()) else [python, "-m", "pip", "--python", target]


_ASK_PIP = """
import os, pip, venv
runner = os.path.join(os.path.dirname(pip.__file__), "__pip-runner__.py")
print(runner if os.path.isfile(runner) else "")
"""


def _has_pip(python: str, *modules: str) -> bool:
    return _run_python(python, f"import {', '.join(modules)}").returncode == 0


def _run_python(python: str, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False)


def _install_apt_packages(packages: list[str], variables: dict[str, str], emit: Emit) -> None:
    if not packages:
        return
    if shutil.which("apt-get", path=variables["PATH"]) is None:
        raise EnvironmentFailed("Image(apt=...) needs a Debian or Ubuntu host: there is no apt-get here")
    missing = [package for package in packages if not has_package(package)]
    if not missing:
        return
    as_root: list[str] = []
    if os.getuid() != 0:
        if subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode:
            raise EnvironmentFailed(
                f"the packages {', '.join(missing)} are not installed, and only root may do that: there is "
                "no sudo without a password here; install them by hand, or log in as root"
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
    except FileNotFoundError:  # no Debian
        return False
    return found.returncode == 0 and b"install ok installed" in found.stdout


def _run_installer(
    command: list[str],
    what: str,
    variables: Mapping[str, str],
    emit: Emit,
    *,
    given: str = "",
    cwd: str | None = INSTALLERS_FOLDER,
) -> None:
    last: deque[str] = deque(maxlen=MAX_ERROR_LINES)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=dict(variables), cwd=cwd, text=True, encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # an installer that has ended already says why by its code
            process.stdin.write(given)
            process.stdin.close()
        try:
            for line in process.stdout:
                text = line.rstrip().rpartition("\r")[2]
                if text:
                    last.append(text)
                    emit(text)
        except BrokenPipeError:
            process.kill()  # the client who wanted this has gone
            raise
    if process.returncode:
        raise EnvironmentFailed(f"{what} failed with exit code {process.returncode}: " + "\n".join(last))


def main() -> None:
    """Have an environment made for who reads our output: lines as they come, then the interpreter or an error; all of
    it, and what is wanted, as JSON."""
    wanted = json.load(sys.stdin)

    def tell(**values: Any) -> None:
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()

    try:
        root, line = Path(wanted["root"]), lambda line: tell(line=line)
        python = ensure_environment(wanted["image"], root, wanted["env"], wanted["cwd"], line, client=1)
        found = list_installed_packages(python) if list_requirements(wanted["image"]) else {}
    except OSError as error:
        tell(error=str(error))
    else:
        tell(python=python, installed=found)
