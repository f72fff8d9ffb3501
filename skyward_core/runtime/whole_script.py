"""A whole script as a rank runs it: as the main program of its process, which runs nothing after it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

from . import used_up

MAIN = "__main__"


class WholeScript:
    """Runs as a script does that Python is started with.

    Args:
        path: the script's path on the client; of a module, its name.
        source: what stands in it; empty for a module, which is found where the rank works.
        args: its own, as texts.
    """

    is_script = True
    torchrun = False  # whether it is to find torchrun's variables where there is one rank, too

    def __init__(self, path: str, source: bytes, args: Sequence[str]) -> None:
        self.__name__ = path.rpartition("/")[2]
        self.path = path
        self.source = source
        self.args = tuple(args)

    def __call__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                f'{self.__name__} is a whole script, which needs a process: leave Worker(executor="thread") out'
            )
        main = ModuleType(MAIN)
        code = self._as_script(main) if self.source else self._as_module(main)
        sys.modules[MAIN] = main
        sys.argv[1:] = self.args
        # Programs start themselves anew by it, to notice edits or to have another environment.
        sys.orig_argv[:] = [sys.executable, *(sys.argv[:1] if self.source else ("-m", self.path)), *self.args]
        if self.torchrun:
            from . import info, torchrun

            torchrun.set_alone(info.instance_info())
        used_up.say("a script has run in it")
        try:
            exec(code, main.__dict__)  # noqa: S102  the person's own script is what we are for
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        except Exception as error:
            _show_to_its_hook(error)
            raise
        _end()

    def _as_script(self, main: ModuleType) -> CodeType:
        here = os.getcwd()  # noqa: PTH109  a worker has no pathlib
        file = node_copy(self.path, self.source, here)
        _have_source(file, self.source)
        main.__dict__.update(
            __file__=file, __builtins__=__builtins__, __cached__=None, __loader__=SourceFileLoader(MAIN, file)
        )
        sys.argv[:1] = [file.removeprefix(here + "/")]
        beside = os.path.realpath(file).rpartition("/")[0]
        sys.path[:] = [beside, *(each for each in sys.path if each != beside)]
        return compile(self.source, file, "exec", dont_inherit=True)

    def _as_module(self, main: ModuleType) -> CodeType:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        spec = find_spec(self.path)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find_spec(f"{self.path}.{MAIN}")
        loader: Any = spec and spec.loader
        code: CodeType | None = loader.get_code(spec.name) if spec and hasattr(loader, "get_code") else None
        if spec is None or code is None:
            raise ModuleNotFoundError(f"No module named {self.path}", name=self.path)
        main.__dict__.update(
            __file__=spec.origin,
            __builtins__=__builtins__,
            __cached__=spec.cached,
            __loader__=loader,
            __package__=spec.parent,
            __spec__=spec,
        )
        sys.argv[:1] = [spec.origin or self.path]
        return code


def node_copy(path: str, source: bytes, here: str) -> str:
    """Where a client's script lies on this node: below the working folder, which has travelled, as it does there.

    Args:
        path: the script's path on the client.
        source: what stands in it there.
        here: the working folder.

    Raises:
        FileNotFoundError: it lies nowhere here; says what to do.
    """
    parts = path.split("/")
    below = [f"{here}/{'/'.join(parts[start:])}" for start in range(1, len(parts))]
    if path.startswith(f"{here}/"):
        below.insert(0, path)
    there = [each for each in below if os.path.isfile(each)]  # noqa: PTH113
    for each in [*there, path]:
        if _holds(each, source):
            return each
    if there:
        return there[0]  # it was changed on the client since it came here
    raise FileNotFoundError(
        f"{path} has not come to this node with the working folder, which is {here} here: give the pool "
        "Image(workdir=...), a folder that holds the script"
    )


def _holds(path: str, source: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(source) + 1) == source
    except OSError:
        return False


def _have_source(file: str, source: bytes) -> None:
    """Have tracebacks and ``inspect`` show the lines that run, whatever the file holds by now."""
    if _holds(file, source):
        return
    import linecache

    lines = source.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[file] = (len(source), None, lines, file)


def _show_to_its_hook(error: Exception) -> None:
    """A script that has put a hook of its own in the place of Python's hears there of what ends it."""
    hook = sys.excepthook
    if hook is sys.__excepthook__:
        return  # the client tells of it
    try:
        hook(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
    except Exception:  # noqa: BLE001  the script's error is what counts
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(*sys.exc_info())


def _end() -> None:
    """Do what Python does at the end of a script, in its order, while the rank's part still goes on: it may take long.

    Threads that nobody stops are waited for. Executors have theirs stop just before that, and exit handlers are what
    ends servers of multiprocessing: to wait for those before would be to wait for ever.
    """
    before_threads: list[Any] = getattr(threading, "_threading_atexits", [])
    while before_threads:
        before_threads.pop()()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
