"""Standard output and standard error of a rank and its children, with marks that record their order.

Whenever output switches to the other stream, a mark is written before the bytes that it describes.

Marking every write to standard output would be slow. After a marked write, further writes to standard output therefore
go directly to the C implementation, without marks. The next write is marked again after ``MARK_INTERVAL`` seconds, for
which a thread waits, or as soon as standard error is used. The thread sleeps while nothing is printed.
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep  # imported by name, because user code may replace the functions of `time`
from typing import TYPE_CHECKING, Any

from skyward_core.protocol.stdout_stderr_order_marks import BEFORE, MARK_INTERVAL, MarkWriter, file_identity
from skyward_core.runtime.import_hooks_gc_pause_and_alias import call_when_imported

if TYPE_CHECKING:
    from skyward_core.runtime.metric_logging import OutputScan

PIPE_BYTES = 1 << 20  # bytes that a child process may print before the rank's process forwards them
READ_BYTES = 1 << 16


class ChildOutput:
    """Pipes that capture the output of child processes and forward it to the rank's streams.

    Args:
        write: Writes bytes to standard output (1) or standard error (2).
        opened: Called before the first child starts. From then on this process is not the only one that prints.
    """

    def __init__(self, write: Callable[[int, bytes], None], opened: Callable[[], None]) -> None:
        self._write = write
        self._on_first_child = opened
        self._places = {stream: file_identity(stream) for stream in (1, 2)}
        self._pipes: dict[int, tuple[int, int]] = {}
        # Our descriptor -> identity of its file, to detect that user code has closed and reused the descriptor.
        self._ours: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._on_fork)
        call_when_imported(self._patch, "subprocess")
        os.system = self._run_system

    def drain(self) -> None:
        """Forward all output that child processes have printed so far."""
        if self._pipes:
            with self._lock:
                for stream, (readable, _) in self._pipes.items():
                    with suppress(BlockingIOError):
                        while file_identity(readable) == self._ours[readable] and (
                            data := os.read(readable, READ_BYTES)
                        ):
                            self._write(stream, data)

    def _patch(self, subprocess: Any) -> None:
        handles = subprocess.Popen._get_handles

        def get_handles(popen: Any, stdin: Any, stdout: Any, stderr: Any) -> Any:
            stdout = self._pipe_for_child(1) if stdout is None else stdout
            stderr = self._pipe_for_child(2) if stderr is None else stderr
            return handles(popen, stdin, stdout, stderr)

        subprocess.Popen._get_handles = get_handles

    def _run_system(self, command: Any) -> int:
        import subprocess

        code = subprocess.Popen(command, shell=True).wait()
        return code << 8 if code >= 0 else -code

    def _pipe_for_child(self, stream: int) -> int | None:
        """Return the descriptor for a child process's output; None if user code has redirected the stream."""
        if self._places[stream] != file_identity(stream):
            return None
        with self._lock:
            if not self._pipes:
                self._open_pipes()
        writable = self._pipes[stream][1]
        return writable if file_identity(writable) == self._ours[writable] else None

    def _open_pipes(self) -> None:
        pipes = {}
        for stream in (1, 2):
            pipes[stream] = readable, writable = os.pipe()
            os.set_blocking(readable, False)
            with suppress(OSError, AttributeError):
                fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._ours = {end: file_identity(end) for ends in pipes.values() for end in ends}
        self._pipes = pipes
        self._on_first_child()
        threading.Thread(target=self._serve, args=(pipes,), name="child-output", daemon=True).start()

    def _serve(self, pipes: dict[int, tuple[int, int]]) -> None:
        poll = select.poll()
        for readable, _ in pipes.values():
            poll.register(readable, select.POLLIN)
        while all(event & select.POLLIN for _, event in poll.poll()):
            self.drain()

    def _on_fork(self) -> None:
        """Let a forked child process print directly to the log files."""
        self._pipes = {}
        self._lock = threading.Lock()


class CapturedStreams:
    """Replacement of the interpreter's output streams, which marks the order of output and the run that printed it.

    Args:
        path: File of the marks.
        scan: Search for metrics in the output, or None.
    """

    def __init__(self, path: str, scan: OutputScan | None = None) -> None:
        self._scan = scan
        self._runs: list[str] = []  # runs that have an active call in this process
        self._run = ""
        self._files = {stream: (os.dup(stream), file_identity(stream)) for stream in (1, 2)}
        self._marker = MarkWriter(path, self._files[1][0], self._files[2][0], BEFORE)
        # Use a plain FileIO and replace ``write`` in the object. A subclass that overrides the method would make each
        # line a tenth slower, because the interpreter has fast paths for its own classes.
        out = io.FileIO(1, "w", closefd=False)
        self._out_vars = vars(out)
        self._write_directly = out.write
        self._intercept_stdout()
        self._marked = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_shared = False
        self._marked_at = 0.0
        self._stdout = sys.stdout = sys.__stdout__ = _make_text_stream(sys.stdout, out)  # type: ignore[misc]
        self._stderr = sys.stderr = sys.__stderr__ = _make_text_stream(sys.stderr, _StderrFile(self))  # type: ignore[misc]
        self._children = ChildOutput(self._write_child_output, self._on_first_child)
        os.register_at_fork(after_in_child=self._on_fork)

    def start_run(self, run: str) -> None:
        """Attribute all further output to a run."""
        self._runs.append(run)
        self._update_run()

    def end_run(self, run: str) -> None:
        """Stop attributing output to a run."""
        self._runs.remove(run)
        self._update_run()

    def flush(self) -> None:
        """Write all buffered output: of children, of our streams, and of streams with which user code replaced ours."""
        self._children.drain()
        ours: tuple[Any, ...] = (self._stdout, self._stderr)
        others = (sys.stdout, sys.stderr)
        for stream in ours if others[0] is ours[0] and others[1] is ours[1] else ours + others:
            try:
                stream.flush()
            except Exception as error:  # noqa: BLE001  # user code may have installed anything, including None
                # The disk is full. Report it on standard error, which may still work. Nothing is reported for a stream
                # that user code closed.
                if stream is self._stdout and not stream.closed:
                    with suppress(OSError):
                        os.write(2, f"skyward: standard output could not be written: {error}\n".encode())

    def _update_run(self) -> None:
        runs = self._runs
        self._run = runs[0] if len(runs) == 1 or len(set(runs)) == 1 else ""
        self._marked_at = 0.0
        self._intercept_stdout()

    def _intercept_stdout(self) -> None:
        self._out_vars["write"] = self._write_out

    def _write_out(self, data: Any, /) -> int | None:
        self._before_stdout()
        return self._write_directly(data)

    def _before_stdout(self) -> None:
        self._children.drain()
        self._marker.mark_before(self._run)
        self._marked_at = monotonic()
        if not self._is_shared and self._start_thread():
            self._out_vars.pop("write", None)
            if not self._marked.is_set():
                self._marked.set()
        self._note_output()

    def _start_thread(self) -> bool:
        """Start the thread that re-enables marks after a pause. Return False if the process limit forbids it."""
        if self._thread is None:  # The thread starts at the first output, because most calls print nothing.
            thread = threading.Thread(target=self._rearm_marks, name="log-marks", daemon=True)
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread
        return self._thread is not None

    def _note_output(self) -> None:
        if self._scan is not None and not self._scan.has_output:
            self._scan.note_output()
            self._start_thread()
            self._marked.set()

    def before_stderr(self) -> None:
        self._children.drain()
        if self._marker.has_stdout_grown() or monotonic() > self._marked_at + MARK_INTERVAL:
            self._marker.mark_before(self._run)
            self._marked_at = monotonic()
        self._intercept_stdout()
        self._note_output()

    def _rearm_marks(self) -> None:
        left: float | None = None
        while True:
            if self._marked.wait(left):
                sleep(MARK_INTERVAL)
                self._marked.clear()
                self._intercept_stdout()
            if self._scan is not None:
                left = self._scan.search_if_due()

    def _write_child_output(self, stream: int, data: bytes) -> None:
        """Write the output of child processes to the log file."""
        self._marker.mark_before(self._run)
        duplicate, identity = self._files[stream]
        # User code may have closed our duplicate of the descriptor and reused its number.
        descriptor = duplicate if file_identity(duplicate) == identity else stream
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        self._note_output()

    def _on_first_child(self) -> None:
        """Start to check for output of other processes before each write to standard output."""
        self._is_shared = True
        self._intercept_stdout()

    def _on_fork(self) -> None:
        """Continue in a forked child process, in which no thread restarts the marks."""
        self._scan = None
        self._on_first_child()


class _StderrFile(io.FileIO):
    def __init__(self, streams: CapturedStreams) -> None:
        super().__init__(2, "w", closefd=False)
        self._streams = streams

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    def write(self, data: Any, /) -> int | None:  # type: ignore[override]
        self._streams.before_stderr()
        return super().write(data)


def _make_text_stream(old: Any, raw: io.FileIO) -> io.TextIOWrapper:
    """Return a text stream over ``raw`` with the old stream's encoding and the settings of a rank's streams."""
    # PYTHONUNBUFFERED makes Python's streams unbuffered.
    unbuffered = isinstance(getattr(old, "buffer", None), io.RawIOBase)
    raw.name = getattr(old, "name", "")
    buffer: Any = raw if unbuffered else io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        buffer,
        encoding=getattr(old, "encoding", "utf-8"),
        errors="backslashreplace",
        newline="\n",
        line_buffering=True,
        write_through=unbuffered,
    )
    stream.mode = "w"  # type: ignore[misc]
    return stream
