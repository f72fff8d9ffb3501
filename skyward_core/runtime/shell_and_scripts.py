"""Shell commands and whole scripts that run in a rank."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from types import CodeType, ModuleType, TracebackType
from typing import Any

from skyward_core.runtime import import_hooks_gc_pause_and_alias, preemption
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, instance_info, mark_not_reusable

TYPE_CHECKING = False  # not imported from typing, to avoid loading that module

if TYPE_CHECKING:
    from subprocess import Popen


RENDEZVOUS_MODULE = "skyward_core.runtime.framework_rendezvous_and_thread_limits"
SHELLS = ("bash", "sh")  # shells in order of preference; a command runs in the first one that its node has


class ShellCommandFailed(SystemExit):
    """Error: a command ended with an exit status other than 0.

    Attributes:
        __skyward_words__: Description for the rank's outcome.
    """

    def __init__(self, status: int, words: str) -> None:
        super().__init__(status)
        self.__skyward_words__ = words


class ShellCommand:
    """Callable that runs a command as a shell script.

    Args:
        command: Text of the script.
        name: Display name.
        env: Variables in addition to the rank's.
        cwd: Working folder, relative to the rank's; "" for the rank's own.
        secrets: Values to redact in the output.
        as_setup: Whether the command sets up nodes. Such a command gets SkyPilot's variables for setup commands.
        startup: Shell code that runs first, such as reading the user's startup file. It cannot replace the Python that
            the command finds.

    Attributes:
        __skyward_programs__: Folder for links to the rank's Python. The worker sets this attribute.
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
        startup: str = "",
    ) -> None:
        self.__name__ = name
        self.startup = startup
        self.command = command
        self.env = dict(env)
        self.cwd = cwd
        # values that the worker sends to its agent before the call, so that the agent redacts them in the output
        self.__skyward_secrets__ = secrets
        self.as_setup = as_setup

    def __call__(self) -> None:
        info, together = instance_info(), preemption.is_gang_call()
        import subprocess
        import tempfile

        unset = () if together else getattr(sys.modules.get(RENDEZVOUS_MODULE), "of_task", ())
        here = os.path.join(os.getcwd(), os.path.expanduser(self.cwd))  # noqa: PTH109, PTH111, PTH118  no pathlib here
        if not os.path.isdir(here):  # noqa: PTH112
            raise NotADirectoryError(f"{self.__name__}: folder {here} does not exist on this node")
        shell = next(filter(None, map(shutil.which, SHELLS)), "/bin/sh")
        env = {name: value for name, value in os.environ.items() if name not in unset}
        folders = _python_folders(self.__skyward_programs__)
        env |= _python_variables(folders) | self._place_variables(info, together=together) | self.env
        text = self.command
        if self.startup:
            text = self.startup + _restore_python([] if "PATH" in self.env else folders, env) + text
        # Pass the script to the shell as an unnamed file, because other users of the machine can see command lines.
        with tempfile.TemporaryFile() as script:
            script.write(text.encode())
            script.seek(0)
            number = script.fileno()
            child = subprocess.Popen(
                [shell, f"/dev/fd/{number}"], cwd=here, env=env, stdin=subprocess.DEVNULL, pass_fds=(number,)
            )
        if status := _wait_for_child(child):
            text = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            raise ShellCommandFailed(status if status > 0 else 128 - status, text)

    def _place_variables(self, info: InstanceInfo, *, together: bool) -> dict[str, str]:
        variables = place_variables(info, together=together)
        if not self.as_setup:
            return variables
        names = ("NODE_RANK", "NODE_IPS", "NUM_GPUS_PER_NODE")
        return variables | {f"SKYPILOT_SETUP_{name}": variables[f"SKYPILOT_{name}"] for name in names}


def _wait_for_child(child: Popen[bytes]) -> int:
    try:
        return child.wait()
    except BaseException:
        child.wait()  # Wait for the child: it receives the rank's stop signal, too, and may need time to shut down.
        raise


def _python_folders(programs: str) -> list[str]:
    """Return the folders that must be first on PATH, so that a command finds the rank's Python.

    Args:
        programs: Folder for links to the rank's Python, if its own folder lacks the usual names; "" for no links.
    """
    own = os.path.dirname(sys.executable)  # noqa: PTH120
    if os.pathsep in own:
        raise OSError(f"{own} cannot be an entry of PATH: its name contains a colon. Create the environment elsewhere.")
    links = [programs] if programs and own and _lacks_usual_names(own) and _link_usual_names(programs) else []
    return [*links, own] if own else links


def _python_variables(folders: list[str]) -> dict[str, str]:
    """Return environment variables by which a command finds the rank's Python, and prints without buffering."""
    found = {"PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1")}
    path = os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[: len(folders)] != folders:
        found["PATH"] = os.pathsep.join((*folders, path))
    if sys.prefix != sys.base_prefix:
        found["VIRTUAL_ENV"] = sys.prefix
    return found


# Variables that virtual environments and conda set. If they named an active conda environment, activating another one
# would put it in the place of the active one on PATH, which is behind the rank's Python.
ENVIRONMENT_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_PROMPT_MODIFIER", "CONDA_SHLVL")


def _restore_python(folders: list[str], env: Mapping[str, str]) -> str:
    """Return a line of shell code that makes the rank's Python the active one again, after a startup file was read.

    Args:
        folders: Folders that must be first on PATH.
        env: Variables with which the shell was started.
    """
    import shlex

    lines = [f"export {name}={shlex.quote(env[name])}" for name in ENVIRONMENT_VARIABLES if name in env]
    lines += [f"unset {name}" for name in ENVIRONMENT_VARIABLES if name not in env]
    lines += [f"export PATH={shlex.quote(os.pathsep.join(folders))}:$PATH"] if folders else []
    return "; ".join(lines) + "\n"


PYTHON_NAMES = ("python", "python3")


def _lacks_usual_names(folder: str) -> bool:
    """Check whether the folder of the rank's Python has no ``python`` or no ``python3``, as on Debian and with uv."""
    for name in PYTHON_NAMES:
        try:
            if not os.path.samefile(os.path.join(folder, name), sys.executable):  # noqa: PTH118, PTH121
                return True
        except OSError:
            return True
    return False


def _link_usual_names(folder: str) -> bool:
    """Create the links ``python`` and ``python3`` to the rank's Python in a folder. Return whether the links exist."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
        for name in PYTHON_NAMES:
            with suppress(FileExistsError):  # Another rank with the same Python has already created the link.
                os.symlink(sys.executable, os.path.join(folder, name))  # noqa: PTH118, PTH211
    except OSError:  # If links cannot be created, for example on a full disk, the command runs without them.
        return False
    return True


def place_variables(info: InstanceInfo, *, together: bool) -> dict[str, str]:
    """Return the environment variables that describe a command's node and rank.

    They have SkyPilot's names (https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html) and this
    library's.

    Args:
        info: The rank and its world.
        together: Whether all ranks of the gang run the command. Otherwise the variables describe a single node.
    """
    together = together and bool(info.peers)
    nodes = info.total_nodes if together else 1
    addresses = [peer.address for peer in info.peers] if together else [info.address or "127.0.0.1"]
    place = {
        "NODE_RANK": str(info.node if together else 0),
        "NODE_IPS": "\n".join(addresses),
        "NUM_NODES": str(nodes),
        "NUM_GPUS_PER_NODE": str(info.accelerators),
    }
    return {
        **{f"SKYPILOT_{name}": value for name, value in place.items()},
        "SKYPILOT_TASK_ID": f"{info.pool}-{info.run}",
        **{f"SKYWARD_{name}": value for name, value in place.items()},
        "SKYWARD_RANK": str(info.rank if together else 0),
        "SKYWARD_WORLD_SIZE": str(nodes * info.ranks_per_node if together else 1),
        "SKYWARD_LOCAL_RANK": str(info.local_rank if together else 0),
        "SKYWARD_POOL": info.pool,
        "SKYWARD_RUN": info.run,
    }


MAIN = "__main__"


class ScriptRunner:
    """Callable that runs a whole script, as Python does.

    Args:
        path: Path of the script on the client, or the name of a module.
        source: Content of the script; empty for a module, which is imported on the rank.
        args: Arguments of the script.
    """

    is_script = True
    torchrun = False  # whether a script on a single rank gets torchrun's variables, too

    def __init__(self, path: str, source: bytes, args: Sequence[str]) -> None:
        self.__name__ = path.rpartition("/")[2]
        self.path = path
        self.source = source
        self.args = tuple(args)

    def __call__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                f'{self.__name__} is a whole script, which needs its own process. Remove Worker(executor="thread").'
            )
        main = ModuleType(MAIN)
        code = self._as_script(main) if self.source else self._as_module(main)
        sys.modules[MAIN] = main
        sys.argv[1:] = self.args
        # Set sys.orig_argv, which some programs use to restart themselves, for example to reload edited code.
        sys.orig_argv[:] = [sys.executable, *(sys.argv[:1] if self.source else ("-m", self.path)), *self.args]
        if self.torchrun:
            from skyward_core.runtime.framework_rendezvous_and_thread_limits import set_single_process_variables

            set_single_process_variables(instance_info())
        mark_not_reusable("a script has run in it")
        try:
            exec(code, main.__dict__)  # noqa: S102  running the user's script is the purpose
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
        import_hooks_gc_pause_and_alias.unload_shadowed_modules([beside])
        sys.path[:] = [beside, *(each for each in sys.path if each != beside)]
        return compile(self.source, file, "exec", dont_inherit=True)

    def _as_module(self, main: ModuleType) -> CodeType:
        import_hooks_gc_pause_and_alias.unload_shadowed_modules([os.getcwd()])  # noqa: PTH109
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
    """Return the path of a client's script on this node, below the working folder.

    Args:
        path: Path of the script on the client.
        source: Content of the script on the client.
        here: The working folder.

    Raises:
        FileNotFoundError: If the node has no copy.
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
        return there[0]  # Use the copy although it differs, because the client's script has changed since the upload.
    raise FileNotFoundError(
        f"{path} is not in the working folder that was sent to this node ({here}). "
        "Set Image(workdir=...) to a folder that contains the script."
    )


def _has_source(path: str, source: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(source) + 1) == source
    except OSError:
        return False


def _register_source(file: str, source: bytes) -> None:
    """Make tracebacks and ``inspect`` show the script's source as it runs, even if the file on this node differs."""
    if _has_source(file, source):
        return
    import linecache

    lines = source.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[file] = (len(source), None, lines, file)


def _call_excepthook(error: Exception) -> None:
    """Call the script's own ``sys.excepthook`` with the error that ends the script."""
    hook = sys.excepthook
    if hook is sys.__excepthook__:
        return  # The script has set no hook, so only the client reports the error.
    try:
        hook(type(error), *_without_first_frame(error))
    except Exception as failed:  # noqa: BLE001  the script's own error is raised
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(failed), *_without_first_frame(failed))


def _without_first_frame(error: Exception) -> tuple[Exception, TracebackType | None]:
    """Remove this module's frame from an exception's traceback, which user code is about to print."""
    trace = error.__traceback__ and error.__traceback__.tb_next
    return error.with_traceback(trace), trace


def _run_exit_handlers() -> None:
    """Run the steps of Python's exit in their order, while the call is still in progress.

    These steps may take long. Non-daemon threads are joined. Just before that, executors stop their threads.
    Afterwards, exit handlers end the servers of multiprocessing. Joining the threads of these servers before that would
    hang.
    """
    before_threads: list[Any] = getattr(threading, "_threading_atexits", [])
    while before_threads:
        before_threads.pop()()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
