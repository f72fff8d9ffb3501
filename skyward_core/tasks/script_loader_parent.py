"""Start of the child process that loads a script, and the pickled calls that the child process returns.

The script runs only in the child process (``tasks.script_loader_child``), so its imports cannot affect this process.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NoReturn

from skyward_core.model.errors import Cancelled, NotPicklableError, ScriptError, ScriptFailed, UsageError
from skyward_core.model.outcomes_states_and_alerts import signal_name
from skyward_core.model.specs import Interpreter
from skyward_core.tasks import import_path
from skyward_core.tasks.bounded_subprocess import CancellationToken
from skyward_core.tasks.python_compatibility import is_own_environment, own_interpreter
from skyward_core.util import terminal_safe_text

if TYPE_CHECKING:
    from skyward_core.tasks.pickled_calls_and_blobs import Task


# Code that extends sys.path. Modules in an appended folder cannot shadow others, and the inserted folder contains only
# this package.
_OWN_PATH_CODE = "import sys; sys.path.append({0!r}); "
_OTHER_PATH_CODE = "import sys; sys.path.insert(0, {0!r}); sys.path.append({1!r}); "


def loader_command(interpreter: Interpreter, report: Callable[[str], None], stop: CancellationToken) -> list[str]:
    """Return the command line of the script loader, without the folder of the request.

    The environment of the interpreter is created first if necessary.

    Args:
        report: Receives lines about the progress of the environment.
        stop: Cancels the creation of the environment.

    Raises:
        PoolError: If the environment cannot be created.
        Cancelled: If ``stop`` was cancelled.
    """
    if is_own_environment(interpreter.prefix):
        python, before = sys.executable, _OWN_PATH_CODE.format(str(Path(__file__).resolve().parents[2]))
    else:
        from skyward_core.tasks.script_interpreter_and_environment import ensure_interpreter, library_path_entries

        ensure_interpreter(interpreter, report, stop)
        ours = library_path_entries()
        python, before = interpreter.path, _OTHER_PATH_CODE.format(ours.first, ours.last)
    # With -P and an explicit path, no file of the working folder can shadow the loader's own imports.
    return [python, "-P", "-c", before + "from skyward_core.tasks.script_loader_child import main; main(sys.argv[1])"]


def interpreter_notes(interpreter: Interpreter) -> list[str]:
    """Return notes for the user about the interpreter that loads a script."""
    return [
        *interpreter.notes,
        *([] if is_own_environment(interpreter.prefix) else [f"interpreter: {interpreter}"]),
    ]


def pickle_request(value: Any) -> bytes:
    """Pickle a value so that another version of Python can load it.

    Raises:
        PicklingError, TypeError, AttributeError: If the value cannot be pickled.
    """
    written = io.BytesIO()
    _RequestPickler(written, protocol=5).dump(value)
    return written.getvalue()


class _RequestPickler(pickle.Pickler):
    """Pickler that reduces a path to its class's name, because pickle would store a module that differs by version."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, PurePath) and type(value).__module__.partition(".")[0] == "pathlib":
            return make_path, (type(value).__name__, str(value))
        return NotImplemented


def make_path(kind: str, text: str) -> PurePath:
    """Return a path of the ``pathlib`` class with the given name."""
    made: PurePath = getattr(pathlib, kind)(text)
    return made


# Bytes; if less disk space is free after a failure, the error names the full disk as its cause.
MIN_FREE_BYTES = 64 << 10


def build_tasks(
    path: Path,
    function: str | None,
    calls: Sequence[Mapping[str, Any]],
    *,
    plugins: Sequence[Any] = (),
    echo: bool = False,
    interpreter: Interpreter | None = None,
    report: Callable[[str], None] | None = None,
    stop: CancellationToken | None = None,
) -> list[Task]:
    """Load the script in a child process, which pickles calls of one of its functions.

    The child runs with the script's own interpreter, which is created first if the script has inline metadata.

    Args:
        function: Name of the function. None for the whole script, which is then not executed while loading.
        calls: Arguments of each call, from :func:`parse_arguments`. For a whole script: one call with the keys ``args``
            and ``module`` (name of the module, or "").
        plugins: Plugins of the pool, which may wrap the function.
        echo: Whether to pass the output of the loading script to this process's standard error. Otherwise the output is
            only shown with errors.
        interpreter: Interpreter that loads the script; None for this process's interpreter.
        report: Receives lines about the progress of the environment. If None, they are printed if ``echo`` is true.
        stop: Cancels the loading from another thread, and ends all processes that the loading has started.

    Raises:
        Cancelled: If ``stop`` was cancelled. No files or processes remain.
        PoolError: If the script's environment cannot be created. The message has the last lines of the installer.
        ScriptFailed: If the script raised, exited or was killed while it was loaded. The error has its traceback.
        ScriptError: If the script cannot be read, or its function does not return a call.
        UsageError: If an argument does not match its type.
        NotPicklableError: If an argument or an object that the function refers to cannot be pickled. Names the object.
    """
    from skyward_core.tasks.pickled_calls_and_blobs import read_tasks

    chosen = own_interpreter() if interpreter is None else interpreter
    report = report or (_write_stderr if echo else lambda line: None)
    for line in interpreter_notes(chosen):
        report(line)
    stop = stop or CancellationToken()
    child = loader_command(chosen, report, stop)
    try:
        request = pickle_request(
            (str(path.absolute()), function, [*map(dict, calls)], tuple(plugins), bool(chosen.base))
        )
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise NotPicklableError(f"an argument of {function or path.name} cannot be pickled: {error}") from error
    folder = _make_task_folder()
    # The tasks refer to large blobs in this folder, so it must exist as long as the tasks.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    printed = folder / "printed"
    with printed.open("wb") as sink:
        try:
            status = _run_loader(child, folder, request, 2 if echo else sink.fileno(), stop)
        except Cancelled:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    try:
        result = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # the child process ended before it had written a complete report
        how = f"exit status {status}" if status >= 0 else signal_name(-status)
        result = {"kind": "failed", "message": f"{path} ended the process that loads it ({how})"}
        if _is_full(folder):
            result = {"kind": "usage", "message": f"{path} cannot be loaded: the disk of {folder.parent} is full"}
    if result["kind"] == "task":
        import_path.add_script_folder(path)
        tasks = [replace(task, interpreter=chosen) for task in read_tasks(folder)]
        if all(task.fn.path is task.args.path is None for task in tasks):
            shutil.rmtree(folder, ignore_errors=True)
        return tasks
    _raise_report(result, "" if echo else printed.read_text(encoding="utf-8", errors="replace"))


def _make_task_folder() -> Path:
    """Create a folder for loaded tasks in the user's state folder. Delete the folders of processes that have ended."""
    from skyward_core.store.old_pool_environment_and_clone_pruning import TASKS_FOLDER, make_process_folder
    from skyward_core.store.state_folder import state_home

    try:
        return make_process_folder(TASKS_FOLDER)
    except OSError as error:
        raise UsageError(
            "scripts cannot be loaded: no folder can be created in "
            f"{state_home() / TASKS_FOLDER}: {error.strerror or error}"
        ) from error


def _is_full(folder: Path) -> bool:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def _write_stderr(line: str) -> None:
    sys.stderr.write(f"{terminal_safe_text.sanitize_line(line)}\n")


def _run_loader(command: Sequence[str], folder: Path, request: bytes, sink: int, stop: CancellationToken) -> int:
    # Send the request through a pipe, because it may contain tokens that must not be in a file. When the pipe closes,
    # the child knows that this process has ended.
    with subprocess.Popen([*command, str(folder)], stdin=subprocess.PIPE, stdout=sink, stderr=sink, bufsize=0) as child:
        try:
            assert child.stdin is not None
            rest = memoryview(b"%08x" % len(request) + request)
            with stop.on_cancel(child.kill):
                # The child has ended before it read the request; its exit status explains the reason.
                with suppress(BrokenPipeError):
                    while rest:
                        rest = rest[os.write(child.stdin.fileno(), rest) :]
                return child.wait()
        except BaseException:
            child.kill()
            raise


def _raise_report(report: Mapping[str, str], printed: str) -> NoReturn:
    parts = [report["message"], report.get("traceback", "").rstrip()]
    if printed.strip():
        parts.append("output of the script:\n" + printed.rstrip())
    kinds = {"pickle": NotPicklableError, "script": ScriptError, "usage": UsageError}
    raise kinds.get(report["kind"], ScriptFailed)("\n".join(part for part in parts if part))
