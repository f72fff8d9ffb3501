"""Worker processes: spawn, signal, reap."""

from __future__ import annotations

import _ctypes
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connection import Connection
from skyward_core.node.bootstrap.host_inspection import NODE_VARIABLE, distrust_reason
from skyward_core.protocol.node_paths import WORKER_PREFIX

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import EndDetails, ExitStatus


ON_SIGTERM = 128 + signal.SIGTERM  # exit status of a program that ends by it, as shells have it


class Process:
    """One worker process. ``epoch`` is the gang epoch it was set up for, None while it is fresh."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.stderr_start = 0  # where in the file of standard error its own lines begin
        self.connection: Connection | None = None
        self.epoch: int | None = None
        self.has_run_code = False  # it may have run user code
        self.has_place = False  # it knows which rank it is
        self.is_ready = False  # its plugins' contexts are entered (or failed to be)
        self.kill_reason = ""  # why we ended it, when we did
        self.is_script = False  # a whole script's, which may end it as it likes
        self.is_unusable = False  # its plugins' contexts could not be entered, and a call has told so

    def exited_successfully(self, status: int | None) -> bool:
        """Whether a script has come to its end in it, by a way that tells nobody: ``os._exit(0)``, or in a program that
        it has made of itself by ``os.execv``."""
        return self.is_script and status == 0 and not self.kill_reason


def ended_by_sigterm(status: int | None) -> bool:
    """Whether a process has ended by SIGTERM, or as those end that have dealt with one."""
    if status is None:
        return False
    return os.waitstatus_to_exitcode(status) in (0, -signal.SIGTERM, ON_SIGTERM)


def describe_exit(status: int | None) -> tuple[ExitStatus, str]:
    """A wait status as fields of an outcome and in words."""
    if status is None:
        return {
            "exit_code": None,
            "signal": None,
        }, "its process ended, and the agent that could say how had ended too"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        hint = " (the kernel does this when memory runs out; see dmesg)" if number == signal.SIGKILL else ""
        return {"exit_code": None, "signal": number}, f"its process was ended by {name}{hint}"
    code = os.waitstatus_to_exitcode(status)
    return {"exit_code": code, "signal": None}, f"its process exited with status {code}"


def worker_stopped_details(reason: str) -> EndDetails:
    """The part of an outcome that says that we stopped a call's worker for another reason than the call."""
    words = f"its worker was stopped: {reason}"
    return {"kind": "collateral", "error": {"type": "Stopped", "message": words}}


def external_sigterm_details() -> EndDetails:
    """The same for a SIGTERM that was not ours: somebody on the node sent it."""
    fields, words = describe_exit(signal.SIGTERM)
    return {**fields, "kind": "exited", "error": {"type": "RankExit", "message": words}}


_PR_SET_CHILD_SUBREAPER = 36


def become_reaper() -> bool:
    """Let orphans below this process become its children; says whether the system can."""
    if not sys.platform.startswith("linux"):
        return False
    asked = (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if not hasattr(_ctypes, "call_function"):  # it is nobody's promise
        import ctypes

        return bool(ctypes.CDLL(None).prctl(*asked) == 0)
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    return bool(_ctypes.call_function(prctl, asked) == 0)


def lower_priority(pid: int, nice: int) -> None:
    """Lower the priority of a process that leads a session of its own.

    Linux shares the processor between sessions first (autogroups), so that the session's weight counts too.
    """
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    autogroup = Path(f"/proc/{pid}/autogroup")
    if autogroup.exists():
        try:
            autogroup.write_text(str(nice))
        except OSError:
            return  # too many changes in a short time are refused; it is a courtesy, no more


def signal_group(pid: int, number: int) -> bool:
    """Send a signal to the process group that ``pid`` leads; False when nothing of it is left."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # A member changed its user (sudo, a setuid helper): the others have got the signal.
        return True
    return True


def signal_process(pid: int, number: int) -> None:
    """Send a signal to one process, where it is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def process_start_time(pid: int) -> str:
    """When a process that has not been reaped was started, in the kernel's words; with its pid it names a process for
    good. "" where there is none, or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def processor_seconds(pid: int) -> float:
    """What a process and its children have taken of the processor so far; 0 where nobody tells."""
    ticks = 0
    for each in (pid, *_children(pid)):
        try:
            text = Path(f"/proc/{each}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # Its own, and that of children that have ended.
        ticks += sum(map(int, text.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return []


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def reap() -> dict[int, int]:
    """Collect every ended child without waiting: pid -> wait status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


# What is imported first is here to stay: nobody looks for garbage among it, neither now nor later. Modules that it
# imports and never asks anything of, unless something goes wrong, are put off, and so are those of which it asks one or
# two things that are known here: a quarter of the time. User code, which comes later and was pickled by cloudpickle,
# finds the real ones. (importlib's LazyLoader loads at the next import.)
# What the script's folder has comes first only then: it may shadow what it likes for user code, but nothing of ours.
# "", the working folder, is no entry to begin with: it may be anybody's.
# Paths are literals of the code: the name of a folder may hold any separator.
BOOT = """
import gc, sys
collects = gc.isenabled()
gc.disable()
rest = sys.argv[1:]
sys.argv[:] = [""]
bundle, before, path = {paths!a}
own = list(filter(None, sys.path))
sys.path[:] = dict.fromkeys(bundle + own + path + before)

class PutOff(type(sys)):
    def __init__(self, name, **known):
        super().__init__(name)
        self.__dict__.update(known)
    def __getattr__(self, name):
        self.forget()
        return getattr(__import__(self.__name__), name)
    def forget(self):
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]

import opcode
put_off = [PutOff(name) for name in ("inspect", "traceback", "uuid")]
put_off += [PutOff("dis", HAVE_ARGUMENT=opcode.HAVE_ARGUMENT, EXTENDED_ARG=opcode.EXTENDED_ARG)]
put_off += [PutOff("platform", python_implementation=lambda: "PyPy" if "__pypy__" in sys.modules else "CPython")]
put_off = [module for module in put_off if module.__name__ not in sys.modules]
sys.modules.update((module.__name__, module) for module in put_off)
from skyward_core.node.worker.{module} import main
import cloudpickle
for module in put_off:
    module.forget()
sys.path[:] = dict.fromkeys(before + bundle + own + path)
gc.freeze()
collects and gc.enable()
main(*rest)
"""


# For the GNU C library, which else gives memory that a step has freed back to the system, to be mapped and cleared anew
# in the next one: making 25 MB takes three times as long then. So much is kept per process, at most, for what it makes
# next; blocks above the first number go back at once, as ever. Whoever sets one of these says all of it.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}


def spawn(
    config: AgentConfig,
    module: str,
    place: tuple[int, int],
    out: int,
    err: int,
    env: Mapping[str, str],
    keeps: Sequence[int] = (),
) -> int:
    """Start a fresh interpreter in a session and process group of its own; return its pid."""
    # module: the one in ``node.worker`` whose ``main`` it runs
    # place: two numbers that end its command line, and name the file by which an agent that comes later knows it
    # out, err: descriptors for what it prints
    # env: variables beside the image's
    # keeps: descriptors that it has, too, and does nothing with
    path = [*config.path, *filter(_is_private, (config.cwd,))]
    paths = [[*filter(None, each)] for each in ([config.bundle], config.path_before, path)]
    boot = BOOT.format(module=module, paths=paths)
    given = os.environ | config.env
    kept = {} if MALLOC.keys() & given.keys() else MALLOC
    process = subprocess.Popen(
        [config.python, "-c", boot, config.worker_socket, config.folder, *map(str, place)],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        cwd=config.cwd or config.folder,
        env=given | kept | {"SKYWARD_PATIENCE": str(config.idle_timeout)} | dict(env) | node_mark_env(config.folder),
        start_new_session=True,
        pass_fds=keeps,
        umask=config.umask,
    )
    if config.nice:
        lower_priority(process.pid, config.nice)
    # The agent collects every child itself; a Popen that did so too would swallow exit codes.
    process.returncode = 0
    _record_pid(config, place, process.pid)
    return process.pid


def _is_private(folder: str) -> bool:
    return bool(folder) and not distrust_reason(folder)


def node_mark_env(folder: str) -> dict[str, str]:
    """What all that a worker starts inherits. A node whose client runs in a rank of another has the marks of both."""
    return {NODE_VARIABLE: ":".join(filter(None, (os.environ.get(NODE_VARIABLE), folder)))}


def _record_pid(config: AgentConfig, place: tuple[int, int], pid: int) -> None:
    """Write down which process was started, for an agent that comes later: what it forks looks like it."""
    rank, number = place
    # Without room on the disk that agent will start another.
    with suppress(OSError), open(config.paths.worker(rank, number), "w", encoding="utf-8") as file:
        file.write(f"{pid} {process_start_time(pid)}")


def find_orphaned_workers(config: AgentConfig) -> dict[tuple[int, int], int]:
    """Processes that an agent before this one has started and that still run: place -> pid."""
    found = {}
    for path in Path(config.folder).glob(f"{WORKER_PREFIX}*"):
        _, rank, number = path.name.split(".")
        pid, _, when = path.read_text(encoding="utf-8").partition(" ")
        # One of which nothing was written is sent away when it greets.
        if when and process_start_time(int(pid)) == when:
            found[int(rank), int(number)] = int(pid)
    return found


def call_on_exit(pid: int, then: Callable[[], None]) -> None:
    """Call ``then`` once a process that is no child of ours has ended; how it ended cannot be known."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_soon(then)
        return

    def gone() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        then()

    loop.add_reader(descriptor, gone)


def add_signal_handlers(actions: Mapping[int, Callable[[], object]]) -> None:
    """Have the running loop call these from now on, each when its signal has come, however often that was.

    The loop's own ``add_signal_handler`` would load ``inspect`` to look at what it is given, which takes longer than
    all else that an agent does before it listens.
    """
    readable, writable = os.pipe()
    for end in (readable, writable):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in actions:
        signal.signal(number, _ignore_signal)
        signal.siginterrupt(number, False)

    def act() -> None:
        for number in set(os.read(readable, 1 << 16)) & actions.keys():
            actions[number]()

    asyncio.get_running_loop().add_reader(readable, act)


def _ignore_signal(*_: object) -> None:
    """Its number is in the pipe already; but without a handler there would be none."""
