"""Import hooks of a rank: the older package name ``skyward``, fast imports of large packages, and import callbacks.

Scripts of older API versions import ``skyward`` and run unchanged. Garbage collection is paused during the import of
large packages, which makes the import faster.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import importlib
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import FrozenImporter, ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # replaces importlib.abc.Loader, whose import would slow down the start of workers

_OLD, _NEW = "skyward", "skyward_core"
# Older name of a module -> current name.
_MODULE_MOVES = {
    "accelerators": "model.accelerators",
    "errors": "model.errors",
    "spec": "model.specs",
    "time": "model.older_time_functions",
}


def install() -> None:
    """Make ``skyward`` and its submodules refer to this library from now on. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    # Insert as the first finder. Otherwise Python's path finder would load submodules a second time, from this
    # package's folder.

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
    """Loader that returns a module of this library for its older name. Restores the module's spec after the import.

    The import system overwrites the spec.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


# Packages whose imports pause garbage collection: they take more than 0.1 s, or are often imported before such
# packages.
LARGE_PACKAGES = frozenset((
    "accelerate", "datasets", "diffusers", "flax", "jax", "keras", "lightning", "numpy", "pandas", "peft", "pyarrow",
    "pytorch_lightning", "scipy", "sklearn", "sympy", "tensorflow", "torch", "torchaudio", "torchvision",
    "transformers",
))  # fmt: skip


# Standard modules that are not unloaded, because Python loads them before a script or their import has side effects.
NEVER_SHADOWED = ("encodings", "antigravity", "idlelib", "test", "this", "tkinter", "turtle", "turtledemo")

_BUFFERED = (stat.S_IFREG, stat.S_IFIFO)


def install_gc_pause(unbuffered: Sequence[str] = ()) -> None:
    """Pause garbage collection during imports of large packages from now on. Idempotent.

    Args:
        unbuffered: Files that have no unwritten data at exit, even if this process opens them later.
    """
    if not any(isinstance(finder, _LargeFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LargeFinder())
        atexit.register(_unfreeze_at_exit, writable_descriptors(), unbuffered)


@contextmanager
def pause_gc() -> Iterator[None]:
    """Pause garbage collection in this block, and exclude all objects created in the block from later collections.

    Without the pause, Python scans all objects repeatedly while their number grows, and three more times at exit.
    Existing garbage is collected first, because excluded objects are never collected. Does nothing if garbage
    collection is disabled.
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


def writable_descriptors(unbuffered: Collection[str] = ()) -> frozenset[tuple[int, int, int]] | None:
    """Return the descriptors of open files that may have unwritten data: number, device and inode.

    Sockets, pipes to this process and GPU devices are not included: frameworks leave them open, but write to them
    without a buffer. None if the system does not list descriptors.

    Args:
        unbuffered: Resolved paths of files that are not included either.
    """
    import fcntl

    found, own = set(), set()
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    except OSError:
        return None
    for number in numbers:
        with suppress(OSError):  # The listing contains its own descriptor, which is closed by now.
            there = os.fstat(number)
            kind, access = stat.S_IFMT(there.st_mode), fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
            file = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
            if kind == stat.S_IFIFO and access == os.O_RDONLY:
                own.add(there.st_ino)
            elif access != os.O_RDONLY and (kind in _BUFFERED or os.isatty(number)) and file not in unbuffered:
                found.add((number, there.st_dev, there.st_ino))
    return frozenset(each for each in found if each[2] not in own)


def _has_finalizers_of_users() -> bool:
    """Check whether any object is of a user's type with a ``__del__`` method.

    Types of the standard library and of installed packages do not count.
    """
    import sysconfig  # imported late, which saves 0.3 ms at each start of a worker

    gc.unfreeze()
    types = set(map(type, gc.get_objects()))
    gc.freeze()
    places = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    for each in types:
        if isinstance(getattr(each, "__del__", None), FunctionType):
            file = getattr(sys.modules.get(getattr(each, "__module__", None) or ""), "__file__", None)
            if file is None or not (file.startswith(places) or each.__module__.startswith("skyward_core.")):
                return True
    return False


# At exit, unfreeze objects only if they may hold unwritten data: open files, or objects with finalizers. Collecting
# them takes 0.1 s and more with torch. The first collection at exit only frees earlier garbage, so objects stay frozen
# until it ends.
def _unfreeze_at_exit(at_start: frozenset[tuple[int, int, int]] | None, unbuffered: Sequence[str]) -> None:
    now = writable_descriptors({*map(os.path.realpath, unbuffered)})
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
    """Finder of large packages that pauses garbage collection during their import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in LARGE_PACKAGES or not gc.isenabled():
            return None  # Garbage collection is off during an import of a large package within another one.
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
    # Replace the loader's method only for one module: a loader may serve many modules (as for zip files), or may never
    # be used.
    if "exec_module" in own or not hasattr(loader, "exec_module"):
        return
    run: Callable[[ModuleType], None] = loader.exec_module

    def load(module: ModuleType) -> None:
        own.pop("exec_module", None)  # Remove this replacement, so that further modules use the loader's own method.
        with pause_gc():
            run(module)

    try:
        loader.exec_module = load
    except AttributeError:
        return  # A loader without a __dict__ cannot be changed, so its modules load without the pause.


# names of standard modules that user code does not see, because a script's folder has a module of the same name
_shadowed: set[str] = set()


def unload_shadowed_modules(folders: Sequence[str]) -> None:
    """Let user code import modules that have the same names as modules of the standard library.

    Python prefers the modules of a script's folder, because the folder precedes the standard library. But this package
    has already imported the standard modules, and continues to use these. Call this function before ``sys.path``
    contains the folders.
    """
    entries = {name for folder in folders if os.path.isdir(folder) for name in _standard_names(folder)}  # noqa: PTH112
    names = entries - {*sys.builtin_module_names, *NEVER_SHADOWED, *_shadowed}
    names = {name for name in names if FrozenImporter.find_spec(name) is None}
    if not names:
        return
    for name in names:
        with suppress(ImportError):  # This version of Python does not have the module.
            importlib.import_module(name)
    _shadowed.update(names)
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in names}
    plain = builtins.__import__

    def find(
        name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
    ) -> ModuleType:
        if level == 0 and name in hidden and str((globals or {}).get("__name__")).partition(".")[0] == _NEW:
            return hidden[name if fromlist else name.partition(".")[0]]
        return plain(name, globals, locals, fromlist or (), level)

    builtins.__import__ = find


def _standard_names(folder: str) -> Iterator[str]:
    """Yield the names of modules in a folder that are also names of modules of the standard library."""
    for entry in os.listdir(folder):  # noqa: PTH208  a worker has no pathlib
        name = entry.removesuffix(".py")
        if name in sys.stdlib_module_names and (name != entry or os.path.isfile(f"{folder}/{name}/__init__.py")):  # noqa: PTH113
            yield name


def call_when_imported(use: Callable[[Any], None], *names: str) -> None:
    """Call a function with each of the named modules after its import; at once for modules already imported."""
    missing = {name for name in names if name not in sys.modules}
    for name in names:
        if name not in missing:
            use(sys.modules[name])
    if missing:
        sys.meta_path.insert(0, _CallbackFinder(use, missing))


class _CallbackFinder:
    """Finder that calls a function with each of the named modules after its import."""

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
        own = getattr(loader, "__dict__", None)
        if not isinstance(own, dict) or not hasattr(loader, "exec_module"):
            return  # The loader's method cannot be replaced, so its modules have no callbacks.
        run: Callable[[ModuleType], None] = loader.exec_module

        def load(module: ModuleType) -> None:
            # Remove this replacement, so that further modules use the loader's own method.
            own.pop("exec_module", None)
            run(module)
            if module.__name__ in self._names:
                self._names.discard(module.__name__)
                self._use(module)

        loader.exec_module = load
