"""Replacement of ``breakpoint()`` and ``pdb`` in ranks. A worker loads this module when user code imports pdb.

The standard input of a rank is empty, so plain pdb would end the rank. Instead the rank listens on a socket in its
node's folder, and the agent connects the user's debugger to this socket. The connection lasts until the call ends or
the user disconnects.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from skyward_core.runtime.instance_info_and_attempt import VARIABLE, InstanceInfo, instance_info, set_phase

# Workers do not import pathlib.
# ruff: noqa: PTH108, PTH109


NO_DEBUGGER_AFTER = 10.0  # seconds at a breakpoint after which a rank logs that no debugger has connected

# breakpoints (run, file, line) for which the missing debugger was already logged
_reported: set[tuple[str, str, int]] = set()
_stdin = sys.__stdin__  # the original standard input, because user code may replace sys.stdin
_ended_runs: set[str] = set()  # runs whose debugging was ended with "quit"
_debuggers: dict[int, Any] = {}  # thread id -> debugger that is connected to the thread
# held by the thread that accepts a debugger's connection, because all threads share one socket
_accept_lock = threading.Lock()
_rank_pid = 0


def patch_pdb(pdb: Any, wait: float, path: str, process: int) -> None:
    """Replace the functions of pdb. If user code has replaced standard input, plain pdb is used.

    Args:
        pdb: The imported module.
        wait: Seconds to wait for a debugger.
        path: Path of the socket to listen at.
        process: Pid of the rank's process. Forked children do not wait for a debugger.
    """
    global _rank_pid
    _rank_pid = process
    set_trace, post_mortem = getattr(pdb, "set_trace", None), getattr(pdb, "post_mortem", None)
    if set_trace is None or post_mortem is None or not isinstance(getattr(pdb, "Pdb", None), type):
        return  # The module is not Python's pdb, but a user's module of the same name.
    plain_set_trace = pdb.Pdb.set_trace

    def debugger(frame: FrameType, line: int, action: str) -> Any:
        """Return a connected debugger, or None if none connects."""
        breakpoint_ = _Breakpoint(frame, line, action)
        timeout = wait if os.getpid() == _rank_pid else 0.0
        found = _debuggers.get(threading.get_ident()) if timeout else None
        if found is not None:
            if found.is_there():
                return found
            found.leave()
        if breakpoint_.key in _reported or breakpoint_.run in _ended_runs:
            return None
        connection = _accept_debugger(path, timeout, breakpoint_) if timeout else None
        if connection is None:
            _reported.add(breakpoint_.key)
            if timeout:
                set_phase("running")
            breakpoint_.report_continuing(timeout)
            return None
        found = _debuggers[threading.get_ident()] = _make_debugger_class(pdb)(connection)
        return found

    def set_trace_at_line(**args: Any) -> None:
        """Replacement of ``pdb.set_trace``. Prints the optional ``header`` first."""
        frame = sys._getframe(1)
        own = debugger(frame, frame.f_lineno, "reached a breakpoint at") if _has_no_input(sys.stdin) else pdb.Pdb()
        if own is not None:
            if (header := args.pop("header", None)) is not None:
                own.message(header)
            own.set_trace(frame, **args)

    def post_mortem_at_error(*args: Any) -> None:
        """Replacement of ``pdb.post_mortem``. Stops at a given exception or traceback, or at the handled exception."""
        if not _has_no_input(sys.stdin):
            post_mortem(*args)
            return
        error: Any = args[0] if args else sys.exc_info()[1]
        whole: TracebackType | None = getattr(error, "__traceback__", error)
        if whole is None:
            raise ValueError("A valid traceback must be passed if no exception is being handled")
        trace = whole
        while trace.tb_next is not None:
            trace = trace.tb_next
        own = debugger(trace.tb_frame, trace.tb_lineno, "stopped at an exception in")
        if own is not None:
            own.reset()
            own.interaction(None, whole)

    def set_trace_of_object(self: Any, *args: Any, **named: Any) -> None:
        """Replacement of ``Pdb.set_trace``, for code that creates its own debugger, such as
        ``torch.distributed.breakpoint()``."""
        frame: FrameType = (*args, named.pop("frame", None))[0] or sys._getframe(1)
        if not _has_no_input(self.stdin):
            plain_set_trace(self, frame, **named)
            return
        # For torch.distributed.breakpoint() report the location of its caller.
        breakpoint_ = (frame.f_globals.get("__name__") == "torch.distributed" and frame.f_back) or frame
        if (own := debugger(breakpoint_, breakpoint_.f_lineno, "reached a breakpoint at")) is not None:
            own.set_trace(frame, **named)

    pdb.set_trace, pdb.post_mortem, pdb.Pdb.set_trace = set_trace_at_line, post_mortem_at_error, set_trace_of_object


def end_debugging() -> None:
    """Disconnect the user's debugger at the end of a call."""
    found = _debuggers.get(threading.get_ident())
    # A forked child shares the connection of its parent and must not end it.
    if found is not None and os.getpid() == _rank_pid:
        sys.settrace(None)  # Stop tracing first. Otherwise the debugger would step through the following statements.
        found.set_continue()
        found.leave()


def _has_no_input(file: Any) -> bool:
    """Check whether a file is /dev/null, as the standard input of ranks and of multiprocessing's children is."""
    if file is None or getattr(file, "closed", False):
        return True
    try:
        found, null = os.fstat(file.fileno()), os.stat(os.devnull)
    except (OSError, ValueError, AttributeError):  # ``file`` is closed, or is not a real file.
        return file is _stdin
    return found.st_rdev == null.st_rdev and found.st_ino == null.st_ino


def pool_rank(info: InstanceInfo) -> int:
    """Return the rank's number among all ranks of the pool, which differs if the gang has only some of the nodes."""
    with suppress(ValueError, TypeError, KeyError, IndexError):
        # User code may have set the environment variable to invalid text.
        place = json.loads(os.environ[VARIABLE])
        if "pool_rank" in place:  # In a task, the variable has the rank's number in the pool.
            return int(place["pool_rank"])
        return int(place["members"][info.node]) * info.ranks_per_node + info.local_rank
    return info.rank


class _Breakpoint:
    """Breakpoint at which a rank waits for a debugger."""

    def __init__(self, frame: FrameType, line: int, action: str) -> None:
        info = instance_info()
        file = frame.f_code.co_filename
        self.key = (info.run, file, line)
        self.run, self.rank = info.run, pool_rank(info)
        self._action = action
        self._location = f"{file.removeprefix(os.getcwd() + '/')}:{line} in {frame.f_code.co_name}()"

    def wait(self, seconds: float) -> None:
        _print_message(
            f"rank {self.rank} {self._action} {self._location} and waits up to {seconds:g} s for a debugger. "
            f"Attach with: skyward-tui debug {self.run}:{self.rank}"
        )

    def report_waiting(self, waited: float, remaining: float) -> None:
        _print_message(
            f"rank {self.rank} has waited {waited:g} s for a debugger at {self._location} and continues in "
            f"{remaining:g} s. Attach with: skyward-tui debug {self.run}:{self.rank}"
        )

    def report_continuing(self, waited: float) -> None:
        if waited:
            _print_message(
                f"no debugger attached to rank {self.rank} at {self._location} within {waited:g} s; the rank continues"
            )
        else:
            _print_message(
                f"rank {self.rank} {self._action} {self._location} and continues. To make it wait for a debugger, set "
                'sky.Options(debug_wait="10m") or run --debug-wait 10m.'
            )


def _print_message(message: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # The disk is full, or user code has closed the stream.
        sys.stderr.write(f"skyward: {message}\n")
        sys.stderr.flush()


def _accept_debugger(path: str, wait: float, breakpoint_: _Breakpoint) -> Any:
    """Return the connection of a debugger that attaches in time, or None."""
    import socket

    if not _accept_lock.acquire(timeout=min(wait, threading.TIMEOUT_MAX)):
        return None
    folder, _, name = path.rpartition("/")
    try:
        # Bind through the folder's descriptor, because socket paths are limited to about 100 bytes.
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)
            with socket.socket(socket.AF_UNIX) as listener:
                os.fchmod(listener.fileno(), 0o600)
                listener.bind(f"/proc/self/fd/{at}/{name}")
                try:
                    listener.listen(1)
                    set_phase("paused")
                    breakpoint_.wait(wait)
                    connection = _accept_first(listener, wait, breakpoint_)
                finally:
                    os.unlink(path)
                connection.settimeout(None)
                return connection
        finally:
            os.close(at)
    except OSError as error:
        if not isinstance(error, TimeoutError):
            _print_message(f"rank {breakpoint_.rank} cannot wait for a debugger: {error}")
        return None
    finally:
        _accept_lock.release()


def _accept_first(listener: Any, wait: float, breakpoint_: _Breakpoint) -> Any:
    """Return the first connection of a debugger. If none connects for a while, log a message once.

    Raises:
        TimeoutError: If no debugger connects in time.
    """
    if wait > NO_DEBUGGER_AFTER:
        listener.settimeout(NO_DEBUGGER_AFTER)
        try:
            return listener.accept()[0]
        except TimeoutError:
            breakpoint_.report_waiting(NO_DEBUGGER_AFTER, wait - NO_DEBUGGER_AFTER)
            wait -= NO_DEBUGGER_AFTER
    listener.settimeout(wait)
    return listener.accept()[0]


class _DebuggerInput:
    """The debugger's input: lines that the user types, received over a connection."""

    encoding = "utf-8"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._typed = b""

    def readline(self) -> str:
        while b"\n" not in self._typed:
            try:
                data = self._connection.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            self._typed += data
        line, newline, self._typed = self._typed.partition(b"\n")
        return (line + newline).decode(errors="replace")

    def is_open(self) -> bool:
        """Check whether the connection is open or has unread input."""
        import socket

        try:
            return bool(self._typed or self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False


class _DebuggerOutput:
    """The debugger's output, sent to the user. Errors are ignored after the user has disconnected."""

    encoding = "utf-8"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._connection.sendall(text.encode(errors="replace"))
        return len(text)

    def flush(self) -> None:
        pass


def _make_debugger_class(pdb: Any) -> Any:
    """Return a debugger class that reads its input from a connection and writes its output there."""

    class Debugger(pdb.Pdb):  # type: ignore[misc]
        def __init__(self, connection: Any) -> None:
            self._connection, self._typed = connection, _DebuggerInput(connection)
            super().__init__(
                stdin=self._typed,
                stdout=_DebuggerOutput(connection),
                skip=["skyward_core.*"],
                nosigint=True,
                readrc=False,
            )

        def interaction(self, *given: Any, **named: Any) -> None:
            """Pause the rank until the user continues."""
            if os.getpid() != _rank_pid:
                # A forked child does not pause, because only its parent may read the debugger's input.
                self.clear_all_breaks()
                self.set_continue()
                return
            set_phase("paused")
            super().interaction(*given, **named)
            set_phase("running")

        def is_there(self) -> bool:
            return self._typed.is_open()

        def leave(self) -> None:
            set_phase("running")
            _debuggers.pop(threading.get_ident(), None)
            # Shut the socket down, because close() alone does not end the connection while forked children share the
            # socket.
            with suppress(OSError):
                self._connection.shutdown(2)
            self._connection.close()

        def do_EOF(self, arg: str) -> int:
            """Disconnect the debugger at the end of its input, and let the rank continue."""
            self.clear_all_breaks()
            self.set_continue()
            self.leave()
            return 1

        def do_continue(self, arg: str) -> int:
            """Continue to the next breakpoint."""
            self.set_continue()
            return 1

        def do_quit(self, arg: str) -> int:
            """Continue, and ignore all further breakpoints of this run."""
            _ended_runs.add(instance_info().run)
            return self.do_EOF(arg)

        do_c = do_cont = do_continue
        do_q = do_exit = do_quit

        def do_run(self, arg: str) -> None:
            self.error("cannot restart a rank from the debugger")

        do_restart = do_run

    return Debugger
