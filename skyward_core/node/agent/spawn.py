"""Starting the interpreters in which user code runs, and learning of the end of those that others started."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...wire.node_paths import WORKER
from ..boot.host import MARK, doubt
from .config import AgentConfig
from .processes import give_way, started

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
    # module: the one in :mod:`..worker` whose ``main`` it runs
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
        env=given | kept | {"SKYWARD_PATIENCE": str(config.idle_timeout)} | dict(env) | mark(config.folder),
        start_new_session=True,
        pass_fds=keeps,
        umask=config.umask,
    )
    if config.nice:
        give_way(process.pid, config.nice)
    # The agent collects every child itself; a Popen that did so too would swallow exit codes.
    process.returncode = 0
    _note(config, place, process.pid)
    return process.pid


def _is_private(folder: str) -> bool:
    return bool(folder) and not doubt(folder)


def mark(folder: str) -> dict[str, str]:
    """What all that a worker starts inherits. A node whose client runs in a rank of another has the marks of both."""
    return {MARK: ":".join(filter(None, (os.environ.get(MARK), folder)))}


def _note(config: AgentConfig, place: tuple[int, int], pid: int) -> None:
    """Write down which process was started, for an agent that comes later: what it forks looks like it."""
    rank, number = place
    # Without room on the disk that agent will start another.
    with suppress(OSError), open(config.paths.worker(rank, number), "w", encoding="utf-8") as file:
        file.write(f"{pid} {started(pid)}")


def left_behind(config: AgentConfig) -> dict[tuple[int, int], int]:
    """Processes that an agent before this one has started and that still run: place -> pid."""
    found = {}
    for path in Path(config.folder).glob(f"{WORKER}*"):
        _, rank, number = path.name.split(".")
        pid, _, when = path.read_text(encoding="utf-8").partition(" ")
        # One of which nothing was written is sent away when it greets.
        if when and started(int(pid)) == when:
            found[int(rank), int(number)] = int(pid)
    return found


def when_ended(pid: int, then: Callable[[], None]) -> None:
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
