"""Making the environment that a script's inline metadata asks for, by the interpreter that it is made of."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..model.errors import PoolError
from ..model.interpreter import Interpreter
from ..node.boot import environment
from ..store.home import ENVIRONMENTS, home
from .own_packages import own_packages
from .python_versions import numbers
from .stop import Stop

Said = Callable[[str], None]
KEPT = 2000  # characters of what a failed process has printed
ENDS = 40  # twentieths of a second that killed installers may take to end


def have(interpreter: Interpreter, said: Said, stop: Stop) -> None:
    """Have an interpreter where it says that it is: one whose environment is made for a script is made now. One that
    is there counts as used.

    Args:
        said: takes lines that tell how long work goes on.
        stop: ends it.

    Raises:
        PoolError: it cannot be made; holds the installer's last lines.
        Cancelled: it was to stop; what was half made is removed.
    """
    if not interpreter.base:
        return
    root = home() / ENVIRONMENTS
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    version = numbers(interpreter.version)[:2]
    if not environment.ready(interpreter.environment, root, interpreter.base, version):
        said(f"making the environment of the {interpreter.source} with Python {interpreter.version}")
        _make(interpreter, root, said, stop)


def _make(interpreter: Interpreter, root: Path, said: Said, stop: Stop) -> None:
    command = environment.own_command(interpreter.base, "environment", own_packages().first)
    wanted = {"image": dict(interpreter.environment), "root": str(root), "env": {}, "cwd": ""}
    answer: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # what it starts ends with it
        ) as process,
    ):
        try:
            assert process.stdin is not None and process.stdout is not None
            with stop.ends(lambda: _kill(process)):
                with suppress(BrokenPipeError):  # its end tells why
                    process.stdin.write(json.dumps(wanted).encode())  # addresses may hold secrets
                    process.stdin.close()
                for line in process.stdout:
                    told = _told(line)
                    if "line" in told:
                        said(str(told["line"]))
                    else:
                        answer = dict(told) or answer
                process.wait()
        except BaseException:
            _kill(process)
            process.wait()
            _remove(Path(interpreter.prefix))
            raise
        if not answer.get("python"):
            _kill(process)
        errors.seek(0)
        last_words = errors.read().decode(errors="replace").strip()[-KEPT:]
    if not answer.get("python"):
        why = answer.get("error") or last_words or "its process ended without a word"
        raise PoolError(f"The environment of the {interpreter.source} cannot be made on this machine: {why}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _remove(folder: Path) -> None:
    """Remove an environment that was given up half made, unless somebody else goes on with it. Its installers were
    killed, and may need a moment to end."""
    with environment.locked(folder) as lock:
        for _ in range(ENDS):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if (folder / environment.MADE).exists() or folder.is_symlink():
                return
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                return
            time.sleep(0.05)


def _told(line: bytes) -> Mapping[str, Any]:
    """A line of the process; a start-up file of the interpreter's may print what it likes."""
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if type(told) is dict else {}
