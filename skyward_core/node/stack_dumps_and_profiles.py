"""Stacks and profiles of processes, by py-spy or by signal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from skyward_core.node.agent.worker_processes import signal_process
from skyward_core.node.bootstrap.host_inspection import distrust_reason
from skyward_core.protocol.node_paths import STACK_SIGNAL

THREADS = 64  # of one rank that are told of
FRAMES_PER_THREAD = (96, 32)  # of one thread: the innermost, the outermost
MAX_TEXT = 300  # of a name

Frame = list[Any]  # function, file, line; innermost first
Thread = dict[str, Any]  # as answers have it


class PathMapping(NamedTuple):
    """Where a node has the person's files: named as the client has them, they are the same on all nodes.

    Attributes:
        sources: what scripts are made of, by content.
        here, there: the ranks' working folder, and the client's that it is a copy of; "" where it has none, None where
            both see the same files.
    """

    sources: str
    here: str
    there: str | None

    def to_client_path(self, file: str) -> str:
        """A file's path as the client knows it."""
        if file.startswith(self.sources + "/"):
            return file[len(self.sources) + 1 :].partition("/")[2]
        if self.here and self.there is not None and file.startswith(self.here + "/"):
            return f"{self.there}/{file[len(self.here) + 1 :]}" if self.there else file[len(self.here) + 1 :]
        return file

    def map_raw_profile(self, raw: bytes) -> bytes:
        """The same in what py-spy writes raw."""
        text = raw.decode(errors="replace")
        return re.sub(r"(?<= \()[^;()]+(?=:\d+\))", lambda file: self.to_client_path(file[0]), text).encode()


_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[([^\n]*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def parse_py_spy(said: bytes, pid: int) -> list[Thread]:
    """What ``py-spy dump --json`` says; the main thread of the process comes first, its children's threads last.

    Raises:
        ValueError: it says something else.
    """
    told = json.loads(said)
    if not isinstance(told, list):
        raise ValueError("py-spy tells of no threads")
    found = [_parse_py_spy_thread(each, pid) for each in told if isinstance(each, dict)]
    return [thread for _, thread in sorted(found, key=lambda each: each[0])[:THREADS] if thread["frames"]]


def _parse_py_spy_thread(told: dict[str, Any], pid: int) -> tuple[tuple[bool, int, bool], Thread]:
    child = told["pid"] if isinstance(told.get("pid"), int) and told["pid"] != pid else 0
    frames = (
        [_clip_text(each.get("name")), _clip_text(each.get("filename")), _parse_line(each.get("line"))]
        for each in _iterate_list(told.get("frames"))
        if isinstance(each, dict)
    )
    thread: Thread = {
        "name": _clip_text(told.get("thread_name")),
        "frames": _limit_frames(frames),
        "gil": told.get("owns_gil") is True,
    }
    if child:
        thread["child"] = child
    is_main = told.get("os_thread_id") == told.get("pid")
    return (bool(child), child, not is_main), thread


def parse_faulthandler(said: str) -> list[Thread]:
    """What faulthandler writes; the main thread, which it names last, comes first."""
    threads: list[Thread] = []
    for line in said.splitlines():
        if head := _THREAD.fullmatch(line):
            threads.append({"name": _clip_text(head[2]), "frames": [], "gil": False})
        elif threads and (frame := _FRAME.fullmatch(line)):
            file, number, name = frame.groups()
            threads[-1]["frames"].append(
                [_clip_text(name), _clip_text(file), _parse_line(int(number) if number.isdecimal() else 0)]
            )
    threads.reverse()
    for thread in threads:
        thread["frames"] = _limit_frames(thread["frames"])
    return [thread for thread in threads[:THREADS] if thread["frames"]]


def map_thread_files(threads: list[Thread], places: PathMapping) -> list[Thread]:
    """The same threads; files are named as the client has them."""
    for thread in threads:
        for frame in thread["frames"]:
            frame[1] = places.to_client_path(frame[1])
    return threads


def limit_threads(threads: list[Thread], most: int) -> list[Thread]:
    """As many of them, the first ones first, as have no more frames together; always the first."""
    kept: list[Thread] = []
    for thread in threads:
        most -= len(thread["frames"])
        if kept and most < 0:
            break
        kept.append(thread)
    return kept


def _limit_frames(frames: Iterable[Frame]) -> list[Frame]:
    inner, outer = FRAMES_PER_THREAD
    every = list(frames)
    if len(every) <= inner + outer:
        return every
    left = len(every) - inner - outer
    return [*every[:inner], [f"({left:,} more)", "", 0], *every[-outer:]]


def _iterate_list(value: Any) -> Iterator[Any]:
    return iter(value if isinstance(value, list) else ())


def _clip_text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= MAX_TEXT else "…" + text[-MAX_TEXT:]


def _parse_line(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 1 << 31 else 0


MOST = 1 << 20  # bytes of one answer
DUMP_POLL = 0.02  # seconds between two looks at the file
DUMP_QUIET_TIME = 0.1  # seconds without another byte after which the answer is taken to be whole
NO_HANDLER = "its process is another program by now, or answers no signal"


class StackDumpError(Exception):
    """Why there is none, in words."""


def refusal_reason(pid: int, path: str) -> str:
    """Why a process must not be sent the signal, or "": without its handler it would end, and where user code has
    closed the file, what it has opened since might be written to."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "its process cannot be looked at"
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")] or ["0"]
    if not int(caught, 16) >> (STACK_SIGNAL - 1) & 1:
        return NO_HANDLER
    if not _has_open(pid, path):
        return "its code has taken the signal, or closed the file of the answer"
    return ""


def _has_open(pid: int, path: str) -> bool:
    with suppress(OSError):
        wanted = os.lstat(path)
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if os.path.samestat(wanted, each.stat()):
                    return True
    return False


def request_stacks(pid: int, path: str, patience: float) -> list[Thread]:
    """Ask, and wait for the answer. Blocks.

    Raises:
        Unanswered: the process must not be asked, or does not answer.
    """
    if reason := refusal_reason(pid, path):
        raise StackDumpError(reason)
    try:
        with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "rb+", buffering=0) as file:
            file.truncate(0)
            os.kill(pid, STACK_SIGNAL)
            said = _read_dump(file.fileno(), time.monotonic() + patience)
            file.truncate(0)
    except OSError as error:
        raise StackDumpError(f"its answer cannot be read: {error.strerror}") from error
    threads = parse_faulthandler(said.decode(errors="replace"))
    if not threads:
        raise StackDumpError(f"it has not answered within {patience:g} s")
    return threads


def _read_dump(file: int, until: float) -> bytes:
    size, since = 0, time.monotonic()
    while (now := time.monotonic()) < until and not (size and now - since >= DUMP_QUIET_TIME):
        time.sleep(DUMP_POLL)
        if (grown := os.fstat(file).st_size) != size:
            size, since = grown, time.monotonic()
    with suppress(BlockingIOError):
        return os.pread(file, min(size, MOST), 0)
    return b""


NAME = "py-spy"
MOST_PY_SPY_BYTES = 16 << 20  # bytes of what it says
TRIES = 3  # what moves while it is read may make no sense
NOT_INSTALLED = "py-spy is not installed on its node"
REFUSED = "its node's kernel does not let py-spy read another process (kernel.yama.ptrace_scope)"


class PySpyError(Exception):
    """py-spy could not tell; the message says why, ``lasting`` whether it would be no different the next time."""

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


def find_py_spy(python: str) -> str:
    """Where it is, beside the ranks' interpreter or on our own path; "" where nobody but others could have put it."""
    beside = Path(python).parent / NAME
    if os.access(beside, os.X_OK):
        found: str | None = str(beside)
    else:
        import shutil  # loads all compression modules, 5 ms

        found = shutil.which(NAME)
    return found if found and not distrust_reason(str(Path(found).absolute())) else ""


def dump_py_spy_stacks(program: str, pid: int, patience: float) -> list[Thread]:
    """The stacks of a process, and of its children where it has any. Blocks.

    Raises:
        CannotRead: it may not be read, or is none of Python.
    """
    options = ["dump", "--json", "--nonblocking", "--full-filenames", "--pid", str(pid)]
    if _has_children(pid):
        options.append("--subprocesses")
    reason = ""
    for _ in range(TRIES):
        said, errors = run_command([program, *options], patience)
        try:
            if threads := parse_py_spy(said, pid):
                return threads
        except ValueError:
            reason = reason or describe_failure(errors)
            if reason == REFUSED:
                raise PySpyError(reason, lasting=True) from None
        if "--subprocesses" in options and reason:
            options.remove("--subprocesses")  # a child that is none of Python, say
    raise PySpyError(reason or "py-spy found no Python code in it")


def run_command(command: list[str], patience: float) -> tuple[bytes, bytes]:
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
        raise PySpyError(f"py-spy cannot be started: {error.strerror}", lasting=True) from error
    late = threading.Event()
    pid = child.pid

    def end() -> None:
        late.set()
        signal_process(pid, signal.SIGKILL)

    timer = threading.Timer(patience, end)
    timer.start()
    errors: list[bytes] = []
    aside = threading.Thread(target=lambda: errors.append(child.stderr.read(1 << 16) if child.stderr else b""))
    aside.start()
    try:
        said = child.stdout.read(MOST_PY_SPY_BYTES + 1) if child.stdout else b""
        if len(said) > MOST_PY_SPY_BYTES:
            end()
            raise PySpyError("its stacks are too large to be told")
    finally:
        aside.join()
        timer.cancel()
        child.returncode = 0  # the agent sees to it
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    if late.is_set():
        raise PySpyError(f"py-spy has not answered within {patience:g} s")
    return said, b"".join(errors)


def describe_failure(errors: bytes) -> str:
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


RATE = 100  # looks a second
LONGEST = 600.0  # seconds
PROFILE_GRACE = 20.0  # seconds that py-spy may take beside those
MOST_PROFILE_BYTES = 8 << 20  # bytes of what it tells


def record_profile(program: str, pid: int, seconds: float, file: str) -> bytes:
    """Stacks and how often each was seen, a line each: frames from the outermost on, between semicolons. Blocks.

    Args:
        file: where py-spy writes it; removed again.

    Raises:
        CannotRead: says why there is none.
    """
    if not program:
        raise PySpyError(NOT_INSTALLED)
    whole = max(1, round(min(seconds, LONGEST)))
    options = [
        "--format",
        "raw",
        "--nonblocking",
        "--full-filenames",
        "--rate",
        str(RATE),
        "--duration",
        str(whole),
    ]
    try:
        said, errors = run_command(
            [program, "record", *options, "--output", file, "--pid", str(pid)], whole + PROFILE_GRACE
        )
        try:
            with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as written:
                told = written.read(MOST_PROFILE_BYTES + 1)
        except FileNotFoundError:
            raise PySpyError(describe_failure(errors or said)) from None
    finally:
        with suppress(OSError):
            os.unlink(file)  # noqa: PTH108
    if len(told) > MOST_PROFILE_BYTES:
        raise PySpyError("its stacks are too many to be told: try fewer seconds")
    return told


PATIENCE = 2.0  # seconds that a rank may take to answer
FRAMES = 3000  # of one rank's threads


class RankProcess(NamedTuple):
    """A rank's process.

    Attributes:
        file: where it writes its answer to the signal.
        places: where its files are.
    """

    pid: int
    file: str
    places: PathMapping


def capture_stacks(process: RankProcess, program: str, *, signal: bool) -> dict[str, Any]:
    """What an answer tells of the rank's threads. Blocks, for a few times :data:`PATIENCE` at most.

    Args:
        program: py-spy, or "".
        signal: whether the rank may be sent one.
    """
    if program:
        try:
            threads = dump_py_spy_stacks(program, process.pid, PATIENCE)
            return {"how": "py-spy", "threads": _format_threads(threads, process)}
        except PySpyError as error:
            reason = str(error)
    else:
        reason = NOT_INSTALLED
    refused = refusal_reason(process.pid, process.file)
    if refused == NO_HANDLER:
        return {"why": refused, "answers": False}  # says more than what py-spy finds in such a process
    if not signal:
        return {"why": reason, "answers": not refused}
    try:
        threads = request_stacks(process.pid, process.file, PATIENCE)
    except StackDumpError as error:
        return {"why": f"{reason}; by a signal: {error}"}
    return {"how": "signal", "threads": _format_threads(threads, process)}


def _format_threads(threads: list[Thread], process: RankProcess) -> list[Thread]:
    return map_thread_files(limit_threads(threads, FRAMES), process.places)
