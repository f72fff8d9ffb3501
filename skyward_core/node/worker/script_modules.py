"""The script's modules and their source in a rank."""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

from skyward_core.protocol.frame_codec import COMMAND_LINE_MARKER, COMMAND_LINE_TRAILER
from skyward_core.runtime import import_hooks

_open = open  # user code may put something else in the place of what is built in
OWN_PACKAGE = __name__.partition(".")[0]
INSTALLED = ("/site-packages/", "/dist-packages/")
UNKNOWN_HASH = ""  # what stands for a file that changed while it may have been loaded
CTIME_SLACK = 20_000_000  # nanoseconds by which a file's time may be behind the clock
MAX_MODULES = 2000  # files; what is more is no script's


class LoadedModules:
    """Modules below some folders, unless they were installed there.

    Args:
        folders: whole paths, the working folder's first. What lies in that one is called by its path from there: the
            client has it elsewhere.

    Attributes:
        files: their files, and the hash of each one's content when it was loaded.
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
        """Look whether there are more. Between two looks is when those were loaded that the second one finds, so that
        this is for the beginning of what loads some, and for its end."""
        with self._lock:
            files, now = self.files, len(sys.modules)
            if now != self._count:
                self._count = now
                for path in self._find_new():
                    name = path.removeprefix(self._home)
                    if name not in files and len(files) < MAX_MODULES:
                        files = files | {name: self._hash(path)}
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

    def _hash(self, path: str) -> str:
        from skyward_core.util.content_hash import hash_bytes

        try:
            # A pipe that was put in its place since would have us wait for who writes.
            with _open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                changed = os.fstat(file.fileno()).st_ctime_ns
                return UNKNOWN_HASH if changed > self._since - CTIME_SLACK else hash_bytes(file.read())
        except OSError:
            return UNKNOWN_HASH


# What travels by value stands in no module of the rank. It is put into ``__main__``, where Python has what a script
# defines. A child that is no fork of the rank ("spawn", "forkserver") makes it again from the same bytes, when it is
# first asked for a name. The script is not run again for that: the node may have no file of it, or another version, and
# its pools are none of the child's business.


_builtin_open = open  # user code may put something else in the place of what is built in
MAIN = "__main__"
RECREATORS = {  # of what goes by name in a plain process
    ("cloudpickle.cloudpickle", "_make_function"),
    ("cloudpickle.cloudpickle", "_make_skeleton_class"),
    ("cloudpickle.cloudpickle", "_make_skeleton_enum"),
    ("skyward_core.protocol.pickle_errors", "make_cached"),
    ("skyward_core.protocol.pickle_errors", "make_new_type"),
}
PICKLE_MARKER = b"pickl"  # in every pickle that makes something by one of them

# What a child runs in the place of the script. We come first for a moment: the script's folder may shadow us.
CHILD_SCRIPT = """\
import sys
sys.path.insert(0, {root!r})
from skyward_core.node.worker.script_modules import ChildMainNamespace
del sys.path[0]
__getattr__ = ChildMainNamespace({sources!r}, __file__, {files!r})
"""
SPAWNERS = (
    "multiprocessing.spawn",
    "multiprocess.spawn",
    "loky.backend.spawn",
    "joblib.externals.loky.backend.spawn",
)
FILE_LINE = "__file__ = {file!r}\n"

Source = bytes | str
"""A pickle, or the path of its file."""
SourcePaths = tuple[str, ...]
"""What :class:`SourceFiles` is made of."""
MAPPED_FILES = 3  # of them, where the client's files are copies here
CommandLine = tuple[list[str], list[str]]
"""``sys.argv`` and ``sys.orig_argv`` of the client."""


class LoadedObject:
    """An unpickled object."""

    # names: what of the script came with it, by name
    # spaces: the script's globals, as far as they came
    # moved: the node's own files of it, by the client's names
    # file: the script's path on the client, or ""
    # stand_in: the file that children run which look for those names; "" until there is one
    # words: the client's command line; None for arguments

    __slots__ = ("file", "moved", "names", "source", "spaces", "stand_in", "value", "words")

    def __init__(
        self,
        value: Any,
        source: Source,
        names: dict[str, Any],
        spaces: list[dict[str, Any]],
        moved: dict[str, str],
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
        """The object, which lives no longer than whoever takes it has it: it may be large."""
        value, self.value = self.value, None
        return value


class RankMainModule(ModuleType):
    """``__main__`` of a rank. What its function has as globals is there as long as it runs, and is set there."""

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
    """Unpickler of calls; ``__main__`` holds the names that the latest call brought of its script."""

    # folder: where stand-ins for the script are written; nobody else may write there
    # files: where the node has the source of scripts
    # together: whether calls run at one time; then ``__main__`` goes on holding what earlier ones brought

    def __init__(self, folder: str, files: SourcePaths, *, together: bool = False) -> None:
        self._folder = folder
        self._files = files
        self._together = together
        self._started_by = sys.modules[MAIN]  # its code still runs
        self._main = sys.modules[MAIN] = RankMainModule()
        self._scripts = {MAIN}
        self._installed: dict[str, Any] = {}
        self._latest: tuple[LoadedObject | None, LoadedObject | None] = (None, None)
        self._written = 0
        self._command_line: CommandLine | None = None
        self._moved: dict[str, str] = {}  # the node's own files, by the clients' names
        import_hooks.call_when_imported(self._patch, *SPAWNERS)

    def load(self, source: Source) -> LoadedObject:
        """Unpickle what a call needs."""
        words = _read_command_line(source)
        self._set_command_line(words)  # modules that the function imports may parse them
        loaded = _load_object(source, self._scripts, self._files)
        loaded.words = words
        self._moved |= loaded.moved
        return loaded

    def _set_command_line(self, words: CommandLine | None) -> None:
        # User code may change them: they stay changed for later calls with the same words.
        if words is not None and words != self._command_line:
            self._command_line = words
            sys.argv[:] = words[0]
            sys.orig_argv[:] = [sys.executable, *words[1][1:]]
        sys.argv[:1] = [self._moved.get(each, each) for each in sys.argv[:1]]

    def to_client_paths(self, trace: str) -> str:
        """Return a traceback with the client's names of files: the user reads it there."""
        for name, own in self._moved.items():
            trace = trace.replace(f'  File "{own}"', f'  File "{name}"')
        if len(self._files) == MAPPED_FILES and all(self._files):
            _, here, there = self._files
            trace = trace.replace(f'  File "{here}/', f'  File "{there}/')
        return trace

    def install(self, fn: LoadedObject, args: LoadedObject | None) -> None:
        """Have ``__main__`` hold what came with a function and its arguments, and nothing of earlier ones: a child
        could not find that."""
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

    def _patch(self, spawn: Any) -> None:
        _patch_child_main(spawn, self._write_child_script)

    def _write_child_script(self) -> str:
        loaded = [each for each in self._latest if each is not None]
        if not loaded or sys.modules.get(MAIN) is not self._main:  # a whole script is in its place: it has a file
            return ""
        if not loaded[-1].stand_in:
            sources = [each.source for each in loaded]
            for source in sources:
                # The child would die, and a pool of multiprocessing start another, for ever.
                if isinstance(source, str) and not os.path.exists(source):  # noqa: PTH110  a worker has no pathlib
                    raise RuntimeError(
                        "the node has made room for other runs, and what the script defines is no more there for a "
                        'process that multiprocessing starts by "spawn" or "forkserver": start it while the function '
                        "runs that needs it"
                    )
            from skyward_core.node.worker.result_summaries import open_private  # children have no need of it

            self._written += 1
            path = f"{self._folder}/script.{os.getpid()}.{self._written}.py"
            root = __file__.rsplit("/", 4)[0]
            with _builtin_open(path, "w", encoding="utf-8", opener=open_private) as file:
                file.write(CHILD_SCRIPT.format(root=root, sources=sources, files=self._files))
                if script := vars(self._main).get("__file__"):
                    file.write(FILE_LINE.format(file=script))
            loaded[-1].stand_in = path
        return loaded[-1].stand_in


def _patch_child_main(spawn: Any, stand_in: Callable[[], str]) -> None:
    """Have multiprocessing's children run a file in the place of the script, unless it is ""."""
    prepare: Callable[..., dict[str, Any]] = spawn.get_preparation_data

    def get_preparation_data(*args: Any, **kwargs: Any) -> dict[str, Any]:
        data = prepare(*args, **kwargs)
        # Children of loky have need of the script only where it says so.
        wanted = "init_main_from_path" in data or "loky" not in spawn.__name__
        if wanted and "init_main_from_name" not in data and (path := stand_in()):
            data["init_main_from_path"] = path
        return data

    spawn.get_preparation_data = get_preparation_data


class ChildMainNamespace:
    """``__getattr__`` of a child's ``__main__``: what the script defines, made when it is first asked for."""

    # stand_in: the file that the child runs in the place of the script, and its own children, too

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
                import_hooks.install()
                import_hooks.install_gc_pause()
                space.update(_load_object(self._sources.pop(0), {MAIN}, self._files).names)
            if name in space:
                return space[name]
        raise AttributeError(f"module {MAIN!r} has no attribute {name!r}")


class _Unpickler(pickle.Unpickler):
    """Notes which functions and classes are made anew."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.made: list[Any] = []

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if (module, name) not in RECREATORS:
            return found
        noted = self.made  # not self, which would live until somebody looks for garbage

        def make(*args: Any) -> Any:
            made = found(*args)
            noted.append(made)
            return made

        return make


def _read_command_line(source: Source) -> CommandLine | None:
    with io.BytesIO(source) if isinstance(source, bytes) else _builtin_open(source, "rb") as file:
        end = file.seek(-COMMAND_LINE_TRAILER.size, os.SEEK_END)
        size, sign = COMMAND_LINE_TRAILER.unpack(file.read())
        if sign != COMMAND_LINE_MARKER:
            return None  # of arguments, or of a client of an older release
        file.seek(end - size)
        words: CommandLine = pickle.load(file)
        return words


def _load_object(source: Source, scripts: set[str], files: SourcePaths) -> LoadedObject:
    if isinstance(source, bytes):
        value, made, defined_in = _unpickle(io.BytesIO(source))
    else:
        with _builtin_open(source, "rb", buffering=0) as file:
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
    """The object, what was made anew for it, and which files define that."""
    unpickler = _Unpickler(file)
    value = unpickler.load()
    try:
        return value, unpickler.made, pickle.load(file)
    except EOFError:
        return value, unpickler.made, {}


def _set_file_names(made: list[Any], defined_in: dict[str, tuple[str, str, str]], files: SourcePaths) -> dict[str, str]:
    """Have functions say that they are of the node's own files; gives these, by the client's names."""
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
    # What the command line loads has its file's name, but unlike a module that was imported belongs to no package, not
    # even to "" (:mod:`skyward_core.tasks.loader`).
    return space.get("__name__") == MAIN or ("__name__" in space and space.get("__package__", "") is None)


def _move_to_main(made: Any) -> None:
    line = vars(made).get("__firstlineno__")  # of a class; to Python that belongs to the module, and goes with it
    with suppress(Exception):  # a class may refuse
        made.__module__ = MAIN
        if line is not None:
            made.__firstlineno__ = line


def _collect_names(made: list[Any], spaces: list[dict[str, Any]], scripts: set[str]) -> dict[str, Any]:
    """What the script defines, by name; from now on all of it says that it is ``__main__``'s."""
    names = {}
    own = {}
    for each in made:
        if getattr(each, "__module__", None) in scripts:
            if each.__module__ != MAIN:
                _move_to_main(each)
            own[id(each)] = each
            if each.__qualname__.isidentifier():
                names[each.__qualname__] = each
    for space in spaces:  # there, a name is what decorators have made of it
        for name, value in space.items():
            if id(value) in own:
                names[name] = value
    return names


class SourceFiles:
    """Finds them.

    Args:
        sent: the folder with what clients have sent, by content.
        here: the working folder, or "".
        there: the client's, of which that is a copy, or ""; None where both see the same files.
    """

    def __init__(self, sent: str, here: str = "", there: str | None = None) -> None:
        self._sent, self._here, self._there = sent, here, there
        self._registered: dict[str, tuple[str, str]] = {}  # by name, the file that has the text, and its content
        self._waits = False

    def find(self, named: dict[str, tuple[str, str, str]]) -> dict[str, str]:
        """The node's own files, by the client's names, where these are not the same.

        Args:
            named: as :mod:`skyward_core.tasks.function_pickling` has it.
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
        """Where the copy of a client's file is, or ""."""
        inside = self._there and self._here and place.startswith(f"{self._there}/")
        return f"{self._here}{place[len(self._there or '') :]}" if inside else ""

    def _find_own(self, place: str, content: str, sent: str) -> str:
        copy = self.copy_of(place)
        if not os.path.isfile(copy):  # noqa: PTH113  a worker has no pathlib
            return sent if os.path.exists(sent) else ""  # noqa: PTH110
        self._register_source(copy, sent, content)
        return copy

    def _register_source(self, name: str, file: str, content: str) -> None:
        """Have tracebacks and :mod:`inspect` find a text by a name, when they look for it."""
        if not os.path.exists(file):  # noqa: PTH110
            return
        self._registered[name] = file, content
        if "linecache" in sys.modules or not self._waits:
            self._waits = True
            import_hooks.call_when_imported(self._fill_linecache, "linecache")

    def _fill_linecache(self, linecache: Any) -> None:
        import tokenize

        for name, (file, content) in self._registered.items():
            if _has_content(name, content):  # a copy that nobody has edited since it travelled
                continue
            try:
                with tokenize.open(file) as text:
                    lines = text.readlines()
            except (OSError, SyntaxError, UnicodeDecodeError):
                continue  # gone, or in no encoding that it names: it shows no lines, as in a plain process
            # Without a time it is never looked for on the disk.
            linecache.cache[name] = sum(map(len, lines)), None, lines, name
        self._registered.clear()


def _has_content(file: str, content: str) -> bool:
    from skyward_core.util.content_hash import hash_bytes  # few ranks come to look at a text

    try:
        # A pipe that was put in its place since would have us wait for who writes.
        with _builtin_open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as read:
            return hash_bytes(read.read()) == content
    except OSError:
        return False
