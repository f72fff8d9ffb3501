"""Shell commands and whole scripts run in a rank."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

from skyward_core.runtime import preemption
from skyward_core.runtime.instance_info import instance_info, mark_not_reusable

TYPE_CHECKING = False  # typing's would be imported for it

if TYPE_CHECKING:
    from collections.abc import Mapping
    from subprocess import Popen

    from skyward_core.runtime.instance_info import InstanceInfo


RENDEZVOUS_MODULE = "skyward_core.runtime.rendezvous"
SHELLS = ("bash", "sh")  # the first that a node has


class ShellCommandFailed(SystemExit):
    """A command ended with a status that is no success.

    Attributes:
        __skyward_words__: what became of it, for the rank's outcome.
    """

    def __init__(self, status: int, words: str) -> None:
        super().__init__(status)
        self.__skyward_words__ = words


class ShellCommand:
    """Runs as a shell script does.

    Args:
        command: what the shell reads.
        name: what it is called.
        env: variables that it has beside those of its rank.
        cwd: its folder; "" for the rank's own, below which it is looked for.
        secrets: values that are blanked in what it prints.
        as_setup: whether it sets nodes up, and is told of its place under SkyPilot's names for that.

    Attributes:
        __skyward_programs__: a folder for names of the rank's Python; the worker says which.
    """

    __skyward_programs__ = ""

    def __init__(
        self,
        command: str,
        name: str,
        env: Mapping[str, str],
        cwd: str,
        secrets: tuple[str, ...],
        *,
        as_setup: bool = False,
    ) -> None:
        self.__name__ = name
        self.command = command
        self.env = dict(env)
        self.cwd = cwd
        self.__skyward_secrets__ = secrets  # the worker tells its agent of them before it runs this
        self.as_setup = as_setup

    def __call__(self) -> None:
        info, together = instance_info(), preemption.is_gang_call()
        import subprocess
        import tempfile

        unset = () if together else getattr(sys.modules.get(RENDEZVOUS_MODULE), "of_task", ())
        here = os.path.join(os.getcwd(), os.path.expanduser(self.cwd))  # noqa: PTH109, PTH111, PTH118  no pathlib here
        if not os.path.isdir(here):  # noqa: PTH112
            raise NotADirectoryError(f"{self.__name__}: this node has no folder {here}")
        shell = next(filter(None, map(shutil.which, SHELLS)), "/bin/sh")
        # Read from a file without a name, not from its arguments: those can be seen by whoever has an account here.
        with tempfile.TemporaryFile() as script:
            script.write(self.command.encode())
            script.seek(0)
            number = script.fileno()
            child = subprocess.Popen(
                [shell, f"/dev/fd/{number}"],
                cwd=here,
                env={name: value for name, value in os.environ.items() if name not in unset}
                | _python_variables(self.__skyward_programs__)
                | self._place_variables(info, together=together)
                | self.env,
                stdin=subprocess.DEVNULL,
                pass_fds=(number,),
            )
        if status := _wait_for_child(child):
            said = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            raise ShellCommandFailed(status if status > 0 else 128 - status, said)

    def _place_variables(self, info: InstanceInfo, *, together: bool) -> dict[str, str]:
        told = place_variables(info, together=together)
        if not self.as_setup:
            return told
        kept = ("NODE_RANK", "NODE_IPS", "NUM_GPUS_PER_NODE")
        return told | {f"SKYPILOT_SETUP_{name}": told[f"SKYPILOT_{name}"] for name in kept}


def _wait_for_child(child: Popen[bytes]) -> int:
    try:
        return child.wait()
    except BaseException:
        child.wait()  # what stops the rank goes to all that it has started: it ends as it likes, while there is time
        raise


def _python_variables(programs: str) -> dict[str, str]:
    """Has a command find the rank's Python, with what is installed for it, and its output come line by line.

    Args:
        programs: where its names are made that its own folder lacks, or has another Python by; "" to do without.
    """
    found = {"PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1")}
    own = os.path.dirname(sys.executable)  # noqa: PTH120
    if os.pathsep in own:
        raise OSError(f"{own} cannot be an entry of PATH: it has a colon in its name. Make the environment elsewhere.")
    first = [programs] if programs and own and _lacks_usual_names(own) and _link_usual_names(programs) else []
    first += [own] if own else []
    path = os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[: len(first)] != first:
        found["PATH"] = os.pathsep.join((*first, path))
    if sys.prefix != sys.base_prefix:
        found["VIRTUAL_ENV"] = sys.prefix
    return found


PYTHON_NAMES = ("python", "python3")


def _lacks_usual_names(folder: str) -> bool:
    """Whether the rank's Python is in its folder by its version alone, as Debian and uv have it."""
    for name in PYTHON_NAMES:
        try:
            if not os.path.samefile(os.path.join(folder, name), sys.executable):  # noqa: PTH118, PTH121
                return True
        except OSError:
            return True
    return False


def _link_usual_names(folder: str) -> bool:
    """Have it there by the usual names; says whether it is."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
        for name in PYTHON_NAMES:
            with suppress(FileExistsError):  # by another rank, whose Python is the same
                os.symlink(sys.executable, os.path.join(folder, name))  # noqa: PTH118, PTH211
    except OSError:  # no room, say: the command runs all the same
        return False
    return True


def place_variables(info: InstanceInfo, *, together: bool) -> dict[str, str]:
    """The variables that tell a command of its place, under the names of SkyPilot's and under our own.

    The first are those of https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html.

    Args:
        info: the rank's place.
        together: whether all ranks of its gang run it; one that runs alone is told of no others.
    """
    together = together and bool(info.peers)
    nodes = info.total_nodes if together else 1
    addresses = [peer.address for peer in info.peers] if together else [info.address or "127.0.0.1"]
    told = {
        "NODE_RANK": str(info.node if together else 0),
        "NODE_IPS": "\n".join(addresses),
        "NUM_NODES": str(nodes),
        "NUM_GPUS_PER_NODE": str(info.accelerators),
    }
    return {
        **{f"SKYPILOT_{name}": value for name, value in told.items()},
        "SKYPILOT_TASK_ID": f"{info.pool}-{info.run}",
        **{f"SKYWARD_{name}": value for name, value in told.items()},
        "SKYWARD_RANK": str(info.rank if together else 0),
        "SKYWARD_WORLD_SIZE": str(nodes * info.ranks_per_node if together else 1),
        "SKYWARD_LOCAL_RANK": str(info.local_rank if together else 0),
        "SKYWARD_POOL": info.pool,
        "SKYWARD_RUN": info.run,
    }


DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT}
PERMISSION_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS}


class FileMounts:
    """Puts files to their places on this node; of ranks that share it the first one does.

    Args:
        name: what that is called.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, packed: Mapping[str, bytes]) -> None:
        """Do it.

        Args:
            packed: tar archives by the place of what is in each: a folder's content, or one file. ``~`` is the
                person's home there; a path that is not absolute begins in the working folder.

        Raises:
            OSError: one cannot be written; says which, where, and what to do.
        """
        if instance_info().local_rank == 0:
            for target, archive in packed.items():
                self._mount(os.path.expanduser(target), archive)  # noqa: PTH111  a rank has no pathlib

    def _mount(self, target: str, archive: bytes) -> None:
        import tarfile

        try:
            if target.startswith("~"):
                raise FileNotFoundError(None, "there is no such user there")
            _unpack(target, archive)
        except (OSError, tarfile.TarError) as error:
            info = instance_info()
            place = os.path.abspath(target)  # noqa: PTH100
            file = getattr(error, "filename", None)
            at = f" ({file})" if file and os.path.abspath(file) != place else ""  # noqa: PTH100
            reason = getattr(error, "strerror", None) or str(error)
            words = (
                f"{self.__name__}: {place} on node {info.node} ({info.hostname}) is not whole: {reason}{at}; "
                f"{_error_hint(error, place)}, and run it again"
            )
            told: Any = type(error)(words) if isinstance(error, OSError) else OSError(words)
            told.__skyward_words__ = words  # they say it all: nobody needs our own frames
            raise told from None


def _error_hint(error: Exception, place: str) -> str:
    number = getattr(error, "errno", None)
    if number in DISK_FULL_ERRORS:
        while not os.path.isdir(place):  # noqa: PTH112
            place = os.path.dirname(place)  # noqa: PTH120
        disk = os.statvfs(place)
        free = disk.f_bavail * disk.f_frsize
        from skyward_core.util.byte_sizes import format_size

        return f"free some space there ({format_size(free)} are free), or choose a place on another disk"
    if number in PERMISSION_ERRORS:
        return "choose a place that this account may write to"
    if number == errno.EFBIG:
        return "allow larger files there (ulimit -f), or choose another file system"
    return "make room for it there, or choose another place"


def _unpack(target: str, archive: bytes) -> None:
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = tar.getmembers()
        if [each.name for each in members] == ["."] and not members[0].isdir():
            members[0].name = os.path.basename(target)  # noqa: PTH119
            target = os.path.dirname(target) or "."  # noqa: PTH120
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
        safe: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}  # Python 3.11.2 has none
        for each in members:  # whoever has that number here is somebody else
            each.uid, each.gid, each.uname, each.gname = os.getuid(), os.getgid(), "", ""
        # A file gets its mode when all is in it: what nobody else may read is never open to them.
        hidden: list[tarfile.TarInfo] = []
        others: list[tarfile.TarInfo] = []
        for each in members:
            (hidden if each.isreg() and not each.mode & 0o077 else others).append(each)
        before = os.umask(0o077)
        try:
            tar.extractall(target, hidden, **safe)
        finally:
            os.umask(before)
        tar.extractall(target, others, **safe)


MAIN = "__main__"


class ScriptRunner:
    """Runs as a script does that Python is started with.

    Args:
        path: the script's path on the client; of a module, its name.
        source: what stands in it; empty for a module, which is found where the rank works.
        args: its own, as texts.
    """

    is_script = True
    torchrun = False  # whether it is to find torchrun's variables where there is one rank, too

    def __init__(self, path: str, source: bytes, args: Sequence[str]) -> None:
        self.__name__ = path.rpartition("/")[2]
        self.path = path
        self.source = source
        self.args = tuple(args)

    def __call__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                f'{self.__name__} is a whole script, which needs a process: leave Worker(executor="thread") out'
            )
        main = ModuleType(MAIN)
        code = self._as_script(main) if self.source else self._as_module(main)
        sys.modules[MAIN] = main
        sys.argv[1:] = self.args
        # Programs start themselves anew by it, to notice edits or to have another environment.
        sys.orig_argv[:] = [sys.executable, *(sys.argv[:1] if self.source else ("-m", self.path)), *self.args]
        if self.torchrun:
            from skyward_core.runtime.rendezvous import set_single_process_variables

            set_single_process_variables(instance_info())
        mark_not_reusable("a script has run in it")
        try:
            exec(code, main.__dict__)  # noqa: S102  the person's own script is what we are for
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        except Exception as error:
            _call_excepthook(error)
            raise
        _run_exit_handlers()

    def _as_script(self, main: ModuleType) -> CodeType:
        here = os.getcwd()  # noqa: PTH109  a worker has no pathlib
        file = find_node_copy(self.path, self.source, here)
        _register_source(file, self.source)
        main.__dict__.update(
            __file__=file, __builtins__=__builtins__, __cached__=None, __loader__=SourceFileLoader(MAIN, file)
        )
        sys.argv[:1] = [file.removeprefix(here + "/")]
        beside = os.path.realpath(file).rpartition("/")[0]
        sys.path[:] = [beside, *(each for each in sys.path if each != beside)]
        return compile(self.source, file, "exec", dont_inherit=True)

    def _as_module(self, main: ModuleType) -> CodeType:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        spec = find_spec(self.path)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find_spec(f"{self.path}.{MAIN}")
        loader: Any = spec and spec.loader
        code: CodeType | None = loader.get_code(spec.name) if spec and hasattr(loader, "get_code") else None
        if spec is None or code is None:
            raise ModuleNotFoundError(f"No module named {self.path}", name=self.path)
        main.__dict__.update(
            __file__=spec.origin,
            __builtins__=__builtins__,
            __cached__=spec.cached,
            __loader__=loader,
            __package__=spec.parent,
            __spec__=spec,
        )
        sys.argv[:1] = [spec.origin or self.path]
        return code


def find_node_copy(path: str, source: bytes, here: str) -> str:
    """Where a client's script lies on this node: below the working folder, which has travelled, as it does there.

    Args:
        path: the script's path on the client.
        source: what stands in it there.
        here: the working folder.

    Raises:
        FileNotFoundError: it lies nowhere here; says what to do.
    """
    parts = path.split("/")
    below = [f"{here}/{'/'.join(parts[start:])}" for start in range(1, len(parts))]
    if path.startswith(f"{here}/"):
        below.insert(0, path)
    there = [each for each in below if os.path.isfile(each)]  # noqa: PTH113
    for each in [*there, path]:
        if _has_source(each, source):
            return each
    if there:
        return there[0]  # it was changed on the client since it came here
    raise FileNotFoundError(
        f"{path} has not come to this node with the working folder, which is {here} here: give the pool "
        "Image(workdir=...), a folder that holds the script"
    )


def _has_source(path: str, source: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(source) + 1) == source
    except OSError:
        return False


def _register_source(file: str, source: bytes) -> None:
    """Have tracebacks and ``inspect`` show the lines that run, whatever the file holds by now."""
    if _has_source(file, source):
        return
    import linecache

    lines = source.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[file] = (len(source), None, lines, file)


def _call_excepthook(error: Exception) -> None:
    """A script that has put a hook of its own in the place of Python's hears there of what ends it."""
    hook = sys.excepthook
    if hook is sys.__excepthook__:
        return  # the client tells of it
    try:
        hook(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
    except Exception:  # noqa: BLE001  the script's error is what counts
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(*sys.exc_info())


def _run_exit_handlers() -> None:
    """Do what Python does at the end of a script, in its order, while the rank's part still goes on: it may take long.

    Threads that nobody stops are waited for. Executors have theirs stop just before that, and exit handlers are what
    ends servers of multiprocessing: to wait for those before would be to wait for ever.
    """
    before_threads: list[Any] = getattr(threading, "_threading_atexits", [])
    while before_threads:
        before_threads.pop()()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
