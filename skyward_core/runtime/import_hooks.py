"""Import hooks of a rank.

Scripts written for the older name then run as they are.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # workers start fast: the real one costs imports and adds nothing we use

_OLD, _NEW = "skyward", "skyward_core"
# Modules that scripts named, and where they are now.
_MODULE_MOVES = {
    "accelerators": "model.accelerators",
    "errors": "model.errors",
    "spec": "model.spec",
    "time": "model.lengths_of_time",
}


def install() -> None:
    """Let ``skyward`` and its submodules resolve to ours from now on; idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    # First in line, as the path finder would load a second copy of a submodule from our package's folder.

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, dot, rest = fullname.partition(".")
        if root != _OLD:
            return None
        if not dot:
            return None if PathFinder.find_spec(fullname, path) else ModuleSpec(fullname, _Loader(_NEW))
        if sys.modules.get(_OLD) is not sys.modules.get(_NEW):
            return None
        first, dot, more = rest.partition(".")
        return ModuleSpec(fullname, _Loader(f"{_NEW}.{_MODULE_MOVES.get(first, first)}{dot}{more}"))


class _Loader(Loader):
    """Hands out a module of ours; the import system overwrites its spec, so that is put back."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


# Those whose import takes more than a tenth of a second, and what is often imported before them.
LARGE_PACKAGES = frozenset((
    "accelerate", "datasets", "diffusers", "flax", "jax", "keras", "lightning", "numpy", "pandas", "peft", "pyarrow",
    "pytorch_lightning", "scipy", "sklearn", "sympy", "tensorflow", "torch", "torchaudio", "torchvision",
    "transformers",
))  # fmt: skip


_BUFFERED = (stat.S_IFREG, stat.S_IFIFO)


def install_gc_pause() -> None:
    """Load them so from now on, whoever imports them; idempotent."""
    if not any(isinstance(finder, _LargeFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LargeFinder())
        atexit.register(_unfreeze_at_exit, writable_descriptors())


@contextmanager
def pause_gc() -> Iterator[None]:
    """Import in here what is large and stays: nobody looks for garbage among it, neither now nor later.

    Else Python goes through all that there is again and again while it grows, and thrice more where it ends. What is
    garbage already goes first, for what is here at the end is never looked at again. Who has switched the search off
    has it as it was.
    """
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def writable_descriptors() -> frozenset[tuple[int, int, int]] | None:
    """Return the descriptors of open files to which data may still be unwritten: number, device and inode.

    Sockets, pipes to this process itself and devices of GPUs do not count: frameworks leave these open, and write to
    them without a buffer. None if the system does not list descriptors.
    """
    import fcntl

    found, own = set(), set()
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    except OSError:
        return None
    for number in numbers:
        with suppress(OSError):  # the one that listed them is closed
            there = os.fstat(number)
            kind, flags = stat.S_IFMT(there.st_mode), fcntl.fcntl(number, fcntl.F_GETFL)
            if kind == stat.S_IFIFO and flags & os.O_ACCMODE == os.O_RDONLY:
                own.add(there.st_ino)
            elif flags & os.O_ACCMODE != os.O_RDONLY and (kind in _BUFFERED or os.isatty(number)):
                found.add((number, there.st_dev, there.st_ino))
    return frozenset(each for each in found if each[2] not in own)


def _has_finalizers_of_users() -> bool:
    """Check whether an object's type has a ``__del__`` and is not of the standard library or an installed package."""
    import sysconfig  # late: it would cost each start of a worker a third of a millisecond

    gc.unfreeze()
    types = set(map(type, gc.get_objects()))
    gc.freeze()
    places = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    for each in types:
        if isinstance(getattr(each, "__del__", None), FunctionType):
            module = sys.modules.get(getattr(each, "__module__", None) or "")
            file = getattr(module, "__file__", None)
            if file is None or not (file.startswith(places) or each.__module__.startswith("skyward_core.")):
                return True
    return False


# The last collections of an interpreter's shutdown must find what was frozen if data may still be unwritten: in open
# files, or in objects with finalizers of their own. For torch, they take a tenth of a second and more. The first
# collection only serves objects that were garbage before.
def _unfreeze_at_exit(at_start: frozenset[tuple[int, int, int]] | None) -> None:
    now = writable_descriptors()
    if at_start is not None and now is not None and now <= at_start and not _has_finalizers_of_users():
        return
    if gc.isenabled():
        gc.callbacks.append(_unfreeze_on_stop)
    else:
        gc.unfreeze()


def _unfreeze_on_stop(phase: str, info: object) -> None:
    if phase == "stop":
        gc.unfreeze()


class _LargeFinder:
    """Finds what the finders behind it find, and pauses the garbage collection while it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in LARGE_PACKAGES or not gc.isenabled():
            return None  # within another's import the search is off already
        spec = _find_behind(self, fullname, path, target)
        if spec is not None:
            _pause_gc_during_load(spec.loader)
        return spec


def _find_behind(
    finder: Any, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    found = (each.find_spec(fullname, path, target) for each in sys.meta_path[sys.meta_path.index(finder) + 1 :])
    return next(filter(None, found), None)


def _pause_gc_during_load(loader: Any) -> None:
    own = getattr(loader, "__dict__", {})
    # One loader may be there for many modules, as that of a zip file is, and be asked for without being used.
    if "exec_module" in own or not hasattr(loader, "exec_module"):
        return
    run: Callable[[ModuleType], None] = loader.exec_module

    def load(module: ModuleType) -> None:
        own.pop("exec_module", None)  # once: it is the loader's own again
        with pause_gc():
            run(module)

    try:
        loader.exec_module = load
    except AttributeError:
        return  # one that nothing can be added to loads as it always does


def call_when_imported(use: Callable[[Any], None], *names: str) -> None:
    """Call a function with each of some modules as soon as it is imported; now, if it is already."""
    missing = {name for name in names if name not in sys.modules}
    for name in names:
        if name not in missing:
            use(sys.modules[name])
    if missing:
        sys.meta_path.insert(0, _CallbackFinder(use, missing))


class _CallbackFinder:
    """Finds modules as the finders behind it do, and calls a function with each that has been loaded."""

    def __init__(self, use: Callable[[Any], None], names: set[str]) -> None:
        self._use, self._names = use, names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = _find_behind(self, fullname, path, target) if fullname in self._names else None
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Any) -> None:
        run: Callable[[ModuleType], None] = loader.exec_module

        def load(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # once: it is the loader's own again
            run(module)
            if module.__name__ in self._names:
                self._names.discard(module.__name__)
                self._use(module)

        loader.exec_module = load
