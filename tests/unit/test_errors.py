"""One hierarchy of errors; they travel between processes as they are."""

from __future__ import annotations

import copy
import inspect
import pickle
import traceback
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model import errors
from skyward_core.model.errors import Hint
from skyward_core.model.outcomes import Outcome, RootCause
from tests.support.hostile_text import is_harmful


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
            "train failed", run="r1", function="train", outcomes={0: OUTCOME},
            root_cause=RootCause.from_outcome(OUTCOME),
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


def with_hint(kind: type[errors.SkywardError]) -> bool:
    return kind not in (
        errors.RemoteError,
        errors.RunError,
        errors.SpecError,
        errors.PoolGone,
        errors.RankExit,
    )


@pytest.mark.parametrize("kind", [*filter(with_hint, every_error())], ids=lambda kind: kind.__name__)  # type: ignore[arg-type]
def test_a_hint_travels_with_its_error(kind: type[errors.SkywardError]) -> None:
    error = kind("no pool is up.", hint=Hint("down", "p"))
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (back.hint, back.args, str(back)) == (error.hint, error.args, str(error))
    assert (error.what, kind("words").hint) == ("no pool is up.", None)
    assert str(error).startswith("no pool is up; end it: ")


def test_causes_can_be_told_apart_and_are_all_caught_as_before() -> None:
    kinds = (sky.Unreachable, sky.CredentialsRefused, sky.NoCapacity, sky.HostKeyError, sky.PoolExistsError)
    for kind in kinds:
        assert [other for other in kinds if issubclass(kind, other)] == [kind]
        assert issubclass(kind, sky.PoolError)
    assert issubclass(sky.TooFewHosts, sky.NoCapacity) and issubclass(sky.TooFewHosts, sky.UsageError)


def test_a_hint_is_safe_to_print() -> None:
    said = str(sky.PoolError("no", hint=Hint("down", "p\x1b[2J\u202e\x07")))
    assert not any(is_harmful(character) for character in said)


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
