"""Conversion of user code's exceptions into messages, tracebacks and pickles for the client.

Also captures the exceptions of executor calls as values, because the other calls of the executor continue.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward_core.model.function import function_name
from skyward_core.node.worker.result_pickles_and_summaries import full_name, pickle_result, safe_text
from skyward_core.node.worker.stop_signal import Stopped
from skyward_core.protocol.frame_codec import MAX_EXCEPTION_BYTES

if TYPE_CHECKING:
    from types import FrameType

    from skyward_core.protocol.frame_types import ErrorKeys

MAX_MESSAGE = 8192  # maximum characters of an exception's message
MAX_TRACEBACK = 65536  # maximum characters of a traceback, including its messages


class CapturedResult(NamedTuple):
    """Result of one call whose exception is captured as a value.

    Attributes:
        data: The pickled value, or the pickled exception.
        traceback: Traceback of the exception; "" for a value.
    """

    data: bytes
    traceback: str = ""


def capture_call(call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]) -> CapturedResult:
    """Run a call, and return its value or its exception as a ``CapturedResult``."""
    from skyward_core.runtime.rank_side_async_stream_and_map_calls import adapt_async_function

    fn, args, kwargs = call
    try:
        return CapturedResult(
            pickle_result(adapt_async_function(fn)(*args, **kwargs), f"{function_name(fn)}()", None).data
        )
    except Stopped:
        raise
    except BaseException as error:  # noqa: BLE001  # all exceptions, including SystemExit, belong to the call's future
        words, data = describe_error(error)
        return CapturedResult(data, words["traceback"])


def describe_error(error: BaseException) -> tuple[ErrorKeys, bytes]:
    """Return an exception as text and as a pickle that the client can load; b"\\0" if it cannot be pickled.

    The data is never empty, because a client waits for the value of an outcome without data.
    """
    words = error_words(error)
    try:
        return words, _pickle_error(error, words["type"], safe_text(error))
    except BaseException:  # noqa: BLE001  # the modules of the exception can no longer be loaded
        return words, b"\0"


def error_words(error: BaseException) -> ErrorKeys:
    """Return the type, message and traceback of an exception as text, even if its own methods raise errors."""
    own = trace = BaseException.__dict__["__traceback__"].__get__(error)
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(_OWN_PACKAGE):
        trace = trace.tb_next
    text = ""
    try:
        import traceback

        text = "".join(traceback.format_tb(trace or own))
        if hasattr(error, "__skyward_words__"):
            # Omit the traceback of errors that this package raises, because their message explains the error.
            text = ""
        else:
            text = "".join(traceback.format_exception(type(error), error, trace or own))
        text += _install_hint(error)
    except BaseException:  # noqa: BLE001  # user code may raise anything, and exception groups can be deeply nested
        pass
    name = full_name(type(error)).removeprefix("builtins.").removeprefix("__main__.")
    return {"type": name, "message": safe_text(error)[:MAX_MESSAGE], "traceback": _shorten_traceback(text)}


def _shorten_traceback(text: str) -> str:
    """Remove the middle of a long traceback. The start explains long messages, and the end shows the final error."""
    if len(text) <= MAX_TRACEBACK:
        return text
    head, tail = MAX_TRACEBACK * 3 // 4 - 80, MAX_TRACEBACK // 4
    note = f"\n… {len(text) - head - tail:,} characters omitted …\n"
    return f"{text[:head]}{note}{text[-tail:]}"


def _install_hint(error: BaseException) -> str:
    """Return how to install a package that this node lacks, or ""."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    name = (error.name or "").partition(".")[0]
    if not name or name in sys.modules or name.endswith("_script"):
        return ""
    from skyward_core.model.errors import DISTRIBUTIONS

    package = DISTRIBUTIONS.get(name, name)
    return (
        f"{package} is not installed for {sys.executable} on this node. "
        f'Add it to Image(pip=["{package}"]), or use the plugin that installs it. Your own modules must be '
        "beside the script or in the working folder.\n"
    )


# Prefix of module names whose frames are dropped. (File names cannot serve, because compiled code has file names of
# another machine.)
_OWN_PACKAGE = __name__.partition(".")[0] + "."
# module and function that calls user code; frames above it are hidden
_CALLER = f"{__name__.rpartition('.')[0]}.worker", "_run_function"


def hide_worker_frames(traceback: Any) -> None:
    """Patch ``traceback``, so that printed and formatted stacks begin with the first frame of user code."""
    walk_stack = traceback.walk_stack

    def walk_user_stack(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
        frames = list(walk_stack(sys._getframe(1) if frame is None else frame))
        places = [(each.f_globals.get("__name__"), each.f_code.co_name) for each, _ in frames]
        end = places.index(_CALLER) if _CALLER in places else len(frames)
        while 0 < end < len(frames) and str(places[end - 1][0]).startswith(_OWN_PACKAGE):
            end -= 1
        return iter(frames[:end])

    traceback.walk_stack = walk_user_stack


def _pickle_error(error: BaseException, name: str, message: str) -> bytes:
    """Return the pickle of the first variant of an exception that can be loaded again.

    The variants are the exception itself, an exception of its type created without ``__init__``, and a stand-in with
    its name.
    """
    from skyward_core.model.errors import RemoteError

    try:
        made = _round_trip(error)
        if made is not None and _is_unchanged(made[1], error):
            return made[0]
        attributes = _picklable_attributes(error)
        for other in (
            _RecreatedException(type(error), _picklable_arguments(error), attributes),
            _RecreatedException(type(error), (message,), attributes),
            RemoteError(name, message, attributes),
        ):
            if made := _round_trip(other):
                return made[0]
    except BaseException:  # noqa: BLE001  # for example a class that overrides ``args``
        pass
    from skyward_core.node.worker.result_pickler import dumps

    return dumps(RemoteError(name, message[:MAX_MESSAGE]))


def _round_trip(value: Any) -> tuple[bytes, Any] | None:
    """Return a value's pickle and the loaded copy; None if it cannot be pickled or loaded."""
    from skyward_core.node.worker.result_pickler import dumps

    try:
        data = dumps(value)
        return (data, pickle.loads(data)) if len(data) <= MAX_EXCEPTION_BYTES else None
    except BaseException:  # noqa: BLE001  # user code may raise anything
        return None


def _is_unchanged(back: Any, error: BaseException) -> bool:
    """Check whether a loaded exception equals the original. Its ``__init__`` may have changed the arguments."""
    if type(back).__qualname__ != type(error).__qualname__ or len(back.args) != len(error.args):
        return False
    pairs = zip(back.args, error.args, strict=True)
    # Only plain values can be compared without running user code.
    return all(new == old for new, old in pairs if type(old) in _PLAIN and type(new) in _PLAIN)


_PLAIN = (str, int, float, bool, bytes, type(None))


def _picklable_attributes(error: BaseException) -> dict[str, Any]:
    return {key: part for key, part in vars(error).items() if _round_trip(part) is not None}


def _picklable_arguments(error: BaseException) -> tuple[Any, ...]:
    if isinstance(error, BaseExceptionGroup):
        with suppress(RecursionError):
            # Exception groups that are nested too deeply for this recursion cannot be pickled either.
            inner = [
                _RecreatedException(type(one), _picklable_arguments(one), _picklable_attributes(one))
                for one in error.exceptions
            ]
            return (error.message, inner)
    return error.args


class _RecreatedException:
    """Pickles like an exception that is recreated without calling its ``__init__``."""

    def __init__(self, *state: Any) -> None:
        self._state = state

    def __reduce__(self) -> tuple[Any, ...]:
        from skyward_core.model.errors import remake

        return (remake, self._state)
