"""Start of the child process that loads a script, and the pickled calls that it returns.

The script runs in that process alone (``tasks.script_loader``), so that its imports cannot harm this one.
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
from skyward_core.model.outcomes import signal_name
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.tasks import client_interpreter
from skyward_core.tasks.bounded_subprocess import CancellationToken
from skyward_core.tasks.client_interpreter import is_own_environment, own_interpreter
from skyward_core.util import terminal_safe_text

if TYPE_CHECKING:
    from skyward_core.tasks.task_and_blob_values import Task


# What is appended can shadow nothing; what comes first is our package alone.
_OWN_PATH_CODE = "import sys; sys.path.append({0!r}); "
_OTHER_PATH_CODE = "import sys; sys.path.insert(0, {0!r}); sys.path.append({1!r}); "
_LOADER_CODE = "from skyward_core.tasks.script_loader import main; main(sys.argv[1])"


def loader_command(interpreter: Interpreter, said: Callable[[str], None], stop: CancellationToken) -> list[str]:
    """The command line that loads scripts, but for the folder of the request. An environment is made first.

    Args:
        said: takes lines that tell how long that goes on.
        stop: ends it.

    Raises:
        PoolError: the environment cannot be made.
        Cancelled: it was to stop.
    """
    if is_own_environment(interpreter.prefix):
        python, before = sys.executable, _OWN_PATH_CODE.format(str(Path(__file__).resolve().parents[2]))
    else:
        from skyward_core.tasks.script_interpreters import ensure_interpreter, library_path_entries

        ensure_interpreter(interpreter, said, stop)
        ours = library_path_entries()
        python, before = interpreter.path, _OTHER_PATH_CODE.format(ours.first, ours.last)
    # -P and the path given by hand: nothing in the working folder can shadow what the loader itself imports.
    return [python, "-P", "-c", before + _LOADER_CODE]


def interpreter_notes(interpreter: Interpreter) -> list[str]:
    """What a person should know of the interpreter that a script is loaded with."""
    return [
        *interpreter.notes,
        *([] if is_own_environment(interpreter.prefix) else [f"interpreter: {interpreter}"]),
    ]


def pickle_request(value: Any) -> bytes:
    """A value pickled so that another version of Python can load it.

    Raises:
        PicklingError, TypeError, AttributeError: it cannot be pickled.
    """
    written = io.BytesIO()
    _RequestPickler(written, protocol=5).dump(value)
    return written.getvalue()


class _RequestPickler(pickle.Pickler):
    """Paths are made by the name that every version has: pickle writes down where a version defines their class."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, PurePath) and type(value).__module__.partition(".")[0] == "pathlib":
            return make_path, (type(value).__name__, str(value))
        return NotImplemented


def make_path(kind: str, text: str) -> PurePath:
    """Return a path of a class of pathlib."""
    made: PurePath = getattr(pathlib, kind)(text)
    return made


MIN_FREE_BYTES = 64 << 10  # bytes of a disk below which it is as good as full


def build_tasks(
    path: Path,
    function: str | None,
    calls: Sequence[Mapping[str, Any]],
    *,
    plugins: Sequence[Any] = (),
    echo: bool = False,
    interpreter: Interpreter | None = None,
    said: Callable[[str], None] | None = None,
    stop: CancellationToken | None = None,
) -> list[Task]:
    """Load the script in a child process and have it pickle calls of one of its functions.

    The child is a process of the script's own interpreter, which is made first where the script says what it needs.

    Args:
        function: its name; None for the whole script, of which nothing runs here.
        calls: the arguments of each, as :func:`parse_arguments` gives them; of a whole script, which is called once,
            its ``args``, and its ``module``'s name or "".
        plugins: those of the pool; they may wrap the function.
        echo: pass on to our standard error what the script prints while it is loaded. Without it, that
            is shown only with an error.
        interpreter: the one to load it with; None for the one that runs this.
        said: takes lines that tell how long the making of its environment goes on; None prints them with ``echo``.
        stop: ends it, from another thread, with all processes that it has started.

    Raises:
        Cancelled: it was to stop; nothing is left of it.
        PoolError: the script's environment cannot be made; holds the installer's last lines.
        ScriptFailed: the script raised, exited or was killed while loading; carries its traceback.
        ScriptError: it cannot be read, or its function gives no call.
        UsageError: an argument is none of the values that its type has.
        NotPicklableError: an argument or something the function refers to cannot travel; says which.
    """
    from skyward_core.tasks.task_and_blob_values import read_tasks

    chosen = own_interpreter() if interpreter is None else interpreter
    tell = said or (_write_stderr if echo else _ignore_line)
    for line in interpreter_notes(chosen):
        tell(line)
    stop = stop or CancellationToken()
    child = loader_command(chosen, tell, stop)
    try:
        request = pickle_request(
            (str(path.absolute()), function, [*map(dict, calls)], tuple(plugins), bool(chosen.base))
        )
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise NotPicklableError(f"an argument of {function or path.name} cannot be sent: {error}") from error
    folder = _make_task_folder()
    # Large parts of the task stay in files there, which must live as long as the task may.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    printed = folder / "printed"
    with printed.open("wb") as sink:
        try:
            status = _run_loader(child, folder, request, 2 if echo else sink.fileno(), stop)
        except Cancelled:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # there is none, or not all of it
        how = f"exit status {status}" if status >= 0 else signal_name(-status)
        report = {"kind": "failed", "message": f"{path} ended the process that loads it ({how})"}
        if _is_full(folder):
            full = f"{path} cannot be loaded: no room is left on the disk of {folder.parent}, where that is done"
            report = {"kind": "usage", "message": full}
    if report["kind"] == "task":
        client_interpreter.add_script_folder(path)
        tasks = [replace(task, interpreter=chosen) for task in read_tasks(folder)]
        if all(task.fn.path is task.args.path is None for task in tasks):
            shutil.rmtree(folder, ignore_errors=True)
        return tasks
    _raise_report(report, "" if echo else printed.read_text(encoding="utf-8", errors="replace"))


def build_task(path: Path, function: str | None, kwargs: Mapping[str, Any], **how: Any) -> Task:
    """The same for one call."""
    return build_tasks(path, function, [kwargs], **how)[0]


def _make_task_folder() -> Path:
    """A folder for a task that is loaded, in the person's own; those of processes that are no more go."""
    from skyward_core.store import pruning
    from skyward_core.store.state_folder import state_home

    try:
        return pruning.make_process_folder(pruning.TASKS_FOLDER)
    except OSError as error:
        raise UsageError(
            f"no script can be loaded, which is done in {state_home() / pruning.TASKS_FOLDER}: "
            f"{error.strerror or error}"
        ) from error


def _is_full(folder: Path) -> bool:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def _write_stderr(line: str) -> None:
    sys.stderr.write(f"{terminal_safe_text.sanitize_line(line)}\n")


def _ignore_line(line: str) -> None:
    """Nobody wants to know."""


def _run_loader(command: Sequence[str], folder: Path, request: bytes, sink: int, stop: CancellationToken) -> int:
    # The request is in no file, as plugins may hold tokens. The pipe's end tells the child that we are gone.
    with subprocess.Popen([*command, str(folder)], stdin=subprocess.PIPE, stdout=sink, stderr=sink, bufsize=0) as child:
        try:
            assert child.stdin is not None
            rest = memoryview(b"%08x" % len(request) + request)
            with stop.on_cancel(child.kill):
                with suppress(BrokenPipeError):  # its status tells why it ended
                    while rest:
                        rest = rest[os.write(child.stdin.fileno(), rest) :]
                return child.wait()
        except BaseException:
            child.kill()
            raise


def _raise_report(report: Mapping[str, str], printed: str) -> NoReturn:
    parts = [report["message"], report.get("traceback", "").rstrip()]
    if printed.strip():
        parts.append("what it printed:\n" + printed.rstrip())
    kinds = {"pickle": NotPicklableError, "script": ScriptError, "usage": UsageError}
    raise kinds.get(report["kind"], ScriptFailed)("\n".join(part for part in parts if part))
