"""Worker processes: spawning, signalling, reaping, and recovery of orphans."""

from __future__ import annotations

import _ctypes
import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.bootstrap.host_inspection import NODE_VARIABLE, distrust_reason
from skyward_core.protocol.node_paths import WORKER_PREFIX

if TYPE_CHECKING:
    from typing import Any, TypeVar

    from skyward_core.protocol.frame_types import EndDetails, ExitStatus

    T = TypeVar("T")

LIMITS = {
    errno.EMFILE: "open files (ulimit -n, or LimitNOFILE= of its service)",
    errno.ENFILE: "open files (sysctl fs.file-max)",
    errno.EAGAIN: "processes (ulimit -u, or TasksMax= of its service)",
}
NO_THREAD = "can't start new thread"  # Python's message if the system refuses to start a thread


def describe_shortage(error: BaseException, place: str = "the node") -> str:
    """Return an error's text. If a limit of this machine causes the error, add which limit the user must raise."""
    number = errno.EAGAIN if NO_THREAD in str(error) else getattr(error, "errno", 0)
    limit = LIMITS.get(number)
    return f"{os.strerror(number)}. Raise the limit of {limit} on {place}" if limit else str(error)


async def run_in_thread(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a function in a thread.

    Raises:
        OSError: If no thread can be started. The message names the limit.
    """
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except RuntimeError as error:
        if NO_THREAD not in str(error):
            raise
        raise OSError(describe_shortage(error)) from error


ON_SIGTERM = 128 + signal.SIGTERM  # exit status of a program that SIGTERM ended, by shell convention


class Process:
    """A worker process. ``epoch`` is the gang epoch it was set up for; None if it is fresh."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.started_at = time.monotonic()
        self.failure = ""  # reason why the agent cannot use the process, or ""
        self.stderr_start = 0  # offset in the standard error file at which the output of this process begins
        self.connection: Connection | None = None
        self.epoch: int | None = None
        self.has_place = False  # whether the process has received its rank and its gang
        self.is_ready = False  # whether the process has entered the plugins' contexts, or failed to
        self.kill_reason = ""  # reason for which the agent stopped the process, or ""
        self.is_script = False  # whether the process runs a whole script, which may exit at any time
        self.handles_sigterm = False  # whether user code has installed a handler of SIGTERM
        # node of the notice because of which the process got SIGTERM; CANCELLED_NODE or less for a cancelled run
        self.saves_for: int | None = None
        self.saves_until = 0.0  # deadline of this notice, by the monotonic clock
        self.is_unusable = False  # whether plugins' contexts failed and a call has reported the failure

    def exited_successfully(self, status: int | None) -> bool:
        """Check whether a script exited with status 0 but sent no outcome, through ``os._exit(0)`` or ``os.execv``."""
        return self.is_script and status == 0 and not self.kill_reason


def ended_by_sigterm(status: int | None) -> bool:
    """Check whether a process ended because of SIGTERM, or exited after handling it."""
    return status is not None and os.waitstatus_to_exitcode(status) in (0, -signal.SIGTERM, ON_SIGTERM)


def describe_exit(status: int | None) -> tuple[ExitStatus, str]:
    """Return exit code and signal of a process from its wait status, and a description for the user."""
    if status is None:
        words = "its process ended while no agent was running, so the cause is unknown"
        return {"exit_code": None, "signal": None}, words
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


def external_sigterm_details() -> EndDetails:
    """Return error and kind for the outcome of a call whose worker got SIGTERM from another program."""
    fields, message = describe_exit(signal.SIGTERM)
    return {**fields, "kind": "exited", "error": {"type": "RankExit", "message": message}}


_PR_SET_CHILD_SUBREAPER = 36


def become_reaper() -> bool:
    """Make this process the parent of orphaned descendants. Return whether the system supports it."""
    if not sys.platform.startswith("linux"):
        return False
    args = (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if not hasattr(_ctypes, "call_function"):
        # ``call_function`` is a private function of CPython, which may be missing.
        import ctypes

        return bool(ctypes.CDLL(None).prctl(*args) == 0)
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    return bool(_ctypes.call_function(prctl, args) == 0)


EXIT_POLL = 0.1  # seconds between checks of a process that is not a child, on systems without pidfd


def lower_priority(pid: int, nice: int) -> None:
    """Lower the priority of a process that leads its own session.

    Linux shares the processor between sessions first (autogroups), so the session's priority is lowered, too.
    """
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    autogroup = Path(f"/proc/{pid}/autogroup")
    if autogroup.exists():
        try:
            autogroup.write_text(str(nice))
        except OSError:
            return  # Best effort: the kernel rejects frequent changes.


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the process group of ``pid`` if it exists.

    A process of the group may run as another user (sudo, a setuid program). All other processes still get the signal.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def signal_process(pid: int, number: int) -> None:
    """Send a signal to a process if it exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def process_start_time(pid: int) -> str:
    """Return the start time of a process in kernel format; "" if it does not exist or has been reaped.

    Pid and start time together identify a process uniquely. Without ``/proc``, return the time that ``ps`` prints.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "" if has_proc() else _start_time_by_ps(pid)
    state, *rest = text.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def has_proc() -> bool:
    """Check whether the system describes processes in ``/proc``, which macOS does not."""
    return Path("/proc/self/stat").exists()


def _start_time_by_ps(pid: int) -> str:
    command = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
    # Fix locale and time zone, because the start time is compared as text.
    env = os.environ | {"LC_ALL": "C", "TZ": "UTC"}
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, check=False).stdout
    state, *when = output.decode(errors="replace").split() or ["Z"]
    return "" if state[0] in "ZX" else " ".join(when)


def processor_seconds(pid: int) -> float:
    """Return the processor seconds of a process and its children, including reaped ones; 0 if unknown."""
    ticks = 0
    for each in (pid, *_children(pid)):
        try:
            text = Path(f"/proc/{each}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # user and system time, of each process and of its reaped children
        ticks += sum(map(int, text.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return []


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def reap() -> dict[int, int]:
    """Reap all ended children without waiting. Return pid -> wait status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


# Code that starts a worker. Garbage collection is off during the imports, because imported modules live as long as the
# process. Lazy stand-ins replace modules that cloudpickle imports but rarely uses, which saves a quarter of the time.
# User code loads later and gets the real modules. (importlib's LazyLoader would load them at the next import.)
# The script's folder becomes the first entry of sys.path only at the end, so that its modules can shadow others for
# user code, but not for this code. The working folder ("") is not an entry, because other users may be able to write to
# it. Paths are literals, because a folder name may contain any separator.
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
from skyward_core.runtime.import_hooks_gc_pause_and_alias import unload_shadowed_modules
import cloudpickle
for module in put_off:
    module.forget()
unload_shadowed_modules(before)
sys.path[:] = dict.fromkeys(before + bundle + own + path)
gc.freeze()
collects and gc.enable()
main(*rest)
"""


# Settings of the GNU C library. By default the library returns freed memory to the system and maps it again in the next
# training step, which takes three times as long (measured with 25 MB). With these limits the library retains freed
# memory. If the user sets one of these variables, the agent sets none of them.
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
    """Start a Python interpreter in its own session and process group. Return its pid."""
    # module: module in ``node.worker`` whose ``main`` runs
    # place: rank and slot, or PLUGIN_CONTEXT_PLACE; ends the command line, and names the file that records the pid
    # out, err: descriptors for output
    # env: variables in addition to those of the config
    # keeps: descriptors to inherit, such as locks
    path = [*config.path, *([config.cwd] if config.cwd and not distrust_reason(config.cwd) else [])]
    paths = [[*filter(None, each)] for each in ([config.bundle], config.path_before, path)]
    boot = BOOT.format(module=module, paths=paths)
    given = os.environ | config.env
    more = {} if MALLOC.keys() & given.keys() else MALLOC
    process = subprocess.Popen(
        [config.python, "-c", boot, config.worker_socket, config.folder, *map(str, place)],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        cwd=config.cwd or config.folder,
        env=given | more | {"SKYWARD_PATIENCE": str(config.idle_timeout)} | dict(env) | node_mark_env(config.folder),
        start_new_session=True,
        pass_fds=keeps,
        umask=config.umask,
    )
    if config.file_limit and sys.platform.startswith("linux"):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with suppress(OSError):  # The process has already ended, so it has no limits to set.
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (config.file_limit, hard))
    if config.nice:
        lower_priority(process.pid, config.nice)
    # The agent reaps all child processes itself. If subprocess also waited for this one, exit codes could be lost.
    process.returncode = 0
    # Save the pid for later agents, which cannot find it by command line: forked children have the same command line.
    # If the disk is full, a later agent starts a new worker.
    with suppress(OSError), open(config.paths.worker(*place), "w", encoding="utf-8") as file:
        file.write(f"{process.pid} {process_start_time(process.pid)}")
    return process.pid


def spawn_monitor(
    config: AgentConfig, code: str, *arguments: str, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """Start Python code that runs until its standard input closes, in its own session, without site packages."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        cwd="/",
        env=os.environ | config.env | node_mark_env(config.folder),
        start_new_session=True,
    )
    process.returncode = 0  # The agent reaps all child processes itself, so subprocess must not wait for this one.
    return process


def node_mark_env(folder: str) -> dict[str, str]:
    """Return the environment variable that marks all descendants of a node's workers.

    In a node that runs inside another node, the variable names both nodes.
    """
    return {NODE_VARIABLE: ":".join(filter(None, (os.environ.get(NODE_VARIABLE), folder)))}


def find_orphaned_workers(config: AgentConfig) -> dict[tuple[int, int], int]:
    """Return the running workers that an earlier agent started: place -> pid."""
    found = {}
    for path in Path(config.folder).glob(f"{WORKER_PREFIX}*"):
        _, rank, number = path.name.split(".")
        if pid := recorded_worker(path):
            found[int(rank), int(number)] = pid
    return found


def recorded_worker(record: Path) -> int:
    """Return a worker's pid from the file that records it; 0 if the worker has ended, even if its pid is reused."""
    pid, _, when = record.read_text(encoding="utf-8").partition(" ")
    # An empty file means that the agent died after it started the worker and before it wrote the pid. The new agent
    # rejects this worker when the worker connects.
    return int(pid) if when and process_start_time(int(pid)) == when else 0


def call_on_exit(pid: int, then: Callable[[], None]) -> None:
    """Call ``then`` when a process that is not a child of this one has ended. The exit status is unknown."""
    loop = asyncio.get_running_loop()
    if not hasattr(os, "pidfd_open"):  # Only Linux has pidfd_open().
        _poll_for_exit(loop, pid, then)
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_soon(then)
        return

    def on_exit() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        then()

    loop.add_reader(descriptor, on_exit)


def _poll_for_exit(loop: asyncio.AbstractEventLoop, pid: int, then: Callable[[], None]) -> None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        loop.call_soon(then)
    else:
        loop.call_later(EXIT_POLL, _poll_for_exit, loop, pid, then)


def add_signal_handlers(actions: Mapping[int, Callable[[], object]]) -> None:
    """Register a handler function for each signal with the running event loop.

    The loop's own ``add_signal_handler`` imports ``inspect``, which takes longer than the rest of the agent's start.
    """
    readable, writable = os.pipe()
    for end in (readable, writable):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in actions:
        # The wake-up descriptor reports the signal, but requires that a handler exists.
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)

    def dispatch() -> None:
        for number in set(os.read(readable, 1 << 16)) & actions.keys():
            actions[number]()

    asyncio.get_running_loop().add_reader(readable, dispatch)
