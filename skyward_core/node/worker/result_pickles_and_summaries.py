"""Pickles of results for the client that made the call, and summaries for all other clients."""

from __future__ import annotations

import math
import os
import pickle
import sys
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from skyward_core.protocol.frame_codec import MAX_INLINE_BYTES, NONE_SUMMARY, PICKLED_NONE, is_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from skyward_core.protocol.frame_types import ResultFields, SummaryKeys

_open, _os_open = open, os.open  # saved here, because user code may replace built-in functions
MAX_TEXT = 200  # maximum characters of a result's summary
JSON_LIMIT = 16 * 1024  # maximum characters of a value's JSON for the summary to contain the complete value
MAX_DEPTH = 32  # maximum nesting depth of a value that a summary contains completely
PARTS, PART = 64, 100  # maximum entries of a summarized dictionary, and characters per entry


def open_private(path: str, flags: int) -> int:
    """Open a file that only this user can read, regardless of the umask."""
    return _os_open(path, flags, 0o600)


class PickledValue:
    """A pickled value: in memory if small, otherwise in a file of the spool."""

    def __init__(self, path: str | None = None) -> None:
        self.data = b""
        self.size = 0
        self.summary: SummaryKeys | None = None
        self._path = path
        self._pieces: list[bytes] = []
        self._file: Any = None

    def write(self, data: Any) -> int:
        data = data.raw() if isinstance(data, pickle.PickleBuffer) else memoryview(data)
        self.size += data.nbytes
        if self._file is None and self.size > MAX_INLINE_BYTES and self._path is not None:
            self._file = _open(self._path, "wb", buffering=0, opener=open_private)
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
            with suppress(FileNotFoundError):  # The folder no longer exists if the pool was torn down.
                os.unlink(self._path)  # noqa: PTH108  # pathlib would take a tenth of a worker's start

    def header(self) -> ResultFields:
        header: ResultFields = {"summary": self.summary, "size": self.size}
        if self._file is not None and self._path is not None:
            header["file"] = self._path.rpartition("/")[2]
        return header


def pickle_result(value: Any, what: str, path: str | None) -> PickledValue:
    """Pickle and summarize a value.

    Args:
        value: The value.
        what: Description of the value for errors, such as ``train()``.
        path: File for a large value; None to keep it in memory.

    Raises:
        NotPicklableError: If the value contains an object that cannot be pickled. The message names the object.
        OSError: If the value cannot be written to the spool, for example because the disk is full.
    """
    pickled = PickledValue(path)
    if value is None:
        pickled.data, pickled.size, pickled.summary = PICKLED_NONE, len(PICKLED_NONE), NONE_SUMMARY
        return pickled
    if is_plain(value):
        pickled.data = pickle.dumps(value, protocol=5)
        pickled.size = len(pickled.data)
        pickled.summary = summarize(value, pickled.size)
        return pickled
    from skyward_core.node.worker.result_pickler import dump

    try:
        dump(value, pickled)
        pickled.close()
    except OSError:
        pickled.discard()
        raise
    except BaseException as error:
        # Catch everything, because user code that pickles a value may raise any exception, including SystemExit.
        pickled.discard()
        from skyward_core.model.errors import NotPicklableError
        from skyward_core.protocol.pickle_failures_and_reducers import find_culprit

        where, culprit, reason = find_culprit(value, error, "result", _find_pickle_error)
        at = f" at {where}" if where != "result" else ""
        raise NotPicklableError(
            f"the result of {what} cannot be sent back: {_NAME(type(culprit))} object{at} ({safe_text(reason)})"
        ) from error
    pickled.summary = summarize(value, pickled.size)
    return pickled


def _find_pickle_error(value: Any) -> BaseException | None:
    from skyward_core.node.worker.result_pickler import dump
    from skyward_core.protocol.pickle_failures_and_reducers import NullFile

    try:
        dump(value, NullFile())
    except BaseException as error:  # noqa: BLE001  # user code may raise anything, and the error is the result
        return error
    return None


def summarize(value: Any, size: int) -> SummaryKeys:
    """Return a :class:`skyward_core.model.outcomes_states_and_alerts.Summary` as JSON.

    Takes bounded time and memory. Runs only code of builtin types and well-known array types, no methods of other
    classes.
    """
    try:
        plain = _to_json(value, [JSON_LIMIT], MAX_DEPTH)
        is_json = plain is not _NOT_JSON
        text, parts = (repr(plain) if is_json else _describe(value), plain if is_json else _summarize_parts(value))
    except BaseException:  # noqa: BLE001  # array-like user code raised an error
        is_json, text, parts = False, f"{full_name(type(value))} object", None
    return {
        "type": _NAME(type(value)),
        "text": text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…",
        "json": parts,
        "is_json": is_json,
        "size": size,
    }


def _summarize_parts(value: Any) -> dict[str, str] | None:
    """Return short texts of all values of a dictionary that JSON cannot represent, for comparison between ranks."""
    if type(value) is not dict or not 0 < len(value) <= PARTS or not all(type(key) is str for key in value):
        return None
    return {key[:PART]: _short_text(part, 1)[:PART] for key, part in value.items()}


_NOT_JSON = object()


def _to_json(value: Any, budget: list[int], depth: int) -> Any:
    """Return the value in JSON types, or a marker if it has other types, NaN, or too much content."""
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
        items = [_to_json(item, budget, depth - 1) for item in value]
        return _NOT_JSON if any(item is _NOT_JSON for item in items) else items
    if kind is dict:
        if len(value) * 16 > budget[0] or not all(type(key) is str for key in value):
            return _NOT_JSON
        budget[0] -= sum(map(len, value))
        entries = {key: _to_json(item, budget, depth - 1) for key, item in value.items()}
        return _NOT_JSON if any(item is _NOT_JSON for item in entries.values()) else entries
    if _MODULE(kind) == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return _to_json(value.item(), budget, depth - 1)
    return _NOT_JSON


def _describe(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return repr(value[:MAX_TEXT])
    if kind in _BRACKETS:
        return f"{kind.__name__} of {len(value):,}: {_short_text(value, 3)}"
    return _short_text(value, 1)


def _short_text(value: Any, depth: int) -> str:
    """Return a short description of a value. For unknown classes return only the name, to avoid running their code."""
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
            shown = [f"{_short_text(key, 0)}: {_short_text(part, depth - 1)}" for key, part in some]
        else:
            shown = [_short_text(part, depth - 1) for part in some]
        return _BRACKETS[kind].format(", ".join(shown + ["…"] * (len(value) > 5)))
    if full_name(kind).partition(".")[0] in _ARRAYS and hasattr(value, "shape"):
        extents = " × ".join(str(n) for n in tuple(value.shape)) or "scalar"
        content = array_digest(value)
        parts = (kind.__name__, getattr(value, "dtype", ""), extents, content and f"#{content}")
        return " ".join(str(part) for part in parts if str(part))
    return f"{full_name(kind)} object"


# Read a class's name with the functions of ``type``: a metaclass may override the attributes, and a class may define
# any ``__module__``.
_NAME, _QUALNAME, _MODULE = (type.__dict__[name].__get__ for name in ("__name__", "__qualname__", "__module__"))


def full_name(kind: type) -> str:
    """Return module and name of a class without running code of the class."""
    module = _MODULE(kind)
    return f"{module if type(module) is str else '?'}.{_QUALNAME(kind)}"


_ARRAYS = ("numpy", "torch", "jax", "jaxlib", "tensorflow", "pandas")
_BRACKETS: dict[type[Any], str] = {
    list: "[{}]",
    tuple: "({})",
    set: "{{{}}}",
    frozenset: "frozenset({{{}}})",
    dict: "{{{}}}",
}


def safe_text(value: object, how: Callable[[Any], str] = str) -> str:
    """Return the text of a value even if the value's own ``__str__`` or ``__repr__`` raises an error."""
    try:
        return str.__str__(how(value))  # str.__str__ converts an instance of a user's subclass of str to a plain str.
    except BaseException as nested:  # noqa: BLE001  # user code may raise anything, including SystemExit
        return f"(its __{how.__name__}__ raised {_NAME(type(nested))})"


MAX_ARRAY_BYTES = 1 << 30  # maximum bytes of an array that is hashed; hashing larger arrays would delay the result


def array_digest(value: Any) -> str:
    """Return a digest of eight characters for the content of an array, in index order.

    The digest is "" if hashing is expensive, for example for an array on a GPU.

    Args:
        value: An array of numpy, torch, jax or tensorflow.
    """
    try:
        data = _array_bytes(value)
    except Exception:  # noqa: BLE001  # any error of a library: a summary without digest is sufficient
        return ""
    if data is None:
        return ""
    import zlib

    return f"{zlib.crc32(data):08x}"


def _array_bytes(value: Any) -> Any:
    library = type(value).__module__.partition(".")[0]
    numpy = sys.modules.get("numpy")
    if library == "torch":
        if value.device.type != "cpu" or value.nbytes > MAX_ARRAY_BYTES:
            return None
        return value.detach().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
    if library in ("jax", "jaxlib"):
        if not value.is_fully_addressable or any(each.platform != "cpu" for each in value.devices()):
            return None
    elif library == "tensorflow":
        if "CPU" not in value.device:
            return None
        value = value.numpy()
    elif library != "numpy":
        return None
    if numpy is None or value.nbytes > MAX_ARRAY_BYTES or value.dtype.hasobject:
        return None
    return numpy.ascontiguousarray(value).view(numpy.uint8).reshape(-1) if value.nbytes else b""
