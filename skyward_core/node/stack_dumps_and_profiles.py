"""Stack dumps and profiles of rank processes, taken by py-spy or by the process itself on a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from skyward_core.node.agent.worker_processes import has_proc, recorded_worker, signal_process
from skyward_core.node.bootstrap.host_inspection import distrust_reason
from skyward_core.protocol.node_paths import ANSWER, ASK, EXCEPTION_REQUEST, STACK_SIGNAL

THREADS = 64  # maximum number of threads of a rank whose stacks are reported
FRAMES_PER_THREAD = (96, 32)  # maximum numbers of innermost and outermost stack frames reported per thread
MAX_TEXT = 300  # maximum characters of a function or file name

Frame = list[Any]  # function, file and line of a stack frame; a stack begins with the innermost one
Thread = dict[str, Any]  # a thread with its stack, in the form in which the agent sends it to the client


class PathMapping(NamedTuple):
    """Mapping of a node's file paths to the client's paths, which are the same for all nodes.

    Attributes:
        sources: Folder of source files that were sent by content hash.
        here: The ranks' working folder.
        there: The client's folder that ``here`` is a copy of; "" if there is none; None if client and node share files.
    """

    sources: str
    here: str
    there: str | None

    def to_client_path(self, file: str) -> str:
        """Return the path that a file of the node has on the client."""
        if file.startswith(self.sources + "/"):
            return file[len(self.sources) + 1 :].partition("/")[2]
        if self.here and self.there is not None and file.startswith(self.here + "/"):
            return f"{self.there}/{file[len(self.here) + 1 :]}" if self.there else file[len(self.here) + 1 :]
        return file

    def map_raw_profile(self, raw: bytes) -> bytes:
        """Replace the node's file paths in a profile (in py-spy's raw format) by the client's paths."""
        text = raw.decode(errors="replace")
        return re.sub(r"(?<= \()[^;()]+(?=:\d+\))", lambda file: self.to_client_path(file[0]), text).encode()


_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[([^\n]*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def parse_py_spy(output: bytes, pid: int) -> list[Thread]:
    """Parse the output of ``py-spy dump --json``. The main thread comes first, threads of child processes last.

    Raises:
        ValueError: If the output is invalid.
    """
    items = json.loads(output)
    if not isinstance(items, list):
        raise ValueError("py-spy printed no threads")
    found = [_parse_py_spy_thread(each, pid) for each in items if isinstance(each, dict)]
    return [thread for _, thread in sorted(found, key=lambda each: each[0])[:THREADS] if thread["frames"]]


def _parse_py_spy_thread(item: dict[str, Any], pid: int) -> tuple[tuple[bool, int, bool], Thread]:
    child = item["pid"] if isinstance(item.get("pid"), int) and item["pid"] != pid else 0
    listed = item.get("frames")
    frames = (
        [_clip_text(each.get("name")), _clip_text(each.get("filename")), _parse_line(each.get("line"))]
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, dict)
    )
    thread: Thread = {
        "name": _clip_text(item.get("thread_name")),
        "frames": _limit_frames(frames),
        "gil": item.get("owns_gil") is True,
    }
    if child:
        thread["child"] = child
    is_main = item.get("os_thread_id") == item.get("pid")
    return (bool(child), child, not is_main), thread


def parse_faulthandler(output: str) -> list[Thread]:
    """Parse the output of faulthandler. Return the main thread first, although faulthandler prints it last."""
    threads: list[Thread] = []
    for line in output.splitlines():
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
    """Replace the node's file paths in stacks of threads by the client's paths."""
    for thread in threads:
        for frame in thread["frames"]:
            frame[1] = places.to_client_path(frame[1])
    return threads


def limit_threads(threads: list[Thread], most: int) -> list[Thread]:
    """Return the first threads that have at most ``most`` stack frames in total, but at least one thread."""
    selected: list[Thread] = []
    for thread in threads:
        most -= len(thread["frames"])
        if selected and most < 0:
            break
        selected.append(thread)
    return selected


def _limit_frames(frames: Iterable[Frame]) -> list[Frame]:
    inner, outer = FRAMES_PER_THREAD
    every = list(frames)
    if len(every) <= inner + outer:
        return every
    left = len(every) - inner - outer
    return [*every[:inner], [f"({left:,} more)", "", 0], *every[-outer:]]


def _clip_text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= MAX_TEXT else "…" + text[-MAX_TEXT:]


def _parse_line(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 1 << 31 else 0


MAX_ANSWER_BYTES = 1 << 20  # maximum bytes of one stack dump
DUMP_POLL = 0.02  # seconds between checks of the file that a rank dumps its stacks into
DUMP_QUIET_TIME = 0.1  # seconds without new bytes after which a rank's stack dump is complete
NO_HANDLER = "its process runs another program or has no handler for the signal"


class StackDumpError(Exception):
    """No stacks are available. The message states why."""


def refusal_reason(pid: int, path: str, record: str = "") -> str:
    """Return why the signal that requests a stack dump must not be sent to a process, or "".

    A process without a handler would be ended by the signal. If user code has closed the file for the dump, the file's
    descriptor may now belong to another file.

    Args:
        record: File with the pid and start time of the rank's worker. Without ``/proc`` only they are checked, because
            a worker that runs another program has lost its connection to the agent.
    """
    if record and not has_proc():
        return "" if recorded_worker(Path(record)) == pid else NO_HANDLER
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "cannot inspect its process"
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")] or ["0"]
    if not int(caught, 16) >> (STACK_SIGNAL - 1) & 1:
        return NO_HANDLER
    if not _has_open(pid, path):
        return "user code has replaced the signal handler or closed the answer file"
    return ""


def _has_open(pid: int, path: str) -> bool:
    with suppress(OSError):
        status = os.lstat(path)
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # The process has closed the descriptor since the listing.
                if os.path.samestat(status, each.stat()):
                    return True
    return False


def request_stacks(pid: int, path: str, timeout: float, record: str = "") -> list[Thread]:
    """Request a stack dump from a process by a signal, and wait for the dump. Blocks.

    Raises:
        StackDumpError: If the process must not get the signal or does not answer.
    """
    if reason := refusal_reason(pid, path, record):
        raise StackDumpError(reason)
    try:
        with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "rb+", buffering=0) as file:
            file.truncate(0)
            os.kill(pid, STACK_SIGNAL)
            output = _read_dump(file.fileno(), time.monotonic() + timeout)
            file.truncate(0)
    except OSError as error:
        raise StackDumpError(f"cannot read its answer: {error.strerror}") from error
    threads = parse_faulthandler(output.decode(errors="replace"))
    if not threads:
        raise StackDumpError(f"no answer within {timeout:g} s")
    return threads


def _read_dump(file: int, until: float) -> bytes:
    size, since = 0, time.monotonic()
    while (now := time.monotonic()) < until and not (size and now - since >= DUMP_QUIET_TIME):
        time.sleep(DUMP_POLL)
        if (grown := os.fstat(file).st_size) != size:
            size, since = grown, time.monotonic()
    with suppress(BlockingIOError):
        return os.pread(file, min(size, MAX_ANSWER_BYTES), 0)
    return b""


NAME = "py-spy"
MAX_PY_SPY_BYTES = 16 << 20  # maximum bytes of py-spy's output
TRIES = 3  # maximum attempts to dump stacks with py-spy, because stacks that change during a dump can be inconsistent
NOT_INSTALLED = "py-spy is not installed on the node. Install it there: pip install py-spy"
REFUSED = "the kernel of the node does not let py-spy read another process (kernel.yama.ptrace_scope)"


class PySpyError(Exception):
    """py-spy failed; the message states why."""


def find_py_spy(python: str) -> str:
    """Return the path of a trusted py-spy; "" if there is none.

    Search beside the ranks' interpreter, beside the agent's interpreter, and on PATH. On the client's machine, the
    agent uses the client's interpreter.
    """
    places = (str(Path(each).parent / NAME) for each in (python, sys.executable))
    found: str | None = next((each for each in places if os.access(each, os.X_OK)), None)
    if found is None:
        import shutil  # imported late: shutil loads all compression modules, which takes 5 ms

        found = shutil.which(NAME)
    return found if found and not distrust_reason(str(Path(found).absolute())) else ""


def dump_py_spy_stacks(program: str, pid: int, timeout: float) -> list[Thread]:
    """Return the stacks of a process and of its children, as dumped by py-spy. Blocks.

    Raises:
        PySpyError: If the process cannot be read or does not run Python.
    """
    options = ["dump", "--json", "--nonblocking", "--full-filenames", "--pid", str(pid)]
    if _has_children(pid):
        options.append("--subprocesses")
    reason = ""
    for _ in range(TRIES):
        output, errors = run_command([program, *options], timeout)
        try:
            if threads := parse_py_spy(output, pid):
                return threads
        except ValueError:
            reason = reason or describe_failure(errors)
            if reason == REFUSED:
                raise PySpyError(reason) from None
        if "--subprocesses" in options and reason:
            # Retry without child processes, because a child that does not run Python makes py-spy fail.
            options.remove("--subprocesses")
    raise PySpyError(reason or "py-spy found no Python code in the process")


def run_command(command: list[str], timeout: float) -> tuple[bytes, bytes]:
    """Run a program with a limit on time and output. Return its output and error output.

    Raises:
        PySpyError: If a limit was exceeded or the program could not be started.
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
        raise PySpyError(f"cannot start py-spy: {error.strerror}") from error
    late = threading.Event()
    pid = child.pid

    def kill() -> None:
        late.set()
        signal_process(pid, signal.SIGKILL)

    timer = threading.Timer(timeout, kill)
    timer.start()
    errors: list[bytes] = []
    reader = threading.Thread(target=lambda: errors.append(child.stderr.read(1 << 16) if child.stderr else b""))
    reader.start()
    try:
        output = child.stdout.read(MAX_PY_SPY_BYTES + 1) if child.stdout else b""
        if len(output) > MAX_PY_SPY_BYTES:
            kill()
            raise PySpyError("its stacks are too large")
    finally:
        reader.join()
        timer.cancel()
        child.returncode = 0  # The agent reaps all child processes itself, so subprocess must not wait for this one.
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    if late.is_set():
        raise PySpyError(f"py-spy did not finish within {timeout:g} s")
    return output, b"".join(errors)


def describe_failure(errors: bytes) -> str:
    """Return the reason for which py-spy failed, parsed from its error output."""
    text = errors.decode(errors="replace")
    lowered = text.lower()
    if "permission denied" in lowered or "operation not permitted" in lowered or "eperm" in lowered:
        return REFUSED
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Drop lines in which py-spy announces its next step.
    messages = [line for line in lines if not line.startswith("py-spy>")]
    if messages:
        return f"py-spy failed: {messages[-1].removeprefix('Error: ')[:200]}"
    return "py-spy exited without output: the rank may have ended"


def _has_children(pid: int) -> bool:
    try:
        return any(each.read_bytes().strip() for each in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return False


RATE = 100  # samples per second of a profile
MAX_PROFILE_SECONDS = 600.0  # maximum duration of a profile in seconds
PROFILE_GRACE = 20.0  # seconds that py-spy may take in addition to the duration of a profile
MAX_PROFILE_BYTES = 8 << 20  # maximum bytes of a profile


def record_profile(program: str, pid: int, seconds: float, file: str) -> bytes:
    """Record a profile: one line per stack with its number of samples, frames outermost first, separated by semicolons.
    Blocks.

    Args:
        program: Path of py-spy, or "".
        pid: The process.
        seconds: Duration of the profile.
        file: File that py-spy writes; deleted afterwards.

    Raises:
        PySpyError: If py-spy is missing or fails.
    """
    if not program:
        raise PySpyError(NOT_INSTALLED)
    whole = max(1, round(min(seconds, MAX_PROFILE_SECONDS)))
    options = ["--format", "raw", "--nonblocking", "--full-filenames", "--rate", str(RATE), "--duration", str(whole)]
    try:
        output, errors = run_command(
            [program, "record", *options, "--output", file, "--pid", str(pid)], whole + PROFILE_GRACE
        )
        try:
            with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as written:
                profile = written.read(MAX_PROFILE_BYTES + 1)
        except FileNotFoundError:
            raise PySpyError(describe_failure(errors or output)) from None
    finally:
        with suppress(OSError):
            os.unlink(file)  # noqa: PTH108
    if len(profile) > MAX_PROFILE_BYTES:
        raise PySpyError("the profile is too large. Use fewer seconds.")
    return profile


PATIENCE = 2.0  # seconds for a rank to dump its stacks
EXCEPTION_PATIENCE = 0.3  # seconds for a rank to report its current exception; the rank's thread for this needs the GIL
FRAMES = 3000  # maximum number of stack frames reported per rank, over all its threads


class RankProcess(NamedTuple):
    """A rank's process.

    Attributes:
        pid: The process.
        file: File to which the process writes its answer to the signal.
        places: Mapping of the process's source files to the client's paths.
        record: File with the pid and start time of the process.
    """

    pid: int
    file: str
    places: PathMapping
    record: str = ""


def capture_stacks(process: RankProcess, program: str, *, signal: bool) -> dict[str, Any]:
    """Return the stacks of a rank in the format of the agent's answers to clients. Blocks for a few seconds at most.

    Args:
        process: The rank's process.
        program: Path of py-spy, or "".
        signal: Whether the signal may be sent.
    """
    asked = _ask_exception(process.file)
    found = _read_stacks(process, program, signal=signal)
    text = _read_exception(process.file) if asked and "threads" in found else ""
    return found | ({"exception": text} if text else {})


def _ask_exception(file: str) -> bool:
    """Ask a worker through a named pipe for the exception that it handles. Return whether the worker reads the pipe."""
    with suppress(OSError):
        os.unlink(file + ANSWER)  # noqa: PTH108
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW
    # Opening fails if the worker is of an older release, or has closed the pipe.
    with suppress(OSError), open(os.open(file + ASK, flags), "wb", buffering=0) as pipe:
        return stat.S_ISFIFO(os.fstat(pipe.fileno()).st_mode) and pipe.write(EXCEPTION_REQUEST) == 1
    return False


def _read_exception(file: str) -> str:
    """Wait for a worker's answer, and return the exception; "" if it handles none or does not answer."""
    until = time.monotonic() + EXCEPTION_PATIENCE
    while not os.path.exists(file + ANSWER):  # noqa: PTH110
        if time.monotonic() > until:
            return ""
        time.sleep(DUMP_POLL)
    with suppress(OSError), open(os.open(file + ANSWER, os.O_RDONLY | os.O_NOFOLLOW), "rb") as answer:
        return answer.read(4 * MAX_TEXT).decode(errors="replace")[:MAX_TEXT]
    return ""


def _read_stacks(process: RankProcess, program: str, *, signal: bool) -> dict[str, Any]:
    if program:
        try:
            threads = dump_py_spy_stacks(program, process.pid, PATIENCE)
            return {"how": "py-spy", "threads": _format_threads(threads, process)}
        except PySpyError as error:
            reason = str(error)
    else:
        reason = NOT_INSTALLED
    refused = refusal_reason(process.pid, process.file, process.record)
    if refused == NO_HANDLER:
        # Report this reason, because py-spy's error for such a process is less precise.
        return {"why": refused, "answers": False}
    if not signal:
        return {"why": reason, "answers": not refused}
    try:
        threads = request_stacks(process.pid, process.file, PATIENCE, process.record)
    except StackDumpError as error:
        return {"why": f"{reason}; via signal: {error}"}
    return {"how": "signal", "threads": _format_threads(threads, process)}


def _format_threads(threads: list[Thread], process: RankProcess) -> list[Thread]:
    return map_thread_files(limit_threads(threads, FRAMES), process.places)
