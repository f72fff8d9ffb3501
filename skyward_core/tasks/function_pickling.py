"""Functions and arguments pickled by value, with their source.

Pickling happens in the process that owns the objects (a script's). All later stages handle opaque bytes.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import io
import linecache
import os
import pickle
import re
import sys
import tempfile
import types
import typing
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from operator import is_
from pathlib import Path
from types import CodeType, FunctionType, GeneratorType, ModuleType
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import cloudpickle

from skyward_core.model.errors import NotPicklableError, UsageError
from skyward_core.model.function import PendingFunction, check_call
from skyward_core.plugins.plugin import decorate_function
from skyward_core.protocol import pickle_failures_and_reducers as reducers
from skyward_core.protocol.frame_codec import (
    COMMAND_LINE_MARKER,
    COMMAND_LINE_TRAILER,
    MAX_INLINE_BYTES,
    AnyHeader,
    is_plain,
)
from skyward_core.runtime.rank_side_async_stream_and_map_calls import (
    MapChunkFunction,
    StreamedArgument,
    adapt_async_function,
)
from skyward_core.tasks.guarded_user_code import describe_exception, run_guarded
from skyward_core.tasks.pickled_calls_and_blobs import EMPTY_BLOB, Blob, SourceText, Task
from skyward_core.tasks.script_stdout_beside_rank_lines import is_stdout
from skyward_core.util.content_hash import BLOB_PREFIX, ContentHash, hash_bytes
from skyward_core.util.safe_file_access import read_bytes, resolve_path

# Type of a call's iterator arguments: for each, the name of its parameter and the iterable of its values.
IteratorFeeds = tuple[tuple[str, Iterable[Any]], ...]

_iterator_parameters: WeakKeyDictionary[FunctionType, frozenset[str]] = WeakKeyDictionary()


def split_feeds(pending: PendingFunction[Any]) -> tuple[PendingFunction[Any], IteratorFeeds]:
    """Replace the iterator arguments of a call by placeholders. Return the new call and the iterators.

    Iterator arguments are generators, and the arguments of parameters annotated ``Iterator[...]`` or
    ``Generator[...]``.
    """
    fn = pending.fn
    iterables = _find_iterator_parameters(fn) if type(fn) is FunctionType and fn.__annotations__ else frozenset()
    if not iterables and not any(type(each) is GeneratorType for each in (*pending.args, *pending.kwargs.values())):
        return pending, ()
    feeds: list[tuple[str, Iterable[Any]]] = []

    def replace_feed(name: str, value: Any) -> Any:
        if type(value) is GeneratorType or (name in iterables and isinstance(value, Iterable)):
            feeds.append((name, value))
            return StreamedArgument(len(feeds) - 1, name)
        return value

    names = _positional_names(fn, len(pending.args))
    args = tuple(replace_feed(name, value) for name, value in zip(names, pending.args, strict=True))
    kwargs = {name: replace_feed(name, value) for name, value in pending.kwargs.items()}
    return (PendingFunction(fn, args, kwargs, pending.timeout), tuple(feeds)) if feeds else (pending, ())


def reject_shared_iterators(feeds: IteratorFeeds, seen: set[int]) -> None:
    """Reject an iterator that several arguments share. Each argument is read in its own thread, so each would miss
    values.

    Args:
        seen: Ids of the iterators of earlier calls. The ids of this call's iterators are added.

    Raises:
        UsageError: If two arguments are the same iterator.
    """
    for name, values in feeds:
        if isinstance(values, Iterator):
            if id(values) in seen:
                raise UsageError(
                    f"argument {name!r} is an iterator that another argument uses, too. Create one iterator for each, "
                    "or use itertools.tee"
                )
            seen.add(id(values))


def _positional_names(fn: Callable[..., Any], count: int) -> list[str]:
    if type(fn) is FunctionType:
        code = fn.__code__
        names = list(code.co_varnames[: code.co_argcount])[:count]
    else:
        names = []
    return names + [f"argument {number}" for number in range(len(names), count)]


def _find_iterator_parameters(fn: FunctionType) -> frozenset[str]:
    """Return the parameters that are annotated as iterators."""
    if (known := _iterator_parameters.get(fn)) is None:
        known = _iterator_parameters[fn] = frozenset(
            name for name, note in _type_hints(fn).items() if _is_iterator_type(note)
        )
    return known


def _type_hints(fn: FunctionType) -> AnyHeader:
    try:
        return typing.get_type_hints(fn)
    except Exception:  # noqa: BLE001  an annotation may name something that only type checkers import
        return inspect.get_annotations(fn)


def _is_iterator_type(note: Any) -> bool:
    if isinstance(note, str):
        return note.partition("[")[0].rpartition(".")[2] in ("Iterator", "Generator")
    return (typing.get_origin(note) or note) in (Iterator, Generator)


T = TypeVar("T")
_MISSING = object()  # marks a global variable that a function uses but that is not defined
_IMMUTABLE_TYPES = frozenset((type(None), bool, int, float, complex, str, bytes, ModuleType, object))
_BUILT_IN_TYPES = frozenset((object, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset))
# Names of the module globals that cloudpickle includes in the pickle of every function.
_MODULE_GLOBALS = ("__package__", "__name__", "__path__", "__file__")


# Type of a fingerprint: all objects that determine a function's pickle and, if they include modules, a value that
# identifies the loaded modules.
_Fingerprint = tuple[tuple[Any, ...], tuple[int, str] | None]


class PickleCache(Generic[T]):
    """Cache of values computed from functions, kept while the functions live.

    Args:
        keeps: Returns whether a value is worth the memory.
    """

    def __init__(self, keeps: Callable[[T], bool]) -> None:
        self._is_cacheable = keeps
        # function -> its code, the names in the code, its fingerprint, and the cached value
        self._entries: WeakKeyDictionary[FunctionType, tuple[CodeType, tuple[str, ...], _Fingerprint | None, T]] = (
            WeakKeyDictionary()
        )

    def get(self, fn: Callable[..., Any], make: Callable[[], T]) -> T:
        """Return the cached value of a function if the function has not changed, otherwise the value that ``make``
        returns."""
        if type(fn) is not FunctionType:
            return make()
        code, found = fn.__code__, self._entries.get(fn)
        names = found[1] if found is not None and found[0] is code else tuple(_code_names(code))
        # Compute the fingerprint before the pickle, because the function may change during ``make``.
        parts = _fingerprint(fn, names)
        if found is not None and _is_same(parts, found[2]):
            return found[3]
        made = make()
        if self._is_cacheable(made):
            self._entries[fn] = code, names, parts, made
        return made


def _is_same(parts: _Fingerprint | None, others: _Fingerprint | None) -> bool:
    """Check whether two fingerprints are identical, because equal objects may have different types."""
    if parts is None or others is None or parts[1] != others[1] or len(parts[0]) != len(others[0]):
        return False
    return all(map(is_, parts[0], others[0]))


def _fingerprint(fn: FunctionType, names: tuple[str, ...]) -> _Fingerprint | None:
    """Return all objects that determine a function's pickle. None if other objects may also determine it.

    Args:
        names: Names used in the function's code and in nested code; some of these names are globals.
    """
    if fn.__module__ != "__main__" and "<locals>" not in fn.__qualname__:
        # Not cached, because cloudpickle may store only a name, which is fast but depends on the loaded modules.
        return None
    if fn.__dict__ or fn.__kwdefaults__ or getattr(fn, "__type_params__", None):
        return None
    notes = fn.__annotations__
    if not all(type(note) is str or (type(note) is type and note in _BUILT_IN_TYPES) for note in notes.values()):
        return None
    defaults, space = fn.__defaults__ or (), fn.__globals__
    try:
        enclosed = [cell.cell_contents for cell in fn.__closure__ or ()]
    except ValueError:  # not cached, because a closure variable has no value yet
        return None
    values = (
        *(space.get(name, _MISSING) for name in _MODULE_GLOBALS), *(space.get(name, _MISSING) for name in names),
        *defaults, *enclosed, fn.__name__, fn.__qualname__, fn.__module__, fn.__doc__, *sys.argv, len(sys.argv),
    )  # fmt: skip
    kinds = set(map(type, values))
    if not kinds <= _IMMUTABLE_TYPES:
        return None
    loaded = None
    if ModuleType in kinds:
        by_value = tuple(f"{name}." for name in cloudpickle.list_registry_pickle_by_value())
        for module in (value for value in values if type(value) is ModuleType):
            if sys.modules.get(module.__name__) is not module or f"{module.__name__}.".startswith(by_value):
                return None  # not cached, because the pickle contains the module itself, which may change
        # The pickle also depends on the submodules that the function can access.
        try:
            loaded = len(sys.modules), next(reversed(sys.modules))
        except RuntimeError:
            # The set of modules changed during the iteration, because another thread is importing a module.
            return None
    return (fn.__code__, *notes, *notes.values(), len(notes), *values), loaded


def _code_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _code_names(constant)


MAX_SOURCE_BYTES = 1 << 18  # bytes; the source text of a larger script is not sent to the nodes
SITE_PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

SourceIndex = dict[str, tuple[str, str, str]]


def collect_sources(names: Iterable[str]) -> tuple[SourceIndex, tuple[SourceText, ...]]:
    """Return the sources of code objects: an index by ``co_filename``, and the texts to send to nodes.

    Args:
        names: Values of ``co_filename``. Names without source, and installed files, are skipped.
    """
    named, found = {}, []
    for name in names:
        source = _find_source(name)
        if source is not None:
            named[name] = source.place, source.hash, source.name
            found.append(source)
    return named, tuple(found)


def _find_source(name: str) -> SourceText | None:
    if name.startswith("<frozen ") or name == "<string>" or _is_installed(name):
        return None
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        lines = linecache.cache[name][2] if len(linecache.cache.get(name, ())) == 4 else ()  # type: ignore[misc]
        return _source_from_text("".join(lines)) if lines else None
    return _source_from_file(name, found.st_mtime_ns, found.st_size)


@lru_cache(64)
def _source_from_text(text: str) -> SourceText | None:
    data = text.encode(errors="surrogatepass")
    return SourceText(hash_bytes(data), "cell.py", "", data) if len(data) <= MAX_SOURCE_BYTES else None


@lru_cache(64)
def _source_from_file(name: str, changed: int, size: int) -> SourceText | None:
    path = resolve_path(name)
    try:
        data = read_bytes(path, MAX_SOURCE_BYTES) if size <= MAX_SOURCE_BYTES else b""
    except OSError:
        return None
    file_name = path.name if PLAIN_NAME.fullmatch(path.name) else "script.py"
    return SourceText(hash_bytes(data), file_name, str(path), data) if data else None


@lru_cache(256)
def _is_installed(name: str) -> bool:
    ours = Path(__file__).parents[1]
    library = Path(os.__file__).parent
    return bool(SITE_PACKAGES.search(name)) or any(
        name.startswith(f"{folder}{os.sep}") for folder in (ours, library, Path(sys.base_prefix) / "lib")
    )


# Calls with at most this number of arguments are pickled without cloudpickle if all arguments are simple.
MAX_PLAIN_ARGUMENTS = 8
THREADED_HASH_BYTES = 1 << 20  # bytes; a write of at least this size is hashed in another thread, which saves time


def make_task(pending: PendingFunction[Any], plugins: Any = (), folder: Path | None = None) -> Task:
    """Return a call as a pickled task.

    Args:
        plugins: Plugins whose ``decorate`` hooks wrap the function. The first plugin is the outermost.
        folder: Folder for large blobs; None for a temporary folder.

    Raises:
        NotPicklableError: If an argument or a captured object cannot be pickled. The message names the object.
        TypeError: If the function does not take these arguments.
        UsageError: If two arguments are the same iterator.
    """
    return next(make_tasks((pending,), plugins, folder))


def make_tasks(pendings: tuple[PendingFunction[Any], ...], plugins: Any, folder: Path | None) -> Iterator[Task]:
    """Return many calls as pickled tasks. A function that occurs in several calls is pickled once.

    Raises:
        NotPicklableError, TypeError, UsageError: In the same cases as in :func:`make_task`.
    """
    made: dict[int, tuple[Blob, Callable[..., Any]]] = {}
    seen: set[int] = set()
    for pending in pendings:
        blob, fn = made.get(id(pending.fn), (None, None))
        if fn is None:
            fn = decorate_function(plugins, adapt_async_function(pending.fn))
        check_call(pending, fn)
        if blob is None:
            blob = _pickle_function(fn, pending.name, folder)
            made[id(pending.fn)] = blob, fn
        sent, feeds = split_feeds(pending)
        reject_shared_iterators(feeds, seen)
        yield Task(
            pending.name,
            blob,
            pickle_arguments(sent, folder),
            pending.timeout,
            pending.streams,
            pending.is_script,
            feeds=feeds,
            pickled=dumps,
            nodes=pending.nodes,
        )


def make_map_function(fn: Callable[..., Any], name: str, plugins: Any, folder: Path | None) -> Task:
    """Return the task that all calls of a map share. It contains the function, which takes a chunk of items.

    Raises:
        NotPicklableError: If an object that the function captures cannot be pickled.
    """
    return Task(
        name,
        _pickle_function(MapChunkFunction(decorate_function(plugins, adapt_async_function(fn))), name, folder),
        EMPTY_BLOB,
    )


def make_map_task(shared: Task, first: int, items: list[Any], timeout: float | None, folder: Path | None) -> Task:
    """Return the task of one call of a map.

    Args:
        first: Index of the first item.

    Raises:
        NotPicklableError: If an item cannot be pickled. The message names the item.
    """
    args = pickle_arguments(PendingFunction(_NamedStub(shared.name), (first, items)), folder)
    return Task(shared.name, shared.fn, args, timeout)


class _NamedStub:
    """Stand-in for the function of a map, so that errors about items contain the function's name."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, first: int, items: list[Any]) -> None: ...


def pickle_arguments(pending: PendingFunction[Any], folder: Path | None) -> Blob:
    if not pending.args and not pending.kwargs:
        return EMPTY_BLOB
    if len(pending.args) <= MAX_PLAIN_ARGUMENTS and not pending.kwargs and all(map(is_plain, pending.args)):
        data = pickle.dumps((pending.args, {}), protocol=5)
        return Blob(hash_bytes(data), len(data), data=data)
    blob, error = run_guarded(lambda: _pickle_to_blob((pending.args, pending.kwargs), folder))
    if blob is None:
        raise _pickling_error(
            f"the arguments of {pending.name}()", error, lambda _: _find_unpicklable(pending)
        ) from error
    return blob


class _ExampleTypedDict(typing.TypedDict):
    pass


_TYPED_DICT = type(_ExampleTypedDict)
_make_function = cloudpickle.cloudpickle._make_function
_make_skeleton_class = cloudpickle.cloudpickle._make_skeleton_class
_reduce_file = cloudpickle.CloudPickler.dispatch_table[io.TextIOWrapper]


def _reduce_file_or_stdout(file: io.TextIOWrapper) -> Any:
    return (getattr, (sys, "stdout")) if is_stdout(file) else _reduce_file(file)


def _reduce_cached(function: Any) -> Any:
    if _is_importable(function):
        return function.__reduce__()
    parameters = function.cache_parameters()
    made_of = function.__wrapped__, parameters["maxsize"], parameters["typed"]
    return reducers.make_cached, made_of, function.__dict__


def _reduce_new_type(kind: Any) -> Any:
    if _is_importable(kind):
        return kind.__reduce__()
    return reducers.make_new_type, (kind.__name__, kind.__supertype__), kind.__dict__


def _reduce_context_var(variable: contextvars.ContextVar[Any]) -> Any:
    """Reduce a context variable to a module's attribute, or to a new variable. Omit its value, which is per thread."""
    # Skip the script's module, not the name "__main__": multiprocessing also registers it as "__mp_main__".
    script = sys.modules.get("__main__")
    for name, module in list(sys.modules.items()):
        held = getattr(module, "__dict__", {})
        if module is not script and any(each is variable for each in list(held.values())):
            attribute = next(key for key, each in held.items() if each is variable)
            if not any(f"{name}.".startswith(f"{each}.") for each in cloudpickle.list_registry_pickle_by_value()):
                return getattr, (module, attribute)
    try:
        default = {"default": contextvars.Context().run(variable.get)}
    except LookupError:
        default = {}
    return functools.partial(contextvars.ContextVar, variable.name, **default), ()


def _reduce_weak_mapping(held: Any) -> Any:
    """Reduce a weak mapping, such as the cache of ``functools.singledispatch``, to its class and a plain dict."""
    return type(held), (dict(held),)


def _is_importable(value: Any) -> bool:
    """Check whether a node can import a value by its name. Definitions of a script cannot be imported."""
    name = value.__module__ or ""
    if name == "__main__" or any(
        name == each or name.startswith(f"{each}.") for each in cloudpickle.list_registry_pickle_by_value()
    ):
        return False
    found: Any = sys.modules.get(name)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Pickler of calls, which extends cloudpickle's pickler.

    ``sys.stdout`` is replaced by the node's ``sys.stdout``, also behind ``SharedStdout``. Cached functions and new
    types of a script are pickled by value. A nested class keeps its qualified name, and a class keeps its
    ``__slots__``.
    """

    dispatch_table = cloudpickle.CloudPickler.dispatch_table.new_child(
        {
            types.CodeType: reducers.reduce_code,
            io.TextIOWrapper: _reduce_file_or_stdout,
            functools._lru_cache_wrapper: _reduce_cached,
            functools.cached_property: reducers.reduce_cached_property,
            typing.NewType: _reduce_new_type,
            contextvars.ContextVar: _reduce_context_var,
            weakref.WeakKeyDictionary: _reduce_weak_mapping,
            weakref.WeakValueDictionary: _reduce_weak_mapping,
        }
    )

    def __init__(self, file: Any, protocol: int) -> None:
        super().__init__(file, protocol=protocol)
        # Names of the files that define the objects pickled by value; a dict keeps their order.
        self.files: dict[str, None] = {}

    def reducer_override(self, value: Any) -> Any:
        if reducers.has_tblib_reducer(value):
            return value.__reduce_ex__(5)
        made = super().reducer_override(value)
        if type(made) is tuple:
            if made[0] is _make_function:
                self.files[value.__code__.co_filename] = None
            elif made[0] is _make_skeleton_class:
                if file := getattr(sys.modules.get(value.__module__), "__file__", None):
                    self.files[file] = None
                if "." in value.__qualname__:
                    made[2][0]["__qualname__"] = value.__qualname__
                bases = made[1][2]
                # Replace the base dict of a TypedDict that derives from another TypedDict, because class creation
                # rejects dict.
                if type(value) is _TYPED_DICT and bases == (dict,):
                    made = made[0], (*made[1][:2], (typing.TypedDict,), *made[1][3:]), *made[2:]
                # cloudpickle 3.1.3 sets __slots__ after the class is created, without effect: unpickled instances would
                # have attributes that the class has no slots for. A NamedTuple is not affected, because it sets
                # __slots__ itself.
                if "__slots__" in made[2][0] and typing.NamedTuple not in bases:
                    made[1][3]["__slots__"] = made[2][0].pop("__slots__")
        return made


class _SpoolFile(io.RawIOBase):
    """Target of a pickle: memory while the pickle is small, then a file. Hashes the bytes while they are written."""

    def __init__(self, folder: Path | None) -> None:
        self.size = 0
        self._folder = folder
        self._pieces: list[bytes] = []
        self._hash = ContentHash()
        self._file: io.BufferedWriter | None = None
        self._path: Path | None = None

    def write(self, data: Any) -> int:
        data = data.raw() if isinstance(data, pickle.PickleBuffer) else memoryview(data)  # without copying
        self.size += data.nbytes
        if data.nbytes < THREADED_HASH_BYTES:
            self._hash.update(data)
            self._append(data)
        else:
            with ThreadPoolExecutor(1) as beside:
                hashed = beside.submit(self._hash.update, data)
                self._append(data)
                hashed.result()
        return int(data.nbytes)

    def _append(self, data: memoryview) -> None:
        if self._file is None and self.size > MAX_INLINE_BYTES:
            handle, name = tempfile.mkstemp(prefix=BLOB_PREFIX, dir=self._folder)
            self._path = Path(name)
            self._file = open(handle, "wb", buffering=0)  # type: ignore[assignment]  # noqa: SIM115
            for piece in self._pieces:
                self._write_all(piece)
            self._pieces.clear()
        if self._file is not None:
            self._write_all(data)
        else:
            self._pieces.append(bytes(data))

    def _write_all(self, data: Any) -> None:
        view = memoryview(data)
        while view.nbytes and self._file is not None:
            view = view[self._file.write(view) :]

    def to_blob(self, sources: tuple[SourceText, ...]) -> Blob:
        if self._file is None:
            return Blob(self._hash.hexdigest(), self.size, data=b"".join(self._pieces), sources=sources)
        self._file.close()
        return Blob(self._hash.hexdigest(), self.size, path=self._path, sources=sources)

    def discard(self) -> None:
        if self._file is not None and self._path is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)


def dumps(value: Any) -> bytes:
    """Pickle a value in the same way as the arguments of a call."""
    if is_plain(value):
        return pickle.dumps(value, protocol=5)
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def _pickle_to_blob(value: Any, folder: Path | None, behind: bytes = b"") -> Blob:
    spill = _SpoolFile(folder)
    try:
        pickler = _Pickler(spill, protocol=5)
        pickler.dump(value)
        named, sources = collect_sources(pickler.files) if pickler.files else (None, ())
        if named or behind:
            pickle.dump(named or {}, spill, protocol=5)
        spill.write(behind)
    except BaseException:
        spill.discard()
        raise
    return spill.to_blob(sources)


_pickle_cache = PickleCache[Blob](keeps=lambda blob: blob.data is not None)


def _pickle_function(fn: Callable[..., Any], name: str, folder: Path | None) -> Blob:
    def pickled() -> Blob:
        blob, error = run_guarded(lambda: _pickle_to_blob(fn, folder, _pickle_command_line()))
        if blob is None:
            what = f"function {name}"
            raise _pickling_error(
                what, error, lambda each: f"{what} cannot be pickled: {_describe_failure(fn, each)}"
            ) from error
        return blob

    return _pickle_cache.get(fn, pickled)


def _pickle_command_line() -> bytes:
    """Return ``sys.argv`` and ``sys.orig_argv`` as bytes. Workers read them after the pickle of a function.

    They may contain secrets. Other users of a node must not see these in command lines or files.
    """
    words = pickle.dumps(([*map(str, sys.argv)], [*map(str, sys.orig_argv)]), protocol=5)
    return words + COMMAND_LINE_TRAILER.pack(len(words), COMMAND_LINE_MARKER)


def _pickling_error(
    what: str, error: BaseException | None, blame: Callable[[BaseException], str | None]
) -> NotPicklableError:
    """Return the error for a value that cannot be pickled.

    Args:
        error: Exception raised by pickling the value.
        blame: Returns a description of the part that cannot be pickled. To find the part, it pickles the value again.
    """
    message = f"{what} cannot be pickled"
    if error is not None:
        message = run_guarded(lambda: blame(error))[0] or f"{message}: {': '.join(describe_exception(error))}"
    return NotPicklableError(message)


def _find_unpicklable(pending: PendingFunction[Any]) -> str | None:
    """Describe the argument that cannot be pickled, and the object in it. None if each single argument can be
    pickled.
    """
    for name, value in [*zip(_parameter_names(pending), pending.args, strict=False), *pending.kwargs.items()]:
        failure = _pickle_failure(value)
        if failure is not None:
            reason = _describe_failure(value, failure, name)
            return f"argument {name!r} of {pending.name}() cannot be pickled: {reason}"
    return None


def _parameter_names(pending: PendingFunction[Any]) -> list[str]:
    """Return a display name for each positional argument."""

    names: list[str] = []
    try:
        parameters = tuple(inspect.signature(pending.fn).parameters.values())
    except (TypeError, ValueError):
        parameters = ()
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(len(pending.args) - len(names))]
    return names + [f"#{i}" for i in range(len(names), len(pending.args))]


def _pickle_failure(value: Any) -> BaseException | None:
    try:
        _Pickler(reducers.NullFile(), protocol=5).dump(value)
    except BaseException as error:  # noqa: BLE001  a reducer may raise anything; the exception is the result
        return error
    return None


def _describe_failure(value: Any, error: BaseException, path: str = "") -> str:
    where, culprit, reason = reducers.find_culprit(value, error, path, _pickle_failure)
    at = f" at {where}" if where and where != path else ""
    return f"{type(culprit).__name__} object{at} ({reason})"
