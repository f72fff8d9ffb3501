"""What a worker makes of an exception. And calls whose failure is a value: of an executor's calls one may fail, and the
others go on."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward_core.model.function import function_name
from skyward_core.node.worker.result_summaries import full_name, pickle_result, safe_text
from skyward_core.node.worker.stop_signal import Stopped
from skyward_core.protocol.frame_codec import MAX_EXCEPTION_BYTES

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import ErrorKeys

MAX_MESSAGE = 8192  # characters of an exception's message
MAX_TRACEBACK = 65536  # characters of a traceback, all messages in it, too


class CapturedResult(NamedTuple):
    """What came of one call.

    Attributes:
        data: its value, or the exception that it raised, pickled.
        traceback: where it raised that; empty for a value.
    """

    data: bytes
    traceback: str = ""


def capture_call(call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]) -> CapturedResult:
    """Make a call; what it raises, and a value that cannot travel, are its answer."""
    from skyward_core.runtime.async_and_mapped_calls import adapt_async_function

    fn, args, kwargs = call
    try:
        return CapturedResult(
            pickle_result(adapt_async_function(fn)(*args, **kwargs), f"{function_name(fn)}()", None).data
        )
    except Stopped:
        raise
    except BaseException as error:  # noqa: BLE001  whatever it raises is what its future gets, sys.exit's too
        words, data = describe_error(error)
        return CapturedResult(data, words["traceback"])


def describe_error(error: BaseException) -> tuple[ErrorKeys, bytes]:
    """An exception as words and as a pickle that is sure to load on the other side; b"" if there is none."""
    words = error_words(error)
    try:
        return words, _pickle_error(error, words["type"], safe_text(error))
    except BaseException:  # noqa: BLE001  what that needs cannot be loaded any more
        return words, b""


def error_words(error: BaseException) -> ErrorKeys:
    """An exception in words. Its own code runs, and may raise anything."""
    own = trace = BaseException.__dict__["__traceback__"].__get__(error)
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(_OWN_PACKAGE):
        trace = trace.tb_next
    text = ""
    try:
        import traceback

        text = "".join(traceback.format_tb(trace or own))
        if hasattr(error, "__skyward_words__"):  # those of our own code say it all
            text = ""
        else:
            text = "".join(traceback.format_exception(type(error), error, trace or own))
        text += _install_hint(error)
    except BaseException:  # noqa: BLE001  it calls user code, which may raise anything, and goes as deep as groups do
        pass
    name = full_name(type(error)).removeprefix("builtins.").removeprefix("__main__.")
    return {"type": name, "message": safe_text(error)[:MAX_MESSAGE], "traceback": _shorten_traceback(text)}


def _shorten_traceback(text: str) -> str:
    """A traceback that is not too long. What goes is in its middle: the beginning says where a message stands that is a
    whole tensor or page, and the end where what came of that was raised."""
    if len(text) <= MAX_TRACEBACK:
        return text
    head, tail = MAX_TRACEBACK * 3 // 4 - 80, MAX_TRACEBACK // 4
    said = f"\n… {len(text) - head - tail:,} characters are left out here …\n"
    return f"{text[:head]}{said}{text[-tail:]}"


def _install_hint(error: BaseException) -> str:
    """For a package that this node does not have: where it is wanted, and how a pool comes by it."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    name = (error.name or "").partition(".")[0]
    if not name or name in sys.modules or name.endswith("_script"):
        return ""
    from skyward_core.model.errors import DISTRIBUTIONS

    package = DISTRIBUTIONS.get(name, name)
    return (
        f"{package} is not installed for {sys.executable} on this node: "
        f'name it in Image(pip=["{package}"]), or give the pool the plugin that brings it; a module of your own has to '
        "lie beside the script, or in the working folder\n"
    )


# User code begins after the frames of this package. (Not by their files: compiled code names those of elsewhere.)
_OWN_PACKAGE = __name__.partition(".")[0] + "."


def _pickle_error(error: BaseException, name: str, message: str) -> bytes:
    """The first that is sure to load of: the exception itself; one of its type, made without its ``__init__`` from
    what can travel; a stand-in that has its name."""
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
    except BaseException:  # noqa: BLE001  its class has attributes of its own in the place of ``args``, say
        pass
    from skyward_core.node.worker.result_pickler import dumps

    return dumps(RemoteError(name, message[:MAX_MESSAGE]))


def _round_trip(value: Any) -> tuple[bytes, Any] | None:
    """A pickle of the value and what it loads as, or None when it cannot be pickled or loaded."""
    from skyward_core.node.worker.result_pickler import dumps

    try:
        data = dumps(value)
        return (data, pickle.loads(data)) if len(data) <= MAX_EXCEPTION_BYTES else None
    except BaseException:  # noqa: BLE001  any reducer may raise anything; the answer is no, whatever it was
        return None


def _is_unchanged(back: Any, error: BaseException) -> bool:
    """Whether an exception was not changed on its way by an ``__init__`` that makes up its own arguments."""
    if type(back).__qualname__ != type(error).__qualname__ or len(back.args) != len(error.args):
        return False
    pairs = zip(back.args, error.args, strict=True)
    # Only plain values can be compared without calling what the user wrote.
    return all(new == old for new, old in pairs if type(old) in _PLAIN and type(new) in _PLAIN)


_PLAIN = (str, int, float, bool, bytes, type(None))


def _picklable_attributes(error: BaseException) -> dict[str, Any]:
    return {key: part for key, part in vars(error).items() if _round_trip(part) is not None}


def _picklable_arguments(error: BaseException) -> tuple[Any, ...]:
    if isinstance(error, BaseExceptionGroup):
        with suppress(RecursionError):  # groups that go deeper than that cannot be pickled either
            inner = [
                _RecreatedException(type(one), _picklable_arguments(one), _picklable_attributes(one))
                for one in error.exceptions
            ]
            return (error.message, inner)
    return error.args


class _RecreatedException:
    """Pickles as an exception that is made without calling its ``__init__``."""

    def __init__(self, *state: Any) -> None:
        self._state = state

    def __reduce__(self) -> tuple[Any, ...]:
        from skyward_core.model.errors import remake

        return (remake, self._state)
