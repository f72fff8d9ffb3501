"""Isolation of code that a value brings along (``__reduce__``, ``__setstate__``, ``__str__``) and that may raise
anything."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the functions of `signal` are 30 times slower
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_SIGNALS = (
    _signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGALRM, _signal.SIGUSR1, _signal.SIGUSR2,
)  # fmt: skip


def run_guarded(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Run code of a user's value. Return its result, and the exception of any type that it raised.

    A signal handler, such as the one for Ctrl-C, may raise during the run. Its exception is not caused by the value and
    is raised again. To distinguish it from the value's own ``KeyboardInterrupt``, handlers are wrapped until the run
    ends. Only the main thread runs handlers.
    """
    raised: list[BaseException] = []
    watched: dict[int, tuple[Any, Any]] = {}
    found: tuple[T | None, BaseException | None]
    try:
        if threading.get_ident() == threading.main_thread().ident:
            for number in _SIGNALS:
                if callable(handler := _signal.getsignal(number)):
                    watched[number] = handler, (watching := _track_signal(handler, raised))
                    _signal.signal(number, watching)
        try:
            found = work(), None
        except BaseException as error:  # noqa: BLE001  a value may raise anything; the caller decides
            found = None, error
    finally:
        for number, (handler, watching) in watched.items():
            # Restore the handler, unless the value's code has replaced it by its own.
            if _signal.getsignal(number) is watching:
                _signal.signal(number, handler)
    if raised:
        raise raised[0]
    return found


def _track_signal(handler: Callable[..., Any], raised: list[BaseException]) -> Callable[..., Any]:
    def handle(*about: Any) -> Any:
        try:
            return handler(*about)
        except BaseException as error:
            raised.append(error)
            raise

    return handle


def describe_exception(error: BaseException) -> tuple[str, str]:
    """Return the name of an exception's type, and its message."""
    # Imported late, because few calls must format an exception.
    from skyward_core.node.worker.returned_exceptions import error_words

    words, _ = run_guarded(lambda: error_words(error))
    return (words["type"], words["message"]) if words is not None else ("BaseException", "")


def safe_repr(value: object) -> str:
    """Return ``repr(value)``, even if its class raises."""
    from skyward_core.node.worker.result_pickles_and_summaries import safe_text

    return run_guarded(lambda: safe_text(value, repr))[0] or ""
