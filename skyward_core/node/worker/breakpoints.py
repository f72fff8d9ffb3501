"""What ``breakpoint()`` and ``pdb.set_trace()`` mean in a rank, whose standard input is empty: pdb would read its end,
and end the rank. Loaded when somebody imports pdb.

A rank may wait there for somebody: it listens on a socket in its node's folder, to which the agent connects. Whoever
comes has that connection for as long as the call runs, or until they leave.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from skyward_core.runtime.instance_info import VARIABLE, InstanceInfo, instance_info, set_phase

# A rank has no pathlib.
# ruff: noqa: PTH108, PTH109


NO_DEBUGGER_AFTER = 10.0  # seconds after which a rank says that nobody has come

_reported: set[tuple[str, str, int]] = set()  # run, file and line, where nobody came, and of which the log has a line
_stdin = sys.__stdin__  # what is sys.stdin now may be in its place already
_ended_runs: set[str] = set()  # runs whose debugging somebody has ended: none waits there any more
_debuggers: dict[int, Any] = {}  # debuggers with a person there, by thread
_accept_lock = threading.Lock()  # one socket for all threads
_rank_pid = 0


def patch_pdb(pdb: Any, wait: float, path: str, process: int) -> None:
    """Put ours in the place of pdb's functions; who has put a file in the place of standard input has pdb's.

    Args:
        pdb: the module, as soon as it is imported.
        wait: seconds that a rank waits for somebody who debugs it.
        path: where it listens meanwhile.
        process: number of the rank's process: a child that it forks may be the first that needs pdb.
    """
    global _rank_pid
    _rank_pid = process
    set_trace, post_mortem = getattr(pdb, "set_trace", None), getattr(pdb, "post_mortem", None)
    if set_trace is None or post_mortem is None or not isinstance(getattr(pdb, "Pdb", None), type):
        return  # another module of that name
    of_plain = pdb.Pdb.set_trace

    def debugger(at: FrameType, line: int, does: str) -> Any:
        """One with a person there; None where nobody comes."""
        place = _Breakpoint(at, line, does)
        wanted = wait if os.getpid() == _rank_pid else 0.0
        found = _debuggers.get(threading.get_ident()) if wanted else None
        if found is not None:
            if found.is_there():
                return found
            found.leave()
        if place.key in _reported or place.run in _ended_runs:
            return None
        connection = _accept_debugger(path, wanted, place) if wanted else None
        if connection is None:
            _reported.add(place.key)
            if wanted:
                set_phase("running")
            place.report_continuing(wanted)
            return None
        found = _debuggers[threading.get_ident()] = _make_debugger_class(pdb)(connection)
        return found

    def at_line(**given: Any) -> None:
        """Stop here; with a ``header`` that is said first."""
        at = sys._getframe(1)
        own = debugger(at, at.f_lineno, "comes to a breakpoint at") if _has_no_input(sys.stdin) else pdb.Pdb()
        if own is not None:
            if (header := given.pop("header", None)) is not None:
                own.message(header)
            own.set_trace(at, **given)

    def at_error(*given: Any) -> None:
        """Stop where an exception was raised, the one that is being handled unless one, or its traceback, is given."""
        if not _has_no_input(sys.stdin):
            post_mortem(*given)
            return
        error: Any = given[0] if given else sys.exc_info()[1]
        whole: TracebackType | None = getattr(error, "__traceback__", error)
        if whole is None:
            raise ValueError("A valid traceback must be passed if no exception is being handled")
        trace = whole
        while trace.tb_next is not None:
            trace = trace.tb_next
        own = debugger(trace.tb_frame, trace.tb_lineno, "looks at an exception of")
        if own is not None:
            own.reset()
            own.interaction(None, whole)

    def of_object(self: Any, *given: Any, **named: Any) -> None:
        """Code has made a debugger of its own, as ``torch.distributed.breakpoint()`` does: it would read nothing."""
        at: FrameType = (*given, named.pop("frame", None))[0] or sys._getframe(1)
        if not _has_no_input(self.stdin):
            of_plain(self, at, **named)
            return
        # Of torch.distributed.breakpoint() the line that calls it is the place.
        place = (at.f_globals.get("__name__") == "torch.distributed" and at.f_back) or at
        if (own := debugger(place, place.f_lineno, "comes to a breakpoint at")) is not None:
            own.set_trace(at, **named)

    pdb.set_trace, pdb.post_mortem, pdb.Pdb.set_trace = at_line, at_error, of_object


def end_debugging() -> None:
    """The call is at its end: nobody steps into what comes after it."""
    found = _debuggers.get(threading.get_ident())
    if found is not None and os.getpid() == _rank_pid:  # a child has its parent's connection
        sys.settrace(None)  # first: who steps would come into what follows
        found.set_continue()
        found.leave()


def _has_no_input(file: Any) -> bool:
    """Whether a debugger that reads a file would read its end at once: what each rank has as standard input, and
    multiprocessing gives its children."""
    if file is None or getattr(file, "closed", False):
        return True
    try:
        found, null = os.fstat(file.fileno()), os.stat(os.devnull)
    except (OSError, ValueError, AttributeError):  # no file of the system, or that is closed
        return file is _stdin
    return found.st_rdev == null.st_rdev and found.st_ino == null.st_ino


def pool_rank(info: InstanceInfo) -> int:
    """What a rank is called outside its gang, which may be of some of the pool's nodes only."""
    with suppress(ValueError, TypeError, KeyError, IndexError):  # the variable may be anybody's by now
        place = json.loads(os.environ[VARIABLE])
        if "pool_rank" in place:  # during a task
            return int(place["pool_rank"])
        return int(place["members"][info.node]) * info.ranks_per_node + info.local_rank
    return info.rank


class _Breakpoint:
    """Where a rank stops, or would."""

    def __init__(self, at: FrameType, line: int, does: str) -> None:
        info = instance_info()
        file = at.f_code.co_filename
        self.key = (info.run, file, line)
        self.run, self.rank = info.run, pool_rank(info)
        self._does = does
        self._words = f"{file.removeprefix(os.getcwd() + '/')}:{line} in {at.f_code.co_name}()"

    def wait(self, seconds: float) -> None:
        _print_message(
            f"rank {self.rank} {self._does} {self._words} and waits up to {seconds:g} s for somebody: "
            f"debug {self.run}:{self.rank}"
        )

    def report_waiting(self, waited: float, left: float) -> None:
        _print_message(
            f"rank {self.rank} has waited for {waited:g} s at {self._words}, and nobody has come; it goes on in "
            f"{left:g} s: debug {self.run}:{self.rank}"
        )

    def report_continuing(self, waited: float) -> None:
        if waited:
            _print_message(f"nobody came within {waited:g} s to debug rank {self.rank} at {self._words}: it goes on")
        else:
            _print_message(
                f'rank {self.rank} {self._does} {self._words} and goes on: with sky.Options(debug_wait="10m"), or '
                "run --debug-wait 10m, it waits for somebody who debugs it"
            )


def _print_message(what: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # the disk is full, or code has closed it
        sys.stderr.write(f"skyward: {what}\n")
        sys.stderr.flush()


def _accept_debugger(path: str, wait: float, place: _Breakpoint) -> Any:
    """The connection of somebody who comes within that time, or None."""
    import socket

    if not _accept_lock.acquire(timeout=min(wait, threading.TIMEOUT_MAX)):
        return None
    folder, _, name = path.rpartition("/")
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # a socket's path may hold about 100 bytes
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)
            with socket.socket(socket.AF_UNIX) as listener:
                os.fchmod(listener.fileno(), 0o600)
                listener.bind(f"/proc/self/fd/{at}/{name}")
                try:
                    listener.listen(1)
                    set_phase("paused")
                    place.wait(wait)
                    connection = _accept_first(listener, wait, place)
                finally:
                    os.unlink(path)
                connection.settimeout(None)
                return connection
        finally:
            os.close(at)
    except OSError as error:
        if not isinstance(error, TimeoutError):
            _print_message(f"rank {place.rank} cannot wait for somebody who debugs it: {error}")
        return None
    finally:
        _accept_lock.release()


def _accept_first(listener: Any, wait: float, place: _Breakpoint) -> Any:
    """The first who comes; that nobody has so far is said once.

    Raises:
        TimeoutError: nobody has.
    """
    if wait > NO_DEBUGGER_AFTER:
        listener.settimeout(NO_DEBUGGER_AFTER)
        try:
            return listener.accept()[0]
        except TimeoutError:
            place.report_waiting(NO_DEBUGGER_AFTER, wait - NO_DEBUGGER_AFTER)
            wait -= NO_DEBUGGER_AFTER
    listener.settimeout(wait)
    return listener.accept()[0]


class _DebuggerInput:
    """What a person types, line by line."""

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
        """Whether there is something to read, or may be."""
        import socket

        try:
            return bool(self._typed or self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False


class _DebuggerOutput:
    """What a debugger prints; whoever has left misses nothing."""

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
    """The class of debuggers whose terminal is a connection."""

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
            """The rank stands still, and then goes on: to the next line, or breakpoint, or for good."""
            if os.getpid() != _rank_pid:  # a child that was forked on the way: what is typed is its parent's
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
            with suppress(OSError):  # children that were forked have it, too
                self._connection.shutdown(2)
            self._connection.close()

        def do_EOF(self, arg: str) -> int:
            """The person leaves, and the rank goes on: it does not end by it."""
            self.clear_all_breaks()
            self.set_continue()
            self.leave()
            return 1

        def do_continue(self, arg: str) -> int:
            """The rank goes on to its next breakpoint."""
            self.set_continue()
            return 1

        def do_quit(self, arg: str) -> int:
            """The person has seen enough: the rank goes on, and waits nowhere any more during this run."""
            _ended_runs.add(instance_info().run)
            return self.do_EOF(arg)

        do_c = do_cont = do_continue
        do_q = do_exit = do_quit

        def do_run(self, arg: str) -> None:
            self.error("a rank cannot be run anew from here")

        do_restart = do_run

    return Debugger
