"""Making the environment that a script's inline metadata asks for, by the interpreter that it is made of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
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

Said = Callable[[str], None]
KEPT = 2000  # characters of what a failed process has printed


def have(interpreter: Interpreter, said: Said) -> None:
    """Have an interpreter where it says that it is: one whose environment is made for a script is made now. One that
    is there counts as used.

    Args:
        said: takes lines that tell how long work goes on.

    Raises:
        PoolError: it cannot be made; holds the installer's last lines.
    """
    if not interpreter.base:
        return
    root = home() / ENVIRONMENTS
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    version = numbers(interpreter.version)[:2]
    if not environment.ready(interpreter.environment, root, interpreter.base, version):
        said(f"making the environment of the {interpreter.source} with Python {interpreter.version}")
        _make(interpreter, root, said)


def _make(interpreter: Interpreter, root: Path, said: Said) -> None:
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
        finally:
            if not answer.get("python"):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        errors.seek(0)
        last_words = errors.read().decode(errors="replace").strip()[-KEPT:]
    if not answer.get("python"):
        why = answer.get("error") or last_words or "its process ended without a word"
        raise PoolError(f"The environment of the {interpreter.source} cannot be made on this machine: {why}")


def _told(line: bytes) -> Mapping[str, Any]:
    """A line of the process; a start-up file of the interpreter's may print what it likes."""
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if type(told) is dict else {}
