"""Functions and arguments pickled by value, with their source.

Made where the objects live (a script's process); everything after that handles opaque bytes.
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

from skyward_core.model.errors import NotPicklableError, UsageError
from skyward_core.model.function import PendingFunction, check_call
from skyward_core.node.deferred_imports import PutOff
from skyward_core.plugins.plugin import decorated
from skyward_core.protocol.frame_codec import INLINE, WORDS, WORDS_SIGN, Heard, is_plain
from skyward_core.protocol.pickle_errors import (
    Nowhere,
    find_culprit,
    flat,
    is_replaced,
    make_cached,
    make_new_type,
    reduce_cached_property,
    reduce_code,
)
from skyward_core.runtime.async_and_mapped_calls import EachOf, Fed, plain
from skyward_core.tasks.guarded_user_code import tried, words_of
from skyward_core.tasks.pickled_call import NOTHING, Blob, SourceText, Task
from skyward_core.tasks.stdout_whole_lines import is_stdout
from skyward_core.util.content_hash import BLOB, Hash, name_of
from skyward_core.util.user_files import read_bytes, resolved


def _implementation() -> str:
    return "PyPy" if "__pypy__" in sys.builtin_module_names else "CPython"


_put_off = (PutOff("platform", {"python_implementation": _implementation}), PutOff("uuid"))
for _each in _put_off:
    sys.modules.setdefault(_each.__name__, _each)
try:
    import cloudpickle
finally:
    for _each in _put_off:
        if sys.modules.get(_each.__name__) is _each:
            del sys.modules[_each.__name__]


Feeds = tuple[tuple[str, Iterable[Any]], ...]  # of each such argument its parameter's name, and what gives the values

_known: WeakKeyDictionary[FunctionType, frozenset[str]] = WeakKeyDictionary()


def fed_arguments(pending: PendingFunction[Any]) -> tuple[PendingFunction[Any], Feeds]:
    """A call as it travels, and what its client feeds.

    Fed is a generator; and whatever is given for a parameter that says ``Iterator[...]`` or ``Generator[...]``.
    """
    fn = pending.fn
    wanted = _wanted(fn) if type(fn) is FunctionType and fn.__annotations__ else frozenset()
    if not wanted and not any(type(each) is GeneratorType for each in (*pending.args, *pending.kwargs.values())):
        return pending, ()
    feeds: list[tuple[str, Iterable[Any]]] = []

    def taken(name: str, value: Any) -> Any:
        if type(value) is GeneratorType or (name in wanted and isinstance(value, Iterable)):
            feeds.append((name, value))
            return Fed(len(feeds) - 1, name)
        return value

    names = _positional(fn, len(pending.args))
    args = tuple(taken(name, value) for name, value in zip(names, pending.args, strict=True))
    kwargs = {name: taken(name, value) for name, value in pending.kwargs.items()}
    if not feeds:
        return pending, ()
    return PendingFunction(fn, args, kwargs, pending.timeout), tuple(feeds)


def refuse_shared(feeds: Feeds, seen: set[int]) -> None:
    """Two arguments cannot have one iterator: each is read in a thread of its own, and would get what the other lacks.

    Args:
        seen: ids of iterators that others have; gets these.

    Raises:
        UsageError: one of them is there already.
    """
    for name, values in feeds:
        if isinstance(values, Iterator):
            if id(values) in seen:
                raise UsageError(
                    f"argument {name!r} is an iterator that another argument is, too: make one for each, "
                    "or see itertools.tee"
                )
            seen.add(id(values))


def _positional(fn: Callable[..., Any], count: int) -> list[str]:
    if type(fn) is FunctionType:
        code = fn.__code__
        names = list(code.co_varnames[: code.co_argcount])[:count]
    else:
        names = []
    return names + [f"argument {number}" for number in range(len(names), count)]


def _wanted(fn: FunctionType) -> frozenset[str]:
    """The parameters of a function that take iterators, by what it says of them."""
    if (known := _known.get(fn)) is None:
        known = _known[fn] = frozenset(name for name, note in _notes(fn).items() if _is_iterator(note))
    return known


def _notes(fn: FunctionType) -> Heard:
    try:
        return typing.get_type_hints(fn)
    except Exception:  # noqa: BLE001  a note is evaluated, and may name what is there for a type checker only
        return inspect.get_annotations(fn)


def _is_iterator(note: Any) -> bool:
    if isinstance(note, str):
        return note.partition("[")[0].rpartition(".")[2] in ("Iterator", "Generator")
    return (typing.get_origin(note) or note) in (Iterator, Generator)


T = TypeVar("T")
_ABSENT = object()  # stands for a global that is not there
_LASTING = frozenset((type(None), bool, int, float, complex, str, bytes, ModuleType, object))
_CLASSES = frozenset((object, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset))
_OF_MODULE = (
    "__package__",
    "__name__",
    "__path__",
    "__file__",
)  # of its globals these go with every function


# What a function's pickle is made of, and, where it names modules, which there are.
_Parts = tuple[tuple[Any, ...], tuple[int, str] | None]


class PickledFunctions(Generic[T]):
    """What was made of functions, for as long as they live.

    Args:
        keeps: whether something that was made is worth its memory.
    """

    def __init__(self, keeps: Callable[[T], bool]) -> None:
        self._keeps = keeps
        # Of each its code, the names in that, the parts it was made of, and what was made.
        self._made: WeakKeyDictionary[FunctionType, tuple[CodeType, tuple[str, ...], _Parts | None, T]] = (
            WeakKeyDictionary()
        )

    def get(self, fn: Callable[..., Any], make: Callable[[], T]) -> T:
        """What was made of a function before, if the same would be made of it now; else what ``make`` gives."""
        if type(fn) is not FunctionType:
            return make()
        code, found = fn.__code__, self._made.get(fn)
        names = found[1] if found is not None and found[0] is code else tuple(_names(code))
        parts = _parts(fn, names)  # before it is made: it may change meanwhile
        if found is not None and _same(parts, found[2]):
            return found[3]
        made = make()
        if self._keeps(made):
            self._made[fn] = code, names, parts, made
        return made


def _same(parts: _Parts | None, others: _Parts | None) -> bool:
    """Whether each is the same object: equal ones may be of other types."""
    if parts is None or others is None or parts[1] != others[1] or len(parts[0]) != len(others[0]):
        return False
    return all(map(is_, parts[0], others[0]))


def _parts(fn: FunctionType, names: tuple[str, ...]) -> _Parts | None:
    """What a function's pickle is made of; None where it may change without that being seen.

    Args:
        names: those that its code, and code inside it, speaks of; some of them are globals.
    """
    if fn.__module__ != "__main__" and "<locals>" not in fn.__qualname__:
        return None  # it may be pickled as a name that others import: quick, and a matter of what is loaded
    if fn.__dict__ or fn.__kwdefaults__ or getattr(fn, "__type_params__", None):
        return None
    notes = fn.__annotations__
    if not all(type(note) is str or (type(note) is type and note in _CLASSES) for note in notes.values()):
        return None
    defaults, space = fn.__defaults__ or (), fn.__globals__
    try:
        enclosed = [cell.cell_contents for cell in fn.__closure__ or ()]
    except ValueError:  # one is empty yet
        return None
    values = (
        *(space.get(name, _ABSENT) for name in _OF_MODULE), *(space.get(name, _ABSENT) for name in names),
        *defaults, *enclosed, fn.__name__, fn.__qualname__, fn.__module__, fn.__doc__, *sys.argv, len(sys.argv),
    )  # fmt: skip
    kinds = set(map(type, values))
    if not kinds <= _LASTING:
        return None
    loaded = None
    if ModuleType in kinds:
        by_value = tuple(f"{name}." for name in cloudpickle.list_registry_pickle_by_value())
        for module in (value for value in values if type(value) is ModuleType):
            if sys.modules.get(module.__name__) is not module or f"{module.__name__}.".startswith(by_value):
                return None  # what stands in it goes into the pickle, too
        # Which submodules a function can reach is a part of its pickle.
        try:
            loaded = len(sys.modules), next(reversed(sys.modules))
        except RuntimeError:  # another thread imports at this very moment
            return None
    return (fn.__code__, *notes, *notes.values(), len(notes), *values), loaded


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _names(constant)


LARGEST = 1 << 18  # bytes; the source of what is larger stays here
INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

Named = dict[str, tuple[str, str, str]]


def sources_of(names: Iterable[str]) -> tuple[Named, tuple[SourceText, ...]]:
    """The source by these names, as pickles name it and as nodes are sent it.

    Args:
        names: as in ``co_filename``; of what has no source, or is installed, nothing is given.
    """
    named, found = {}, []
    for name in names:
        source = _source(name)
        if source is not None:
            named[name] = source.place, source.hash, source.name
            found.append(source)
    return named, tuple(found)


def _source(name: str) -> SourceText | None:
    if name.startswith("<frozen ") or name == "<string>" or _is_installed(name):
        return None
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        lines = linecache.cache[name][2] if len(linecache.cache.get(name, ())) == 4 else ()  # type: ignore[misc]
        return _of_text("".join(lines)) if lines else None
    return _of_file(name, found.st_mtime_ns, found.st_size)


@lru_cache(64)
def _of_text(text: str) -> SourceText | None:
    data = text.encode(errors="surrogatepass")
    return SourceText(name_of(data), "cell.py", "", data) if len(data) <= LARGEST else None


@lru_cache(64)
def _of_file(name: str, changed: int, size: int) -> SourceText | None:
    path = resolved(name)
    try:
        data = read_bytes(path, LARGEST) if size <= LARGEST else b""
    except OSError:
        return None
    called = path.name if PLAIN.fullmatch(path.name) else "script.py"
    return SourceText(name_of(data), called, str(path), data) if data else None


@lru_cache(256)
def _is_installed(name: str) -> bool:
    ours = Path(__file__).parents[1]
    library = Path(os.__file__).parent
    return bool(INSTALLED.search(name)) or any(
        name.startswith(f"{folder}{os.sep}") for folder in (ours, library, Path(sys.base_prefix) / "lib")
    )


FEW = 8  # plain arguments, which are written without ceremony
BESIDE = 1 << 20  # bytes written at once that are worth a thread to hash them meanwhile


def make_task(pending: PendingFunction[Any], plugins: Any = (), folder: Path | None = None) -> Task:
    """Pickle a call.

    Args:
        plugins: whose ``decorate`` hooks wrap the function, the first outermost.
        folder: where large blobs are written; a temporary folder when None.

    Raises:
        NotPicklableError: names the argument or the captured object that cannot travel.
        TypeError: the function does not take these arguments.
        UsageError: two arguments are one iterator.
    """
    fn = decorated(plugins, plain(pending.fn))
    check_call(pending, fn)
    sent, feeds = fed_arguments(pending)
    refuse_shared(feeds, set())
    return Task(
        pending.name,
        _function_blob(fn, pending.name, folder),
        args_blob(sent, folder),
        pending.timeout,
        pending.streams,
        pending.is_script,
        feeds=feeds,
        pickled=dumps,
        nodes=pending.nodes,
    )


def make_tasks(pendings: tuple[PendingFunction[Any], ...], plugins: Any, folder: Path | None) -> Iterator[Task]:
    """Pickle many calls; a function that occurs many times is pickled once.

    Raises:
        NotPicklableError, TypeError, UsageError: as :func:`make_task`.
    """
    blobs: dict[int, tuple[Blob, bool, Callable[..., Any]]] = {}
    seen: set[int] = set()
    for pending in pendings:
        made = blobs.get(id(pending.fn))
        if made is None:
            fn = decorated(plugins, plain(pending.fn))
            blob = _function_blob(fn, pending.name, folder)
            made = blobs[id(pending.fn)] = (blob, pending.streams, fn)
        blob, streams, fn = made
        check_call(pending, fn)
        about = pending.timeout, streams, pending.is_script
        sent, feeds = fed_arguments(pending)
        refuse_shared(feeds, seen)
        yield Task(
            pending.name,
            blob,
            args_blob(sent, folder),
            *about,
            feeds=feeds,
            pickled=dumps,
            nodes=pending.nodes,
        )


def map_function(fn: Callable[..., Any], name: str, plugins: Any, folder: Path | None) -> Task:
    """The part of a map that all its calls share: its function, which takes some items.

    Raises:
        NotPicklableError: names what the function has that cannot travel.
    """
    return Task(name, _function_blob(EachOf(decorated(plugins, plain(fn))), name, folder), NOTHING)


def map_share(shared: Task, first: int, items: list[Any], timeout: float | None, folder: Path | None) -> Task:
    """One call of a map.

    Args:
        first: the number of the first item.

    Raises:
        NotPicklableError: names the item that cannot travel.
    """
    args = args_blob(PendingFunction(_Called(shared.name), (first, items)), folder)
    return Task(shared.name, shared.fn, args, timeout)


class _Called:
    """What an error calls the function whose items cannot travel."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, first: int, items: list[Any]) -> None: ...


def args_blob(pending: PendingFunction[Any], folder: Path | None) -> Blob:
    if not pending.args and not pending.kwargs:
        return NOTHING
    if len(pending.args) <= FEW and not pending.kwargs and all(map(is_plain, pending.args)):
        data = pickle.dumps((pending.args, {}), protocol=5)
        return Blob(name_of(data), len(data), data=data)
    blob, error = tried(lambda: _pickled((pending.args, pending.kwargs), folder))
    if blob is None:
        raise _blamed(f"the arguments of {pending.name}()", error, lambda _: _blame(pending)) from error
    return blob


class _Typed(typing.TypedDict):
    pass


_TYPED_DICT = type(_Typed)
_function = cloudpickle.cloudpickle._make_function
_skeleton = cloudpickle.cloudpickle._make_skeleton_class
_reduce_file = cloudpickle.CloudPickler.dispatch_table[io.TextIOWrapper]


def _stdout_or_file(file: io.TextIOWrapper) -> Any:
    return (getattr, (sys, "stdout")) if is_stdout(file) else _reduce_file(file)


def _cached(function: Any) -> Any:
    if _is_found_there(function):
        return function.__reduce__()
    parameters = function.cache_parameters()
    made_of = function.__wrapped__, parameters["maxsize"], parameters["typed"]
    return make_cached, made_of, function.__dict__


def _new_type(kind: Any) -> Any:
    if _is_found_there(kind):
        return kind.__reduce__()
    return make_new_type, (kind.__name__, kind.__supertype__), kind.__dict__


def _context_var(variable: contextvars.ContextVar[Any]) -> Any:
    """The one that a module of the node's has, or a new one: what it is set to here is of this thread alone."""
    script = sys.modules.get("__main__")  # which multiprocessing has under another name, too
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


def _weak_mapping(held: Any) -> Any:
    """As what remembers which function of several goes with a type (functools.singledispatch)."""
    return type(held), (dict(held),)


def _is_found_there(value: Any) -> bool:
    """Whether what pickle knows by its name alone has that name on a node, too: what a script defines has not."""
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
    """cloudpickle's, which knows ``sys.stdout`` to stand for the node's (it is so behind a stand-in, too), and sends
    by value what else of a script goes by its name: cached functions, new types. A class that stands in another one
    is found there by name, so it keeps its whole one; one with slots has them."""

    dispatch_table = cloudpickle.CloudPickler.dispatch_table.new_child(
        {
            types.CodeType: reduce_code,
            io.TextIOWrapper: _stdout_or_file,
            functools._lru_cache_wrapper: _cached,
            functools.cached_property: reduce_cached_property,
            typing.NewType: _new_type,
            contextvars.ContextVar: _context_var,
            weakref.WeakKeyDictionary: _weak_mapping,
            weakref.WeakValueDictionary: _weak_mapping,
        }
    )

    def __init__(self, file: Any, protocol: int) -> None:
        super().__init__(file, protocol=protocol)
        self.files: dict[str, None] = {}  # that define what goes by value

    def reducer_override(self, value: Any) -> Any:
        if is_replaced(value):
            return value.__reduce_ex__(5)
        made = super().reducer_override(value)
        if type(made) is tuple:
            if made[0] is _function:
                self.files[value.__code__.co_filename] = None
            elif made[0] is _skeleton:
                if file := getattr(sys.modules.get(value.__module__), "__file__", None):
                    self.files[file] = None
                if "." in value.__qualname__:
                    made[2][0]["__qualname__"] = value.__qualname__
                bases = made[1][2]
                # One that derives from another is made of dict, which is no base that such a class may have.
                if type(value) is _TYPED_DICT and bases == (dict,):
                    made = made[0], (*made[1][:2], (typing.TypedDict,), *made[1][3:]), *made[2:]
                # cloudpickle 3.1.3 sets them after the class is made, which has none then: its instances would come
                # back with attributes that the class here has no place for.
                if "__slots__" in made[2][0] and typing.NamedTuple not in bases:  # which has its own, and says so
                    made[1][3]["__slots__"] = made[2][0].pop("__slots__")
        return made


class _Spill(io.RawIOBase):
    """Where a pickle goes: memory while small, a file once it is not; hashed on the way, so never read twice."""

    def __init__(self, folder: Path | None) -> None:
        self.size = 0
        self._folder = folder
        self._pieces: list[bytes] = []
        self._hash = Hash()
        self._file: io.BufferedWriter | None = None
        self._path: Path | None = None

    def write(self, data: Any) -> int:
        data = flat(data)
        self.size += data.nbytes
        if data.nbytes < BESIDE:
            self._hash.update(data)
            self._store(data)
        else:
            with ThreadPoolExecutor(1) as beside:
                hashed = beside.submit(self._hash.update, data)
                self._store(data)
                hashed.result()
        return int(data.nbytes)

    def _store(self, data: memoryview) -> None:
        if self._file is None and self.size > INLINE:
            handle, name = tempfile.mkstemp(prefix=BLOB, dir=self._folder)
            self._path = Path(name)
            self._file = open(handle, "wb", buffering=0)  # type: ignore[assignment]  # noqa: SIM115
            for piece in self._pieces:
                self._put(piece)
            self._pieces.clear()
        if self._file is not None:
            self._put(data)
        else:
            self._pieces.append(bytes(data))

    def _put(self, data: Any) -> None:
        view = memoryview(data)
        while view.nbytes and self._file is not None:
            view = view[self._file.write(view) :]

    def blob(self, sources: tuple[SourceText, ...]) -> Blob:
        if self._file is None:
            data = b"".join(self._pieces)
            return Blob(self._hash.name(), self.size, data=data, sources=sources)
        self._file.close()
        return Blob(self._hash.name(), self.size, path=self._path, sources=sources)

    def discard(self) -> None:
        if self._file is not None and self._path is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)


def dumps(value: Any) -> bytes:
    """A value's pickle, as a call's arguments are pickled."""
    if is_plain(value):
        return pickle.dumps(value, protocol=5)
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def _pickled(value: Any, folder: Path | None, behind: bytes = b"") -> Blob:
    spill = _Spill(folder)
    try:
        pickler = _Pickler(spill, protocol=5)
        pickler.dump(value)
        named, sources = sources_of(pickler.files) if pickler.files else (None, ())
        if named or behind:
            pickle.dump(named or {}, spill, protocol=5)
        spill.write(behind)
    except BaseException:
        spill.discard()
        raise
    return spill.blob(sources)


_functions = PickledFunctions[Blob](keeps=lambda blob: blob.data is not None)


def _function_blob(fn: Callable[..., Any], name: str, folder: Path | None) -> Blob:
    def pickled() -> Blob:
        blob, error = tried(lambda: _pickled(fn, folder, _command_line()))
        if blob is None:
            what = f"function {name}"
            raise _blamed(
                what, error, lambda each: f"{what} cannot travel to the nodes: {_reason(fn, each)}"
            ) from error
        return blob

    return _functions.get(fn, pickled)


def _command_line() -> bytes:
    """Return ``sys.argv`` and ``sys.orig_argv`` as workers read them behind the pickle of a function.

    They may hold secrets: other users of a node must see them neither in command lines nor in files.
    """
    words = pickle.dumps(([*map(str, sys.argv)], [*map(str, sys.orig_argv)]), protocol=5)
    return words + WORDS.pack(len(words), WORDS_SIGN)


def _blamed(what: str, error: BaseException | None, blame: Callable[[BaseException], str | None]) -> NotPicklableError:
    """Return the error of a value that cannot be pickled.

    Args:
        error: what pickling it raised.
        blame: finds the part that cannot be pickled; runs the value's own code once more.
    """
    said = f"{what} cannot travel to the nodes"
    if error is not None:
        said = tried(lambda: blame(error))[0] or f"{said}: {': '.join(words_of(error))}"
    return NotPicklableError(said)


def _blame(pending: PendingFunction[Any]) -> str | None:
    """Say which argument, and where inside it, cannot be pickled; None if each can, by itself."""
    names = _parameter_names(pending)
    values = [*zip(names, pending.args, strict=False), *pending.kwargs.items()]
    for name, value in values:
        failure = _failure(value)
        if failure is not None:
            reason = _reason(value, failure, name)
            return f"argument {name!r} of {pending.name}() cannot travel to the nodes: {reason}"
    return None


def _parameter_names(pending: PendingFunction[Any]) -> list[str]:
    """What to call each positional argument."""
    import inspect

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


def _failure(value: Any) -> BaseException | None:
    try:
        _Pickler(Nowhere(), protocol=5).dump(value)
    except BaseException as error:  # noqa: BLE001  any reducer may raise anything; that is the answer asked for
        return error
    return None


def _reason(value: Any, error: BaseException, path: str = "") -> str:
    where, culprit, why = find_culprit(value, error, path, _failure)
    at = f" at {where}" if where and where != path else ""
    return f"{type(culprit).__name__} object{at} ({why})"


__all__ = [
    "cloudpickle",
]
