"""Guarded execution of user code: a ctrl-c of the user differs from exceptions that the code raises itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from skyward_core.tasks.guarded_user_code import describe_exception, run_guarded, safe_repr


def raises(error: BaseException) -> Callable[[], Any]:
    def work() -> Any:
        raise error

    return work


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, ValueError])
def test_run_guarded_returns_raised_exceptions(kind: type[BaseException]) -> None:
    error = kind(3)
    assert run_guarded(raises(error)) == (None, error)
    assert run_guarded(lambda: 7) == (7, None)


def test_ctrl_c_is_raised_even_if_guarded_code_catches_it() -> None:
    def catches() -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return 7
        return 8

    with pytest.raises(KeyboardInterrupt):
        run_guarded(catches)
    with pytest.raises(KeyboardInterrupt):
        run_guarded(lambda: run_guarded(catches))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_run_guarded_keeps_other_signal_handlers() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    try:
        handler = signal.getsignal(signal.SIGUSR1)
        assert run_guarded(lambda: signal.raise_signal(signal.SIGUSR1)) == (None, None)
        assert seen == [signal.SIGUSR1] and signal.getsignal(signal.SIGUSR1) is handler
        run_guarded(lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN))
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_run_guarded_in_another_thread_sets_no_handlers() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run_guarded(raises(KeyboardInterrupt()))))
    thread.start()
    thread.join()
    assert type(found[0][1]) is KeyboardInterrupt


def test_exception_whose_str_or_repr_raises_is_described() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit(0)

        __repr__ = __str__

    assert describe_exception(Mute())[1] == "(its __str__ raised SystemExit)"
    assert describe_exception(KeyError("a")) == ("KeyError", "'a'")
    assert safe_repr(Mute()) == "(its __repr__ raised SystemExit)" and safe_repr("a") == "'a'"
