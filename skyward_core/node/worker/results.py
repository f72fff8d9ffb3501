"""What a worker makes of a value or an exception: a pickle for who asked, a summary for everybody else."""

from __future__ import annotations

import math
import os
import pickle
import sys
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...wire.frames import FAILURE, INLINE, NONE, NONE_SUMMARY, is_plain

if TYPE_CHECKING:
    from ...wire.frame_types import ErrorWords, SummaryWords, Told

_open, _os_open = open, os.open  # user code may put something else in the place of what is built in
TEXT = 200  # characters of a summary
JSON_LIMIT = 16 * 1024  # characters of a value that travels in a summary as it is
DEPTH = 32  # levels of it
PARTS, PART = 64, 100  # values of a dictionary that are told one by one, and characters of each
MESSAGE = 8192  # characters of an exception's message
TRACEBACK = 65536  # characters of a traceback, all messages in it, too


def own_file(path: str, flags: int) -> int:
    """Opens what nobody else may read, whatever the person's umask says: clients take such files as they are."""
    return _os_open(path, flags, 0o600)


class Pickled:
    """A pickled value: in memory when small, in a file of the spool when not."""

    def __init__(self, path: str | None = None) -> None:
        self.data = b""
        self.size = 0
        self.summary: SummaryWords | None = None
        self._path = path
        self._pieces: list[bytes] = []
        self._file: Any = None

    def write(self, data: Any) -> int:
        data = data.raw() if isinstance(data, pickle.PickleBuffer) else memoryview(data)
        self.size += data.nbytes
        if self._file is None and self.size > INLINE and self._path is not None:
            self._file = _open(self._path, "wb", buffering=0, opener=own_file)
            for piece in self._pieces:
                self._put(piece)
            self._pieces.clear()
        if self._file is not None:
            self._put(data)
        else:
            self._pieces.append(bytes(data))
        return int(data.nbytes)

    def _put(self, data: Any) -> None:
        view = memoryview(data)
        while view.nbytes:
            view = view[self._file.write(view) :]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        else:
            self.data = b"".join(self._pieces)

    def discard(self) -> None:
        if self._file is not None and self._path is not None:
            self._file.close()
            with suppress(FileNotFoundError):  # its folder may have gone with the pool
                os.unlink(self._path)  # noqa: PTH108  pathlib would be a tenth of a worker's start

    def header(self) -> Told:
        header: Told = {"summary": self.summary, "size": self.size}
        if self._file is not None and self._path is not None:
            header["file"] = self._path.rpartition("/")[2]
        return header


def pickle_result(value: Any, what: str, path: str | None) -> Pickled:
    """Pickle a value and say what it looks like.

    Args:
        what: whose result it is.
        path: the file that a large one is written to; None to keep it in memory.

    Raises:
        NotPicklableError: names the object inside the value that cannot travel.
        OSError: the spool cannot take it (disk full).
    """
    pickled = Pickled(path)
    if value is None:
        pickled.data, pickled.size, pickled.summary = NONE, len(NONE), NONE_SUMMARY
        return pickled
    if is_plain(value):
        pickled.data = pickle.dumps(value, protocol=5)
        pickled.size = len(pickled.data)
        pickled.summary = summarise(value, pickled.size)
        return pickled
    from .answers import dump

    try:
        dump(value, pickled)
        pickled.close()
    except OSError:
        pickled.discard()
        raise
    except BaseException as error:  # a reducer may raise anything, SystemExit too
        pickled.discard()
        from ...model.errors import NotPicklableError

        where, culprit, why = _culprit(value, error)
        at = f" at {where}" if where != "result" else ""
        raise NotPicklableError(
            f"the result of {what} cannot travel back: {type(culprit).__name__} object{at} ({why})"
        ) from error
    pickled.summary = summarise(value, pickled.size)
    return pickled


def _failure(value: Any) -> Exception | None:
    from ...wire.pickling import Nowhere
    from .answers import dump

    try:
        dump(value, Nowhere())
    except Exception as error:  # noqa: BLE001  any reducer may raise anything; that is the answer asked for
        return error
    return None


def _culprit(value: Any, error: BaseException) -> tuple[str, Any, BaseException]:
    from ...wire.pickling import find_culprit

    try:
        return find_culprit(value, error, "result", _failure)  # type: ignore[arg-type]
    except BaseException:  # noqa: BLE001  it asks user code once more
        return "result", value, error


def summarise(value: Any, size: int) -> SummaryWords:
    """A :class:`skyward_core.model.outcome.Summary` as JSON: cheap, bounded, and calls no code of the value's own
    except for builtin types and well-known arrays."""
    plain = plain_json(value)
    is_json = plain is not _NOT_JSON
    return {
        "type": type(value).__name__,
        "text": _clip(repr(plain) if is_json else _describe(value)),
        "json": plain if is_json else _parts(value),
        "is_json": is_json,
        "size": size,
    }


def _parts(value: Any) -> dict[str, str] | None:
    """The values of a dictionary that is not JSON, each in few characters, so that ranks can be compared."""
    if type(value) is not dict or not 0 < len(value) <= PARTS or not all(type(key) is str for key in value):
        return None
    return {key[:PART]: _sketch(part, 1)[:PART] for key, part in value.items()}


_NOT_JSON = object()


def plain_json(value: Any) -> Any:
    """The value in JSON types, or a marker when it is not made of them, holds NaN, or is large or deep."""
    return _plain(value, [JSON_LIMIT], DEPTH)


def _plain(value: Any, budget: list[int], depth: int) -> Any:
    budget[0] -= 8
    if budget[0] < 0 or depth == 0:
        return _NOT_JSON
    kind = type(value)
    if value is None or kind is bool or kind is int:
        return value if kind is not int or -(2**63) <= value < 2**64 else _NOT_JSON
    if kind is float:
        return value if math.isfinite(value) else _NOT_JSON
    if kind is str:
        budget[0] -= len(value)
        return value if budget[0] >= 0 else _NOT_JSON
    if kind is list or kind is tuple:
        if len(value) * 8 > budget[0]:
            return _NOT_JSON
        items = [_plain(item, budget, depth - 1) for item in value]
        return _NOT_JSON if any(item is _NOT_JSON for item in items) else items
    if kind is dict:
        if len(value) * 16 > budget[0] or not all(type(key) is str for key in value):
            return _NOT_JSON
        budget[0] -= sum(map(len, value))
        entries = {key: _plain(item, budget, depth - 1) for key, item in value.items()}
        return _NOT_JSON if any(item is _NOT_JSON for item in entries.values()) else entries
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return _plain(value.item(), budget, depth - 1)
    return _NOT_JSON


def _describe(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return repr(value[:TEXT])
    if kind in _BRACKETS:
        return f"{kind.__name__} of {len(value):,}: {_sketch(value, 3)}"
    return _sketch(value, 1)


def _sketch(value: Any, depth: int) -> str:
    """A value in few characters; of classes we do not know only the name, for their code may do anything."""
    kind = type(value)
    if value is None or kind in (bool, float, complex):
        return repr(value)
    if kind is int:
        return repr(value) if value.bit_length() <= 256 else f"int of {value.bit_length():,} bits"
    if kind is str:
        return repr(value) if len(value) <= 40 else repr(value[:40]) + "…"
    if kind in (bytes, bytearray):
        return f"{len(value):,} bytes"
    if kind in _BRACKETS and depth == 0:
        return f"{kind.__name__} of {len(value):,}"
    if kind in _BRACKETS:
        some = islice(value.items() if kind is dict else value, 5)
        if kind is dict:
            shown = [f"{_sketch(key, 0)}: {_sketch(part, depth - 1)}" for key, part in some]
        else:
            shown = [_sketch(part, depth - 1) for part in some]
        return _BRACKETS[kind].format(", ".join(shown + ["…"] * (len(value) > 5)))
    if kind.__module__.partition(".")[0] in _ARRAYS and hasattr(value, "shape"):
        extents = " × ".join(str(n) for n in tuple(value.shape)) or "scalar"
        from .array_content import content_of

        content = content_of(value)
        parts = (kind.__name__, getattr(value, "dtype", ""), extents, content and f"#{content}")
        return " ".join(str(part) for part in parts if str(part))
    return f"{kind.__module__}.{kind.__qualname__} object"


_ARRAYS = ("numpy", "torch", "jax", "jaxlib", "tensorflow", "pandas")
_BRACKETS: dict[type[Any], str] = {
    list: "[{}]",
    tuple: "({})",
    set: "{{{}}}",
    frozenset: "frozenset({{{}}})",
    dict: "{{{}}}",
}


def _clip(text: str) -> str:
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"


def describe_error(error: BaseException) -> tuple[ErrorWords, bytes]:
    """An exception as words and as a pickle that is sure to load on the other side."""
    import traceback

    trace = error.__traceback__
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(_OURS):
        trace = trace.tb_next
    try:
        text = ""
        if not hasattr(error, "__skyward_words__"):  # those of our own code say it all
            text = "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))
    except BaseException:  # noqa: BLE001  it calls user code, which may raise anything, and goes as deep as groups do
        text = "".join(traceback.format_tb(trace or error.__traceback__))
    text += _what_to_install(error)
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        message = str(error)
    except BaseException as nested:  # noqa: BLE001  user code: its __str__ may raise anything, SystemExit too
        message = f"(its __str__ raised {type(nested).__name__})"
    return {"type": name, "message": message[:MESSAGE], "traceback": _shortened(text)}, _pickle_error(
        error, name, message
    )


def _shortened(text: str) -> str:
    """A traceback that is not too long. What goes is in its middle: the beginning says where a message stands that is a
    whole tensor or page, and the end where what came of that was raised."""
    if len(text) <= TRACEBACK:
        return text
    head, tail = TRACEBACK * 3 // 4 - 80, TRACEBACK // 4
    said = f"\n… {len(text) - head - tail:,} characters are left out here …\n"
    return f"{text[:head]}{said}{text[-tail:]}"


def _what_to_install(error: BaseException) -> str:
    """For a package that this node does not have: where it is wanted, and how a pool comes by it."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if (
        not isinstance(error, ModuleNotFoundError)
        or not name
        or name in sys.modules
        or name.endswith("_script")
    ):
        return ""
    from ...wire.module_names import DISTRIBUTIONS

    package = DISTRIBUTIONS.get(name, name)
    return (
        f"{package} is not installed for {sys.executable} on this node: "
        f'name it in Image(pip=["{package}"]), or give the pool the plugin that brings it; a module of your own has to '
        "lie beside the script, or in the working folder\n"
    )


# User code begins after the frames of this package. (Not by their files: compiled code names those of elsewhere.)
_OURS = __name__.partition(".")[0] + "."


def _pickle_error(error: BaseException, name: str, message: str) -> bytes:
    """The first that is sure to load of: the exception itself; one of its type, made without its ``__init__`` from
    what can travel; a stand-in that has its name."""
    from ...model.errors import RemoteError

    made = _round_trip(error)
    if made is not None and _same(made[1], error):
        return made[0]
    attributes = _travelling(error)
    for other in (
        _Remade(type(error), _arguments(error), attributes),
        _Remade(type(error), (message,), attributes),
        RemoteError(name, message, attributes),
        RemoteError(name, message[:MESSAGE]),
    ):
        made = _round_trip(other)
        if made is not None:
            return made[0]
    raise ValueError(f"{name} cannot even be told of")  # a stand-in holds nothing but what can travel


def _round_trip(value: Any) -> tuple[bytes, Any] | None:
    """A pickle of the value and what it loads as, or None when it cannot be pickled or loaded."""
    from .answers import dumps

    try:
        data = dumps(value)
        return (data, pickle.loads(data)) if len(data) <= FAILURE else None
    except BaseException:  # noqa: BLE001  any reducer may raise anything; the answer is no, whatever it was
        return None


def _same(back: Any, error: BaseException) -> bool:
    """Whether an exception was not changed on its way by an ``__init__`` that makes up its own arguments."""
    if type(back).__qualname__ != type(error).__qualname__ or len(back.args) != len(error.args):
        return False
    pairs = zip(back.args, error.args, strict=True)
    # Only plain values can be compared without calling what the user wrote.
    return all(new == old for new, old in pairs if type(old) in _PLAIN and type(new) in _PLAIN)


_PLAIN = (str, int, float, bool, bytes, type(None))


def _travelling(error: BaseException) -> dict[str, Any]:
    return {key: part for key, part in vars(error).items() if _round_trip(part) is not None}


def _arguments(error: BaseException) -> tuple[Any, ...]:
    if isinstance(error, BaseExceptionGroup):
        with suppress(RecursionError):  # groups that go deeper than that cannot be pickled either
            inner = [_Remade(type(one), _arguments(one), _travelling(one)) for one in error.exceptions]
            return (error.message, inner)
    return error.args


class _Remade:
    """Pickles as an exception that is made without calling its ``__init__``."""

    def __init__(self, *state: Any) -> None:
        self._state = state

    def __reduce__(self) -> tuple[Any, ...]:
        from ...model.errors import remake

        return (remake, self._state)
