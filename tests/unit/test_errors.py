"""One hierarchy of errors; they travel between processes as they are."""

from __future__ import annotations

import inspect
import pickle
import traceback
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model import errors
from skyward_core.model.outcome import Outcome, RootCause
from tests.terminals import is_harmful


def every_error() -> list[type[Exception]]:
    found = inspect.getmembers(errors, lambda x: inspect.isclass(x) and issubclass(x, errors.SkywardError))
    return [kind for _, kind in found]


def test_all_have_one_root_and_those_of_the_api_are_exported() -> None:
    for name in errors.__dict__:
        if name.endswith("Error") and name[0] != "_":
            assert issubclass(getattr(errors, name), errors.SkywardError)
    assert issubclass(sky.UsageError, ValueError)
    assert issubclass(sky.NotPicklableError, TypeError)
    assert issubclass(sky.PoolExistsError, sky.PoolError)
    for kind in every_error():
        if kind.__name__ in sky.__all__:
            assert getattr(sky, kind.__name__) is kind


OUTCOME = Outcome(0, 0, 0, "exited", signal=9)


@pytest.mark.parametrize(
    "error",
    [
        *(kind("words") for kind in every_error() if kind not in (errors.RemoteError, errors.RunError)),
        errors.RankExit("gone", exit_code=3),
        errors.RankExit("gone", signal=9),
        errors.RemoteError("mine.Odd", "broke", {"step": 3}),
        errors.RunError(
            "train failed", run="r1", function="train", outcomes={0: OUTCOME}, root_cause=RootCause.of(OUTCOME),
            results={1: "kept"},
        ),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_an_error_travels_whole(error: Exception) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_a_stand_in_says_what_it_stands_for() -> None:
    assert str(errors.RemoteError("mine.Odd", "broke")) == "mine.Odd: broke"
    assert str(errors.RemoteError("mine.Odd", "")) == "mine.Odd"


def test_a_remote_traceback_prints_where_the_cause_belongs() -> None:
    error: Any = ValueError("mine")
    error.__cause__ = errors.RemoteTraceback("Traceback (most recent call last):\n  File far away")
    printed = "".join(traceback.format_exception(error))
    assert 'RemoteTraceback: \n"""\nTraceback (most recent call last):\n  File far away"""' in printed
    assert printed.rstrip().endswith("ValueError: mine")


def test_what_an_error_quotes_is_safe_to_print() -> None:
    said = "the host said: \x1b]52;c;aGk=\x07\x1b[\x002J\x9b2J\u202e\r\nline two"
    for error in (sky.PoolError(said), errors.SpecError(said, "hosts"), errors.RemoteError("E", said)):
        printed = "".join(traceback.format_exception(error))
        assert "the host said: �\nline two" in printed
        assert not any(is_harmful(character) for character in printed)
    assert "�\nline two" in str(errors.RemoteTraceback(said))
    assert sky.PoolError(said).args == (said,)  # as it was, for whoever wants it
