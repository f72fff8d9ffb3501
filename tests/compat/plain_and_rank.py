"""Script that inspects its own process, to compare a plain Python process with a rank.

plain_and_rank.py ... in the way that the variable WHERE selects: "plain" is a plain process; "local" is a rank of this
machine, and "local open" lets other ranks leave files open; "ssh PORT KEY HOSTS" is a rank of a host on loopback.

``plain_and_rank.py load FILE`` is a plain process that loads a rank's saved values. ``plain_and_rank.py open FOLDER
LIBRARY [daemon]`` is a plain process that calls leave_open().

Each prints its findings as JSON, which `test_plain_and_rank.py` compares.
"""

import abc
import asyncio
import atexit
import collections
import contextlib
import copy
import dataclasses
import enum
import faulthandler
import functools
import gc
import importlib
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
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import beside  # type: ignore[import-not-found]
import cloudpickle

import skyward_core as sky

T = typing.TypeVar("T")
UserId = typing.NewType("UserId", int)
Pair = collections.namedtuple("Pair", "a b")
COUNT = 0
SECRET = "word-for-nobody-else"


@dataclasses.dataclass
class Cfg:
    width: int = 3
    name: "str | None" = None

    class Inner:
        pass


class Colour(enum.Enum):
    RED = 1


class Box(typing.Generic[T]):
    """Container of one value."""

    def __init__(self, held: T) -> None:
        self.held = held

    def show(self) -> str:
        return f"Box of {self.held}"

    @functools.cached_property
    def once(self) -> list[Any]:
        return [self.held]


class Slim(abc.ABC):
    __slots__ = ("a",)

    @abc.abstractmethod
    def go(self) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Slimmer(Slim):
    b: int = 1

    def go(self) -> None:
        super().__init__()


class Lean:
    __slots__ = ("__own", "__weakref__", "a")

    def __init__(self, a: int) -> None:
        self.a = self.__own = a

    def own(self) -> int:
        return self.__own


class Leaner(Lean):
    __slots__ = ("b",)


class Spot(typing.NamedTuple):
    x: int
    y: int = 2

    def far(self) -> int:
        return self.x + self.y


class Few(typing.TypedDict, total=False):
    a: int


class More(Few):
    b: str


@functools.singledispatch
def kind_of(value: Any) -> str:
    return "something"


@kind_of.register
def of_number(value: int) -> str:
    return "a number"


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


def put(queue: Any, cfg: Cfg) -> None:
    queue.put((Cfg(cfg.width + 1), square))


def by_process(method: str) -> list[Any]:
    """Return the result of a child process started by multiprocessing."""
    context: Any = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=put, args=(queue, Cfg(4)))
    child.start()
    cfg, function = queue.get()
    child.join()
    return [cfg == Cfg(5), type(cfg) is Cfg, function is square, child.exitcode]


def by_executor() -> list[Any]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        boxes = [*pool.map(box_of, [2])]
        found = [boxes[0].show(), type(boxes[0]) is Box, pool.submit(inspect.getsource, Box).result()]
        try:
            pool.submit(fails).result()
        except Wrong as error:
            found.append(str(error))
    return found


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def names_in(value: Any) -> list[str]:
    """Return the names in a pickle by which its objects are found."""
    found = [arg for _, arg, _ in pickletools.genops(pickle.dumps(value, 0)) if isinstance(arg, str)]
    return sorted(arg for arg in found if "_main_" in arg)


def saved() -> str:
    with open("saved.pickle", "wb") as file:
        pickle.dump([Cfg(5), Colour.RED, square, Cfg.Inner, Box("x")], file)
    return file.name


def text_of(call: Callable[[], object]) -> str:
    """Return the printed form of a call's error."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  that is what is asked for
        return "".join(traceback.format_exception(error)).replace(str(Path.cwd()), "HERE")
    return "no error"


@contextlib.contextmanager
def errors_taken() -> Iterator[io.StringIO]:
    before, sys.stderr = sys.stderr, io.StringIO()
    try:
        yield sys.stderr
    finally:
        sys.stderr = before


def warned() -> str:
    with warnings.catch_warnings(), errors_taken() as taken:
        warnings.simplefilter("always")
        warnings.warn("careful", stacklevel=1)
        return taken.getvalue().replace(str(Path.cwd()), "HERE")


def told_by_interpreter() -> bool:
    """Check whether the interpreter itself, which reads only files, shows the source line of an error in a thread."""
    with errors_taken() as taken:
        thread = threading.Thread(target=fails)
        thread.start()
        thread.join()
    return "# the line that a traceback shows" in taken.getvalue()


def counted() -> list[object]:
    global COUNT
    COUNT += 1
    main: Any = sys.modules[__name__]
    seen = main.COUNT
    main.COUNT = 7
    return [seen, COUNT, globals()["COUNT"], cached.cache_parameters()["maxsize"]]


def own_handler() -> list[object]:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    return [seen, str(before)]


def taken_signals() -> dict[str, str]:
    handlers = {each.name: signal.getsignal(each) for each in signal.Signals}
    left = (signal.SIG_DFL, None)
    return {name: str(handler).partition(" of ")[0] for name, handler in handlers.items() if handler not in left}


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def asked() -> str:
    try:
        return input()
    except EOFError as error:
        return f"EOFError: {error}"


def relative() -> None:
    from . import beside  # type: ignore[attr-defined]  # noqa: F401


def module_beside() -> list[object]:
    return [beside.WORD, Path(beside.__file__).parent == Path(__file__).parent]


def umask() -> int:
    os.umask(found := os.umask(0))
    return found


def mode_of_a_file() -> str:
    path = Path(f"made.{os.getpid()}")
    path.touch()
    try:
        return oct(path.stat().st_mode)
    finally:
        path.unlink()


def imported_as() -> list[str]:
    return sorted(
        name
        for name, module in sys.modules.items()
        if getattr(module, "__file__", None) == __file__ and name != "__mp_main__"
    )


class Unwritten:
    """Object that writes its content when it is finalized. It refers to itself, so only the garbage collector frees it.

    (If the file itself were in a cycle, the collector might close its descriptor first and lose data in any process.)
    """

    def __init__(self, path: Path) -> None:
        self.me, self.path, self.text = self, os.fspath(path), path.name.encode()

    def __del__(self, open_: Any = os.open, write: Any = os.write, how: int = os.O_CREAT | os.O_WRONLY) -> None:
        write(open_(self.path, how), self.text)  # of the modules nothing may be left


class Hooked:
    """Class that keeps a file open as long as the class exists."""

    file: Any = None


HELD: dict[str, Any] = {}


def leave_in_child(path: Path, library: str) -> None:
    HELD["child"] = Unwritten(path)
    importlib.import_module(library)


def leave_open(folder: Path, library: str, *, daemon: bool) -> None:
    """Leave a few bytes in open files that are referenced in many ways, half of them opened before a library is
    imported.

    Args:
        daemon: Whether to start a daemon thread, which keeps the globals of its function alive to the end.
    """

    def opened(name: str) -> Any:
        file = (folder / f"{moment} {name}").open("w")
        file.write(name)
        return file

    def generator(file: Any) -> Iterator[None]:
        try:
            yield
        finally:
            file.write(" and at its end")

    def closure(file: Any) -> Callable[[], object]:
        def itself() -> object:
            return itself, file

        return itself

    def wait(file: Any, ready: threading.Event) -> None:
        ready.set()
        threading.Event().wait()

    folder.mkdir()
    if not daemon:
        child = multiprocessing.get_context("spawn").Process(target=leave_in_child, args=(folder / "child", library))
        child.start()
        child.join()
    for moment in ("before", "after"):
        HELD[moment] = {"file": opened("global"), "cycle": Unwritten(folder / f"{moment} cycle")}
        HELD[moment]["closure"] = closure(opened("closure"))
        HELD[moment]["generator"] = held = generator(opened("generator"))
        next(held)
        HELD[moment]["thread local"] = threading.local()
        HELD[moment]["thread local"].file = opened("thread local")
        path = Unwritten(folder / f"{moment} garbage")
        setattr(Hooked, moment, opened("class"))
        setattr(beside, moment, [opened("module"), Unwritten(folder / f"{moment} cycle of a module")])
        sys.excepthook = closure(opened("excepthook"))  # type: ignore[assignment]
        atexit.register(opened("atexit").write, " and at its end")
        weakref.finalize(path, opened("finalize").write, " and at its end")
        threading._register_atexit(opened("threading").write, " and at its end")  # type: ignore[attr-defined]
        if daemon:
            ready = threading.Event()
            threading.Thread(target=wait, args=(opened("daemon thread"), ready), daemon=True).start()
            ready.wait()
        if moment == "before":
            importlib.import_module(library)


def run_by_subprocess() -> bool:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getppid())"], capture_output=True)
    return int(done.stdout) == os.getpid()


OWN: tuple[Any, ...] = (Cfg, Colour, Box, square, cached, Pair, UserId)
NESTED: tuple[Any, ...] = (Cfg.Inner, Box.show, Wrong, Slim, Slimmer)


def points() -> dict[str, Callable[[], object]]:
    """Return the inspected properties by name."""
    main: Any = sys.modules["__main__"]
    return {
        # -- the script and its files
        "name": lambda: [__name__, __package__],
        "file": lambda: [Path(__file__).name, Path(__file__).is_absolute(), len(Path(__file__).read_text())],
        "file beside": lambda: (Path(__file__).parent / "config.yaml").read_text(),
        "module beside": module_beside,
        "relative import": lambda: text_of(relative).splitlines()[-1],
        "sys.path[0]": lambda: Path(sys.path[0]) == Path(__file__).parent,
        "sys.path": lambda: sys.path,
        "sys.argv": lambda: [sys.argv, beside.ARGV],  # the second as it was when a module was imported
        "sys.orig_argv": lambda: sys.orig_argv,
        "current folder": os.getcwd,
        "names in main": lambda: sorted(vars(main)),
        "working folder": lambda: sorted({each.name for each in Path().iterdir()} & {"beside.py", "config.yaml"}),
        "main module": lambda: [main.__name__, main.__file__ == __file__, main.__spec__, type(main.__dict__)],
        "imported once": imported_as,
        # -- what the script defines
        "module of": lambda: [each.__module__ for each in OWN + NESTED],
        "found in main": lambda: [getattr(main, each.__name__, None) is each for each in OWN],
        "repr": lambda: [repr(Cfg()), repr(Colour.RED), repr(Box[int]), repr(Pair(1, 2)), repr(Cfg.Inner)],
        "type hints": lambda: [str(typing.get_type_hints(each)) for each in (Cfg, box_of)],
        "copies": lambda: [copy.deepcopy(Cfg(7)) == Cfg(7), copy.copy(Box(3)).show(), again(Pair(1, 2))],
        "pickled instances": lambda: [again(Cfg(9)) == Cfg(9), again(Colour.RED) is Colour.RED],
        "pickled odd instances": lambda: [repr(again(Slimmer())), again(Box(1)).once],
        "slots": lambda: [
            *(hasattr(kind(1), "__dict__") for kind in (Lean, Leaner, Slimmer)),
            text_of(lambda: setattr(Lean(1), "c", 1)).splitlines()[-1],
            [again(Lean(2)).a, again(Leaner(3)).own(), Lean.__slots__, Leaner.__slots__],
        ],
        "named tuples": lambda: [Spot(1).far(), again(Spot(1)), Spot._fields, type(again(Spot(1))) is Spot],
        "typed dictionaries": lambda: [
            Few(a=1),
            More(a=1, b="x"),
            [sorted(each) for each in (More.__required_keys__, More.__optional_keys__, More.__annotations__)],
        ],
        "single dispatch": lambda: [kind_of(1), kind_of("x"), kind_of.dispatch(bool)(True)],
        "pickled by name": lambda: [again(each) is each for each in OWN + NESTED],
        "names in pickles": lambda: names_in([Cfg(), square, Colour.RED, Cfg.Inner]),
        "saved": saved,
        "a lambda by pickle": lambda: text_of(lambda: pickle.dumps(lambda: 1)).partition(" at 0x")[0],
        "a lambda by cloudpickle": lambda: pickle.loads(cloudpickle.dumps(lambda x: Cfg(x)))(2) == Cfg(2),
        "globals": counted,
        # -- where it is written
        "source of functions": lambda: [inspect.getsource(square), *inspect.getsourcelines(cached)],
        "source of classes": lambda: [inspect.getsource(each) for each in (Box, Cfg, Box.show)],
        "file of": lambda: [inspect.getfile(each) == __file__ for each in (square, Box, fails)],
        "traceback": lambda: text_of(fails),
        "traceback of a thread": told_by_interpreter,
        "warning": warned,
        "line cache": lambda: linecache.getline(__file__, 1),
        # -- children
        "children by fork": lambda: by_process("fork"),
        "children by spawn": lambda: by_process("spawn"),
        "children by forkserver": lambda: by_process("forkserver"),
        "children of an executor": by_executor,
        "subprocess": run_by_subprocess,
        # -- the process
        "umask": lambda: [oct(umask()), mode_of_a_file()],
        "signals": taken_signals,
        "own signal handler": own_handler,
        "blocked signals": lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "limits": lambda: {
            name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")
        },
        "niceness": lambda: os.nice(0),
        "processors": lambda: sorted(os.sched_getaffinity(0)),
        "session": lambda: os.getsid(0) == os.getpid(),
        "environment": lambda: dict(os.environ),
        "interpreter": lambda: [sys.executable, sys.prefix, sys.version],
        "sys.flags": lambda: str(sys.flags),
        "bytecode": lambda: [sys.dont_write_bytecode, sys.pycache_prefix],
        "recursion limit": lambda: [sys.getrecursionlimit(), sys.getswitchinterval()],
        "garbage": lambda: [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
        "frozen garbage": lambda: gc.get_freeze_count() > 0,
        "faulthandler": faulthandler.is_enabled,
        "temporary folder": tempfile.gettempdir,
        "locale": lambda: [
            *(locale.setlocale(getattr(locale, name)) for name in dir(locale) if name.startswith("LC_")),
            *(locale.getpreferredencoding(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()),
        ],
        # -- threads, streams, hooks
        "main thread": lambda: threading.current_thread() is threading.main_thread(),
        "threads": threading.active_count,
        "asyncio.run": lambda: asyncio.run(answer()),
        "input": asked,
        "standard input": lambda: [sys.stdin.isatty(), sys.stdin.read(), sys.stdin.encoding, sys.stdin.fileno()],
        "standard output": lambda: (
            [getattr(sys.stdout, name) for name in ("encoding", "name", "mode", "newlines", "closed")],
            [sys.stdout.isatty(), sys.stdout.fileno(), sys.stdout is sys.__stdout__, type(sys.stdout).__name__],
        ),
        "standard error": lambda: [sys.stderr.encoding, sys.stderr.errors, sys.stderr.name, sys.stderr.mode],
        "buffering": lambda: [sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.errors],
        "excepthook": lambda: [sys.excepthook is sys.__excepthook__, sys.breakpointhook is sys.__breakpointhook__],
        "threading.excepthook": lambda: threading.excepthook is threading.__excepthook__,
        "unraisablehook": lambda: sys.unraisablehook is sys.__unraisablehook__,
        "tracing": lambda: [sys.gettrace(), sys.getprofile()],
        "warning filters": lambda: [str(each) for each in warnings.filters],
        "logging": lambda: [logging.getLogger().handlers, logging.getLogger().level, logging.lastResort is None],
    }


def look() -> dict[str, object]:
    """Return all properties."""
    found: dict[str, object] = {}
    for name, point in points().items():
        try:
            found[name] = point()
        except Exception as error:  # noqa: BLE001  it is the point's answer
            found[name] = f"{type(error).__name__}: {error}"
    return json.loads(json.dumps(found, default=repr))


@sky.function
def seen() -> dict[str, object]:
    return look()


@sky.function
def leaves(status: object) -> None:
    sys.exit(status)  # type: ignore[arg-type]


@sky.function
def leaves_open(folder: Path, library: str) -> None:
    leave_open(folder, library, daemon=False)


@sky.function
def box(held: object) -> Box[object]:
    return Box(held)


@sky.function
def raises() -> str:
    fails()
    return __file__


@sky.function
def open_to_others() -> list[str]:
    """Return what other users could read or write in the node's folder, and which processes show the script's
    arguments.
    """
    node = Path("/", f":{os.environ['SKYWARD_NODE']}".rpartition(":/")[2])
    files = [node, *node.glob("agent.*"), *node.glob("sent-source")]
    found = [str(each) for each in files if each.stat().st_mode & 0o077]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if SECRET.encode() in words and words.split(b"\0")[1] not in (b"-c", b"plain_and_rank.py"):
                found.append(f"{process}: {words!r}")
    return found


def ask(compute: Any) -> dict[str, object]:
    """Return a rank's result and its inspection on the client."""
    show = Box.show
    found = {
        "seen": seen() >> compute,
        "open": open_to_others() >> compute,
        "left": [leaves(status) >> compute for status in (None, 0, False)],
        "box": [type(made := box(1) >> compute) is Box, made.show(), Box.show is show],
    }
    for key, call in (("traceback", raises()), ("traceback of a script", sky.script("fails.py"))):
        try:
            call >> compute
        except sky.RunError as error:
            found[key] = [each.error and each.error.traceback for each in error.outcomes.values()]
    return found


if __name__ == "__main__":
    command, *rest = *sys.argv[1:], ""
    where, *host = os.environ.get("WHERE", "plain").split()
    provider: Any = sky.Local()
    if where == "ssh":
        port, key, known = host
        named: Any = {"keys": key, "known_hosts": known, "python": sys.executable, "config": False}
        provider = sky.SSH([f"127.0.0.1:{port}"], **named)
    if command == "open":
        leave_open(Path(rest[0]), rest[1], daemon="daemon" in rest)
    elif command == "load":
        print(json.dumps(again(pickle.loads(Path(rest[0]).read_bytes()))[:1] == [Cfg(5)]))
    elif where == "plain":
        print(json.dumps(look()))
    else:
        with sky.Compute(provider=provider, nodes=1, options=sky.Options(console=False)) as compute:
            print(json.dumps(ask(compute)))
            if host == ["open"]:
                leaves_open(Path("left"), "numpy") >> compute
                sky.script(__file__, ["open", "left-by-script", "numpy", "daemon"]) >> compute
