"""What a process is like to the code in it: a script that looks at itself, in this process and in a rank.

`python plain_and_rank.py` prints what a plain run sees, as JSON; with `local` behind it, what a rank of this machine
sees. `test_plain_and_rank.py` compares the two, and holds the page docs/plain-and-rank.md to what differs.
"""

import asyncio
import atexit
import collections
import copy
import dataclasses
import enum
import faulthandler
import functools
import gc
import inspect
import io
import json
import linecache
import locale
import logging
import multiprocessing
import os
import pickle
import pickletools
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import typing
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import skyward_core as sky

T = typing.TypeVar("T")
UserId = typing.NewType("UserId", int)
Pair = collections.namedtuple("Pair", "a b")
COUNT = 0


@dataclasses.dataclass
class Cfg:
    width: int = 3
    name: "str | None" = None

    class Inner:
        pass


class Colour(enum.Enum):
    RED = 1


class Box(typing.Generic[T]):
    """Holds something."""

    def __init__(self, held: T) -> None:
        self.held = held

    def show(self) -> str:
        return f"Box of {self.held}"


class Wrong(Exception):
    pass


def square(x: int) -> int:
    return x * x  # of a number


def box_of(x: int) -> "Box[int]":
    return Box(x)


@functools.lru_cache
def cached(x: int) -> int:
    return square(x) + 1


def fails() -> None:
    raise Wrong("on purpose")  # the line that a traceback shows


def put(queue: typing.Any, cfg: Cfg) -> None:
    queue.put((Cfg(cfg.width + 1), square, __name__.strip("_")))


def by(method: str) -> list[typing.Any]:
    """What a child gives that multiprocessing starts."""
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=put, args=(queue, Cfg(4)))
    child.start()
    cfg, function, _ = queue.get()
    child.join()
    return [cfg == Cfg(5), type(cfg) is Cfg, function is square, child.exitcode]


def by_executor(method: str) -> list[typing.Any]:
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        boxes = [*pool.map(box_of, [2])]
        try:
            pool.submit(fails).result()
        except Wrong as error:
            return [boxes[0].show(), type(boxes[0]) is Box, cached(3), str(error)]
    return []


def names_in(value: typing.Any) -> list[str]:
    """The names that its pickle has."""
    found = [
        arg
        for _, arg, _ in pickletools.genops(pickle.dumps(value, 0))
        if isinstance(arg, str) and "_main_" in arg
    ]
    return sorted(found)


def again(value: typing.Any) -> typing.Any:
    return pickle.loads(pickle.dumps(value))


def text_of(call: typing.Callable[[], object]) -> str:
    """How an error of a call prints, without the frames of the library."""
    try:
        call()
    except Exception as error:
        return "".join(traceback.format_exception(error)).replace(str(Path(__file__).parent), "HERE")
    return "no error"


def warned() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        written, sys.stderr = sys.stderr, io.StringIO()
        try:
            warnings.warn("careful", stacklevel=1)
            return sys.stderr.getvalue().replace(str(Path(__file__).parent), "HERE")
        finally:
            sys.stderr = written


def printed_by_thread() -> str:
    """What the interpreter itself prints of an error in a thread: it knows files alone."""
    written, sys.stderr = sys.stderr, io.StringIO()
    try:
        thread = threading.Thread(target=fails, name="failing")
        thread.start()
        thread.join()
        return (
            "on purpose" in sys.stderr.getvalue()
            and "# the line that a traceback shows" in sys.stderr.getvalue()
        )
    finally:
        sys.stderr = written


def counted() -> list[object]:
    global COUNT
    COUNT += 1
    return [COUNT, sys.modules[__name__].COUNT, globals()["COUNT"], cached.cache_parameters()["maxsize"]]


def taken_signal() -> list[object]:
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    return [seen, str(before)]


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def read_input() -> str:
    try:
        return input("? ")
    except EOFError as error:
        return f"EOFError: {error}"


def relative() -> None:
    from . import beside


def umask() -> int:
    os.umask(found := os.umask(0))
    return found


def made_file() -> str:
    path = Path(f"made.{os.getpid()}")
    path.write_text("")
    try:
        return oct(path.stat().st_mode & 0o777)
    finally:
        path.unlink()


def look() -> dict[str, object]:
    """Every point, by name."""
    points: dict[str, typing.Callable[[], object]] = {
        # -- the script and its file
        "name": lambda: __name__,
        "file": lambda: [Path(__file__).name, Path(__file__).is_absolute(), len(Path(__file__).read_text())],
        "file beside": lambda: (Path(__file__).parent / "config.yaml").read_text(),
        "sys.path[0]": lambda: sys.path[0] == str(Path(__file__).parent),
        "argv": lambda: [Path(sys.argv[0]).name, sys.argv[1:]],
        "working folder": lambda: [Path.cwd() == Path(__file__).parent, Path("config.yaml").exists()],
        "module beside": lambda: (
            __import__("beside").WORD,
            Path(sys.modules["beside"].__file__).parent == Path(__file__).parent,
        ),
        "relative import": lambda: text_of(relative).splitlines()[-1],
        "main module": lambda: [
            sys.modules["__main__"].__name__,
            sys.modules["__main__"].__file__ == __file__,
            sys.modules["__main__"].__spec__,
            __package__,
        ],
        "script imported once": lambda: sorted(
            name
            for name, each in sys.modules.items()
            if getattr(each, "__file__", None) == __file__ and name != "__mp_main__"
        ),
        # -- own classes and functions
        "their module": lambda: [
            each.__module__ for each in (Cfg, Cfg.Inner, Colour, Box, square, cached, Pair, UserId)
        ],
        "found in main": lambda: [
            getattr(sys.modules["__main__"], each.__name__, None) is each
            for each in (Cfg, Colour, Box, square, cached, Pair, UserId)
        ],
        "repr": lambda: [repr(each) for each in (Cfg(), Colour.RED, Box[int], Pair(1, 2), Cfg.Inner, UserId)],
        "pickle of instances": lambda: [
            again(Cfg(9)) == Cfg(9),
            again(Colour.RED) is Colour.RED,
            again(Pair(1, 2)) == Pair(1, 2),
            again(Box(1)).show(),
        ],
        "pickle of functions and classes": lambda: [
            again(each) is each
            for each in (square, cached, Cfg, Cfg.Inner, Colour, Box, Box.show, Wrong, UserId, Pair)
        ],
        "names in pickles": lambda: names_in([Cfg(), square, Colour.RED, Cfg.Inner]),
        "pickle of a lambda": lambda: (
            text_of(lambda: pickle.dumps(lambda: 1)).splitlines()[-1].partition(" at 0x")[0]
        ),
        "cloudpickle of a lambda": lambda: (
            pickle.loads(__import__("cloudpickle").dumps(lambda x: Cfg(x)))(2) == Cfg(2)
        ),
        "copies": lambda: [
            copy.deepcopy(Cfg(7)) == Cfg(7),
            copy.copy(Box(3)).show(),
            dataclasses.replace(Cfg(), width=1).width,
        ],
        "type hints": lambda: [str(typing.get_type_hints(Cfg)), str(typing.get_type_hints(box_of))],
        "globals": counted,
        # -- children
        "spawn": lambda: by("spawn"),
        "fork": lambda: by("fork"),
        "forkserver": lambda: by("forkserver"),
        "process pool": lambda: by_executor("spawn"),
        "subprocess": lambda: (
            subprocess.run(
                [sys.executable, "-c", "import os; print(os.getppid())"], capture_output=True, text=True
            ).stdout
            == f"{os.getpid()}\n"
        ),
        # -- source
        "source of functions": lambda: [
            inspect.getsource(square),
            inspect.getsource(cached),
            inspect.getsourcelines(fails)[1],
        ],
        "source of classes": lambda: [
            inspect.getsource(Box),
            inspect.getsource(Cfg),
            inspect.getsource(Box.show),
            inspect.getdoc(Box),
        ],
        "where they are defined": lambda: (
            [inspect.getfile(each) == __file__ for each in (square, Box, fails)]
            + [inspect.getmodule(each) is sys.modules["__main__"] for each in (square, Box)]
        ),
        "traceback": lambda: text_of(fails),
        "traceback by a thread": printed_by_thread,
        "warning": warned,
        "linecache": lambda: linecache.getline(__file__, 1),
        # -- the process
        "umask": lambda: [oct(umask()), made_file()],
        "signals": lambda: {
            each.name: str(signal.getsignal(each)).partition(" at 0x")[0]
            for each in signal.valid_signals()
            if isinstance(each, signal.Signals) and signal.getsignal(each) not in (signal.SIG_DFL, None)
        },
        "a signal's handler": taken_signal,
        "blocked signals": lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "limits": lambda: {
            name: resource.getrlimit(getattr(resource, name))
            for name in dir(resource)
            if name.startswith("RLIMIT_")
        },
        "niceness": lambda: os.nice(0),
        "processors": lambda: len(os.sched_getaffinity(0)),
        "session": lambda: os.getsid(0) == os.getpid(),
        "environment": lambda: dict(os.environ),
        "interpreter": lambda: [
            sys.executable,
            sys.prefix,
            sys.version,
            str(sys.flags),
            sys.dont_write_bytecode,
            sys.orig_argv[0] == sys.executable,
        ],
        "hash seed": lambda: sys.flags.hash_randomization,
        "recursion limit": lambda: [sys.getrecursionlimit(), sys.getswitchinterval()],
        "garbage": lambda: [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
        "frozen garbage": lambda: gc.get_freeze_count() > 0,
        # -- threads, streams, hooks
        "main thread": lambda: [
            threading.current_thread() is threading.main_thread(),
            threading.current_thread().name,
        ],
        "threads": lambda: threading.active_count(),
        "asyncio": lambda: asyncio.run(answer()),
        "input": read_input,
        "stdin": lambda: [sys.stdin.isatty(), sys.stdin.read(), sys.stdin.encoding],
        "stdout": lambda: [
            sys.stdout.isatty(),
            sys.stdout.encoding,
            sys.stdout.fileno(),
            sys.stdout.name,
            sys.stdout.mode,
            type(sys.stdout).__name__,
            sys.stdout.newlines,
            sys.stdout is sys.__stdout__,
        ],
        "stderr": lambda: [
            sys.stderr.encoding,
            sys.stderr.errors,
            sys.stderr.fileno(),
            sys.stderr.name,
            sys.stderr.line_buffering,
        ],
        "buffering of stdout": lambda: [sys.stdout.errors, sys.stdout.line_buffering],
        "hooks": lambda: [
            sys.excepthook is sys.__excepthook__,
            threading.excepthook is threading.__excepthook__,
            sys.unraisablehook is sys.__unraisablehook__,
            sys.breakpointhook is sys.__breakpointhook__,
            sys.gettrace(),
            sys.getprofile(),
        ],
        "faulthandler": faulthandler.is_enabled,
        "warning filters": lambda: [str(each) for each in warnings.filters],
        "logging": lambda: [
            logging.getLogger().handlers,
            logging.getLogger().level,
            logging.getLogger(__name__).name,
        ],
        "locale": lambda: [locale.getlocale(), locale.getpreferredencoding(), sys.getfilesystemencoding()],
        "temporary folder": tempfile.gettempdir,
        "own exit handlers": lambda: atexit._ncallbacks() >= 0,
    }
    found = {}
    for name, point in points.items():
        try:
            found[name] = point()
        except BaseException as error:
            found[name] = f"{type(error).__name__}: {error}"
    return json.loads(json.dumps(found, default=repr))


@sky.function
def seen(to: str = "") -> dict[str, object]:
    found = look()
    if to:
        Path(to).write_text(json.dumps(found))
    return found


if __name__ == "__main__":
    if sys.argv[1:]:
        where, *rest = sys.argv[1:]
        provider: sky.Local | sky.SSH = sky.Local()
        if where == "ssh":
            port, key, known = rest
            provider = sky.SSH([f"127.0.0.1:{port}"], keys=key, known_hosts=known, config=False)
        with sky.Compute(provider=provider, nodes=1, options=sky.Options(console=False)) as compute:
            print(json.dumps(seen() @ compute))
    else:
        print(json.dumps([look()]))
