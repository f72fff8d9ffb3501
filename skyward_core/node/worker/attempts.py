"""A call whose failure is a value: of an executor's calls one may fail, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...model.call_check import name_of
from ...runtime.async_calls import plain
from .results import describe_error, pickle_result
from .stop_signal import Stopped


class Answer(NamedTuple):
    """What came of one call.

    Attributes:
        data: its value, or the exception that it raised, pickled.
        traceback: where it raised that; empty for a value.
    """

    data: bytes
    traceback: str = ""


def attempt(call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]) -> Answer:
    """Make a call; what it raises, and a value that cannot travel, are its answer."""
    fn, args, kwargs = call
    try:
        return Answer(pickle_result(plain(fn)(*args, **kwargs), f"{name_of(fn)}()", None).data)
    except Stopped:
        raise
    except BaseException as error:  # noqa: BLE001  whatever it raises is what its future gets, sys.exit's too
        words, data = describe_error(error)
        return Answer(data, words["traceback"])
