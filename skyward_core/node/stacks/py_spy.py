"""py-spy, where a node has it: it reads another process's memory, and needs nothing of that process.

It is never let stop a process for its stack (``--nonblocking``): a system call that is interrupted so may fail in code
that does not know that.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

from ..agent.processes import kill_one
from ..boot.host import doubt
from .texts import Thread, of_py_spy

NAME = "py-spy"
MOST = 16 << 20  # bytes of what it says
TRIES = 3  # what moves while it is read may make no sense
ABSENT = "py-spy is not installed on its node"
REFUSED = "its node's kernel does not let py-spy read another process (kernel.yama.ptrace_scope)"


class CannotRead(Exception):
    """py-spy could not tell; the message says why, ``lasting`` whether it would be no different the next time."""

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


def find(python: str) -> str:
    """Where it is, beside the ranks' interpreter or on our own path; "" where nobody but others could have put it."""
    beside = Path(python).parent / NAME
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(NAME)
    return found if found and not doubt(str(Path(found).absolute())) else ""


def stacks(program: str, pid: int, patience: float) -> list[Thread]:
    """The stacks of a process, and of its children where it has any. Blocks.

    Raises:
        CannotRead: it may not be read, or is none of Python.
    """
    options = ["dump", "--json", "--nonblocking", "--full-filenames", "--pid", str(pid)]
    if _has_children(pid):
        options.append("--subprocesses")
    why = ""
    for _ in range(TRIES):
        said, errors = run([program, *options], patience)
        try:
            if threads := of_py_spy(said, pid):
                return threads
        except ValueError:
            why = why or in_words(errors)
            if why == REFUSED:
                raise CannotRead(why, lasting=True) from None
        if "--subprocesses" in options and why:
            options.remove("--subprocesses")  # a child that is none of Python, say
    raise CannotRead(why or "py-spy found no Python code in it")


def run(command: list[str], patience: float) -> tuple[bytes, bytes]:
    """What a program says, within a time and so many bytes.

    Raises:
        CannotRead: it took longer, said more, or could not be started.
    """
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise CannotRead(f"py-spy cannot be started: {error.strerror}", lasting=True) from error
    late = threading.Event()
    pid = child.pid

    def end() -> None:
        late.set()
        kill_one(pid, signal.SIGKILL)

    timer = threading.Timer(patience, end)
    timer.start()
    errors: list[bytes] = []
    aside = threading.Thread(
        target=lambda: errors.append(child.stderr.read(1 << 16) if child.stderr else b"")
    )
    aside.start()
    try:
        said = child.stdout.read(MOST + 1) if child.stdout else b""
        if len(said) > MOST:
            end()
            raise CannotRead("its stacks are too large to be told")
    finally:
        aside.join()
        timer.cancel()
        child.returncode = 0  # the agent sees to it
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    if late.is_set():
        raise CannotRead(f"py-spy has not answered within {patience:g} s")
    return said, b"".join(errors)


def in_words(errors: bytes) -> str:
    """Why it could not, by what it printed."""
    text = errors.decode(errors="replace")
    lowered = text.lower()
    if "permission denied" in lowered or "operation not permitted" in lowered or "eperm" in lowered:
        return REFUSED
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("py-spy>")]  # what it is about to do
    if told:
        return f"py-spy said: {told[-1].removeprefix('Error: ')[:200]}"
    return "py-spy ended and wrote nothing: the rank may have ended meanwhile"


def _has_children(pid: int) -> bool:
    try:
        return any(each.read_bytes().strip() for each in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return False
