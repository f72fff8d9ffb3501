"""Code that makes a user's script work in a rank: unpickling, ``__main__``, source files, and edited modules."""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from math import inf
from types import CodeType, FunctionType, ModuleType
from typing import Any

from skyward_core.protocol.frame_codec import COMMAND_LINE_MARKER, COMMAND_LINE_TRAILER
from skyward_core.runtime import import_hooks_gc_pause_and_alias

_open = open  # saved here, because user code may replace built-in functions
OWN_PACKAGE = __name__.partition(".")[0]
INSTALLED = ("/site-packages/", "/dist-packages/")
# value for a module file that may have changed while it was loaded, so that its loaded version is unknown
UNKNOWN_HASH = ""
CTIME_SLACK = 20_000_000  # nanoseconds by which a file's change time may lag behind the system clock
MAX_MODULES = 2000  # maximum number of module files whose hashes are reported; no script has more


class LoadedModules:
    """Registry of the modules that user code has loaded from some folders, except for installed packages.

    Args:
        folders: Absolute paths, the working folder first. Files in the working folder are named by relative path,
            because the client has this folder at another path.

    Attributes:
        files: File -> hash of its content when it was loaded.
    """

    def __init__(self, folders: Iterable[str]) -> None:
        self.files: dict[str, str] = {}
        home, *others = folders
        self._home = home and home.rstrip("/") + "/"
        self._folders = tuple(folder.rstrip("/") + "/" for folder in (home, *others) if folder)
        self._seen: set[str] = set()
        self._count = 0
        self._lock = threading.Lock()
        self._since = time.time_ns()

    def scan(self) -> bool:
        """Search for newly loaded modules. Return whether there are any.

        A hash is valid only if the file has not changed since the previous scan. Callers therefore scan before and
        after code that imports modules.
        """
        with self._lock:
            files, now = self.files, len(sys.modules)
            if now != self._count:
                self._count = now
                for path in self._find_new():
                    name = path.removeprefix(self._home)
                    if name not in files and len(files) < MAX_MODULES:
                        files = files | {name: _hash_file(path, self._since - CTIME_SLACK)}
            found, self.files = files is not self.files, files
            self._since = time.time_ns()
            return found

    def _find_new(self) -> Iterator[str]:
        for name in list(sys.modules):
            if name in self._seen:
                continue
            self._seen.add(name)
            if name.partition(".")[0] == OWN_PACKAGE:
                continue
            path = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
            if type(path) is not str or not path.endswith(".py"):
                continue
            if path.startswith(self._folders) and not any(part in path for part in INSTALLED):
                yield path


def _hash_file(path: str, unchanged_since: float = inf) -> str:
    """Return a file's content hash; ``UNKNOWN_HASH`` if it is unreadable or changed after ``unchanged_since`` (ns)."""
    from skyward_core.util.content_hash import hash_bytes  # imported late, because it is rarely needed

    try:
        # O_NONBLOCK, because opening a named pipe would otherwise wait for a writer
        with _open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            changed = os.fstat(file.fileno()).st_ctime_ns
            return UNKNOWN_HASH if changed > unchanged_since else hash_bytes(file.read())
    except OSError:
        return UNKNOWN_HASH


# Objects pickled by value belong to no module of the rank. They are put into ``__main__``, where Python has a script's
# definitions. Child processes that multiprocessing starts without a fork ("spawn", "forkserver") load the same pickles
# when a name is first accessed. These children do not run the script again, because the node may lack the script's file
# or have another version, and because the script would create its pools again.


MAIN = "__main__"
# cloudpickle's functions that recreate functions and classes by value; plain Python pickles them by name
RECREATORS = {
    ("cloudpickle.cloudpickle", "_make_function"),
    ("cloudpickle.cloudpickle", "_make_skeleton_class"),
    ("cloudpickle.cloudpickle", "_make_skeleton_enum"),
    ("skyward_core.protocol.pickle_failures_and_reducers", "make_cached"),
    ("skyward_core.protocol.pickle_failures_and_reducers", "make_new_type"),
}
PICKLE_MARKER = b"pickl"  # text in each pickle that uses a function of RECREATORS

# Content of the file that child processes run instead of the script. The package is the first entry of sys.path only
# during the import, because the script's folder may contain modules with the same names.
CHILD_SCRIPT = """\
import sys
sys.path.insert(0, {root!r})
from skyward_core.node.worker.call_unpickling_and_script_modules import ChildMainNamespace
del sys.path[0]
__getattr__ = ChildMainNamespace({sources!r}, __file__, {files!r})
"""
SPAWNERS = ("multiprocessing.spawn", "multiprocess.spawn", "loky.backend.spawn", "joblib.externals.loky.backend.spawn")

# A pickle, or the path of a pickle file.
Source = bytes | str
# Arguments of :class:`SourceFiles`.
SourcePaths = tuple[str, ...]
MAPPED_FILES = 3  # length of a SourcePaths tuple if the working folder is a copy of the client's folder
# ``sys.argv`` and ``sys.orig_argv`` of the client.
CommandLine = tuple[list[str], list[str]]


class LoadedObject:
    """An unpickled function or its arguments."""

    # names: the script's definitions in the pickle, by name
    # spaces: globals of the script in the pickle
    # moved: the client's file name -> the node's file
    # file: the script's path on the client, or ""
    # stand_in: file that child processes run to load these names; "" until the file exists
    # words: the client's command line; None for arguments

    __slots__ = ("file", "moved", "names", "source", "spaces", "stand_in", "value", "words")

    def __init__(
        self, value: Any, source: Source, names: dict[str, Any], spaces: list[dict[str, Any]], moved: dict[str, str]
    ) -> None:
        self.value = value
        self.source = source
        self.names = names
        self.spaces = spaces
        self.moved = moved
        self.file = next((space["__file__"] for space in spaces if space.get("__file__")), "")
        self.stand_in = ""
        self.words: CommandLine | None = None

    def take_value(self) -> Any:
        """Return the object and drop this instance's reference to it, because the object may be large."""
        value, self.value = self.value, None
        return value


class RankMainModule(ModuleType):
    """``__main__`` of a rank. Exposes the globals of the running function and stores assignments there."""

    def __init__(self) -> None:
        super().__init__(MAIN)
        self.__dict__["__builtins__"] = sys.modules["builtins"]
        self.__dict__["_spaces"] = []

    def __getattr__(self, name: str) -> Any:
        for space in () if name.startswith("__") else self._spaces:
            if name in space:
                return space[name]
        raise AttributeError(f"module {MAIN!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        for space in self._spaces:
            if name in space:
                space[name] = value
        if name in vars(self) or not any(name in space for space in self._spaces):
            super().__setattr__(name, value)


class MainNamespaceLoader:
    """Unpickler of calls. ``__main__`` contains the script's names from the latest call."""

    # folder: private folder for the files that children run instead of the script
    # files: folders with the source of scripts
    # together: whether calls run concurrently; ``__main__`` then also retains names of earlier calls

    def __init__(self, folder: str, files: SourcePaths, *, together: bool = False) -> None:
        self._folder = folder
        self._files = files
        self._together = together
        # The worker itself was started as ``__main__``. Keep a reference to this module, because its code is still
        # running.
        self._started_by = sys.modules[MAIN]
        self._main = sys.modules[MAIN] = RankMainModule()
        self._scripts = {MAIN}
        self._installed: dict[str, Any] = {}
        self._latest: tuple[LoadedObject | None, LoadedObject | None] = (None, None)
        self._written = 0
        self._command_line: CommandLine | None = None
        self._moved: dict[str, str] = {}  # file name on the client -> file on the node
        import_hooks_gc_pause_and_alias.call_when_imported(
            lambda spawn: _patch_child_main(spawn, self._write_child_script), *SPAWNERS
        )

    def load(self, source: Source) -> LoadedObject:
        """Unpickle a function or arguments of a call."""
        command_line = _read_command_line(source)
        # Set sys.argv before unpickling, because modules that are imported then may parse the arguments.
        self._set_command_line(command_line)
        loaded = _load_object(source, self._scripts, self._files)
        loaded.words = command_line
        self._moved |= loaded.moved
        return loaded

    def _set_command_line(self, command_line: CommandLine | None) -> None:
        # Changes by user code persist for later calls with the same command line.
        if command_line is not None and command_line != self._command_line:
            self._command_line = command_line
            sys.argv[:] = command_line[0]
            sys.orig_argv[:] = [sys.executable, *command_line[1][1:]]
        sys.argv[:1] = [self._moved.get(each, each) for each in sys.argv[:1]]

    def to_client_paths(self, trace: str) -> str:
        """Replace the node's file names in a traceback by the client's file names, which the user knows."""
        for name, node_file in self._moved.items():
            trace = trace.replace(f'  File "{node_file}"', f'  File "{name}"')
        if len(self._files) == MAPPED_FILES and all(self._files):
            _, here, there = self._files
            trace = trace.replace(f'  File "{here}/', f'  File "{there}/')
        return trace

    def install(self, fn: LoadedObject, args: LoadedObject | None) -> None:
        """Make ``__main__`` contain only the definitions that a function and its arguments need.

        Earlier definitions are removed, because child processes could not find them.
        """
        if self._latest == (fn, args):
            return
        self._latest = fn, args
        self._set_command_line(fn.words)
        names = fn.names if args is None else fn.names | args.names
        space = vars(self._main)
        space["_spaces"] = fn.spaces if args is None else fn.spaces + args.spaces
        for name, value in () if self._together else self._installed.items():
            if name not in names and space.get(name) is value:
                del space[name]
        space.update(names)
        self._installed = names
        space.pop("__file__", None)
        if file := fn.file or (args.file if args is not None else ""):
            space["__file__"] = file

    def clear(self) -> None:
        self._installed = {}
        self._latest = None, None
        vars(self._main)["_spaces"] = []

    def _write_child_script(self) -> str:
        loaded = [each for each in self._latest if each is not None]
        # A whole script may have replaced ``__main__``. Children can then load the script's own file.
        if not loaded or sys.modules.get(MAIN) is not self._main:
            return ""
        if not loaded[-1].stand_in:
            sources = [each.source for each in loaded]
            for source in sources:
                # Check that the file exists. Otherwise the child would die, and multiprocessing's pool would start new
                # children forever.
                if isinstance(source, str) and not os.path.exists(source):  # noqa: PTH110  a worker has no pathlib
                    raise RuntimeError(
                        "the script's definitions were evicted from this node, so a process started by multiprocessing "
                        'with "spawn" or "forkserver" cannot import them. Start the process while the function that '
                        "needs it is running."
                    )
            # imported late, because child processes do not need it
            from skyward_core.node.worker.result_pickles_and_summaries import open_private

            self._written += 1
            path = f"{self._folder}/script.{os.getpid()}.{self._written}.py"
            root = __file__.rsplit("/", 4)[0]
            with _open(path, "w", encoding="utf-8", opener=open_private) as file:
                file.write(CHILD_SCRIPT.format(root=root, sources=sources, files=self._files))
                if script := vars(self._main).get("__file__"):
                    file.write(f"__file__ = {script!r}\n")
            loaded[-1].stand_in = path
        return loaded[-1].stand_in


def _patch_child_main(spawn: Any, stand_in: Callable[[], str]) -> None:
    """Make multiprocessing's child processes run the file that ``stand_in()`` names, instead of the script.

    If ``stand_in`` returns "", the children run the script as usual.
    """
    prepare: Callable[..., dict[str, Any]] = spawn.get_preparation_data

    def get_preparation_data(*args: Any, **kwargs: Any) -> dict[str, Any]:
        data = prepare(*args, **kwargs)
        # Set the entry, because child processes of loky load the script only if it exists.
        needs_path = "init_main_from_path" in data or "loky" not in spawn.__name__
        if needs_path and "init_main_from_name" not in data and (path := stand_in()):
            data["init_main_from_path"] = path
        return data

    spawn.get_preparation_data = get_preparation_data


class ChildMainNamespace:
    """``__getattr__`` of ``__main__`` in a child process: loads the script's definitions on first access."""

    # stand_in: file that the child and its own children run instead of the script

    def __init__(self, sources: Iterable[Source], stand_in: str, files: SourcePaths) -> None:
        self._sources = list(sources)
        self._files = files
        self._lock = threading.RLock()
        for spawn in filter(None, map(sys.modules.get, SPAWNERS)):
            _patch_child_main(spawn, lambda: stand_in)

    def __call__(self, name: str) -> Any:
        with self._lock:
            space = vars(sys.modules[MAIN])
            while self._sources and name not in space and not name.startswith("__"):
                import_hooks_gc_pause_and_alias.install()
                import_hooks_gc_pause_and_alias.install_gc_pause()
                space.update(_load_object(self._sources.pop(0), {MAIN}, self._files).names)
            if name in space:
                return space[name]
        raise AttributeError(f"module {MAIN!r} has no attribute {name!r}")


class _Unpickler(pickle.Unpickler):
    """Unpickler that records the functions and classes it recreates."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.made: list[Any] = []

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if (module, name) not in RECREATORS:
            return found
        records = self.made  # Bind the list, not self, because a closure over self would be a reference cycle.

        def make(*args: Any) -> Any:
            recreated = found(*args)
            records.append(recreated)
            return recreated

        return make


def _read_command_line(source: Source) -> CommandLine | None:
    with io.BytesIO(source) if isinstance(source, bytes) else _open(source, "rb") as file:
        end = file.seek(-COMMAND_LINE_TRAILER.size, os.SEEK_END)
        size, sign = COMMAND_LINE_TRAILER.unpack(file.read())
        if sign != COMMAND_LINE_MARKER:
            return None  # The pickle contains arguments, or an older client wrote it, so it has no command line.
        file.seek(end - size)
        words: CommandLine = pickle.load(file)
        return words


def _load_object(source: Source, scripts: set[str], files: SourcePaths) -> LoadedObject:
    if isinstance(source, bytes):
        value, made, defined_in = _unpickle(io.BytesIO(source))
    else:
        with _open(source, "rb", buffering=0) as file:
            value, made, defined_in = _unpickle(io.BufferedReader(file, 1 << 20))
    moved: dict[str, str] = {}
    if len(files) == MAPPED_FILES or any(not place for place, _, _ in defined_in.values()):
        moved = _set_file_names(made, defined_in, files)
    spaces = {id(each.__globals__): each.__globals__ for each in made if type(each) is FunctionType}
    ours = [space for space in spaces.values() if _is_script(space)]
    scripts.update(space["__name__"] for space in ours)
    for space in ours:
        space["__name__"] = MAIN
    return LoadedObject(value, source, _collect_names(made, ours, scripts), ours, moved)


def _unpickle(file: Any) -> tuple[Any, list[Any], dict[str, tuple[str, str, str]]]:
    """Return the object, all recreated functions and classes, and the files that define them."""
    unpickler = _Unpickler(file)
    value = unpickler.load()
    try:
        return value, unpickler.made, pickle.load(file)
    except EOFError:
        return value, unpickler.made, {}


def _set_file_names(made: list[Any], defined_in: dict[str, tuple[str, str, str]], files: SourcePaths) -> dict[str, str]:
    """Set the file names of code objects to the node's files. Return a mapping of client file names to node files."""
    own = SourceFiles(*files)
    found = own.find(defined_in)
    for fn in made:
        if type(fn) is FunctionType:
            if fn.__code__.co_filename in found:
                fn.__code__ = _with_file_name(fn.__code__, found)
            if file := fn.__globals__.get("__file__"):
                fn.__globals__["__file__"] = found.get(file) or own.copy_of(file) or file
    return found


def _with_file_name(code: CodeType, found: dict[str, str]) -> CodeType:
    inner = (_with_file_name(each, found) if type(each) is CodeType else each for each in code.co_consts)
    return code.replace(co_filename=found.get(code.co_filename, code.co_filename), co_consts=tuple(inner))


def _is_script(space: dict[str, Any]) -> bool:
    # A script from the command line has its file's name as ``__name__``, but in contrast to imported modules no
    # package, not even "" (:mod:`skyward_core.tasks.script_loader_child`).
    return space.get("__name__") == MAIN or ("__name__" in space and space.get("__package__", "") is None)


def _move_to_main(made: Any) -> None:
    # Only classes have ``__firstlineno__``. Python removes it when ``__module__`` is set.
    line = vars(made).get("__firstlineno__")
    with suppress(Exception):  # A class may reject assignments to its attributes.
        made.__module__ = MAIN
        if line is not None:
            made.__firstlineno__ = line


def _collect_names(made: list[Any], spaces: list[dict[str, Any]], scripts: set[str]) -> dict[str, Any]:
    """Move all definitions of the script to ``__main__``, and return them by name."""
    names = {}
    own = {}
    for each in made:
        if getattr(each, "__module__", None) in scripts:
            if each.__module__ != MAIN:
                _move_to_main(each)
            own[id(each)] = each
            if each.__qualname__.isidentifier():
                names[each.__qualname__] = each
    # Global names override ``__qualname__``, because the global name of a decorated function is the decorated object.
    for space in spaces:
        names |= {name: value for name, value in space.items() if id(value) in own}
    return names


class SourceFiles:
    """Source files of the client's scripts on the node.

    Args:
        sent: Folder of source files that clients have sent, by content hash.
        here: The working folder, or "".
        there: The client's folder that ``here`` is a copy of, or ""; None if both see the same files.
    """

    def __init__(self, sent: str, here: str = "", there: str | None = None) -> None:
        self._sent, self._here, self._there = sent, here, there
        # source file's name -> file with the script's text, and hash of this text
        self._registered: dict[str, tuple[str, str]] = {}
        self._waits = False

    def find(self, named: dict[str, tuple[str, str, str]]) -> dict[str, str]:
        """Return the files that have another path on the node: client's file name -> node's file.

        Args:
            named: Files in the format of :mod:`skyward_core.tasks.function_pickling`.
        """
        found = {}
        for name, (place, content, called) in named.items():
            sent = f"{self._sent}/{content}/{called}"
            if not place:
                self._register_source(name, sent, content)
            elif self._there is not None:
                found[name] = self._find_own(place, content, sent) or name
        return found

    def copy_of(self, place: str) -> str:
        """Return the path of the node's copy of a client's file, or "" if there is no copy."""
        inside = self._there and self._here and place.startswith(f"{self._there}/")
        return f"{self._here}{place[len(self._there or '') :]}" if inside else ""

    def _find_own(self, place: str, content: str, sent: str) -> str:
        copy = self.copy_of(place)
        if not os.path.isfile(copy):  # noqa: PTH113  a worker has no pathlib
            return sent if os.path.exists(sent) else ""  # noqa: PTH110
        self._register_source(copy, sent, content)
        return copy

    def _register_source(self, name: str, file: str, content: str) -> None:
        """Make tracebacks and :mod:`inspect` find the client's source text under a file name of the node."""
        if not os.path.exists(file):  # noqa: PTH110
            return
        self._registered[name] = file, content
        if "linecache" in sys.modules or not self._waits:
            self._waits = True
            import_hooks_gc_pause_and_alias.call_when_imported(self._fill_linecache, "linecache")

    def _fill_linecache(self, linecache: Any) -> None:
        import tokenize

        for name, (file, content) in self._registered.items():
            if _hash_file(name) == content:  # Python can read the file itself, because the node's copy is unedited.
                continue
            try:
                with tokenize.open(file) as text:
                    lines = text.readlines()
            except (OSError, SyntaxError, UnicodeDecodeError):
                # The file is missing or has an invalid encoding, so tracebacks show no lines, as in plain Python.
                continue
            # Entries without a modification time are not checked against the disk.
            linecache.cache[name] = sum(map(len, lines)), None, lines, name
        self._registered.clear()
