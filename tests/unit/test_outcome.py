"""How a rank ended, as plain data."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from skyward_core.model.outcomes import ErrorInfo, Outcome, RootCause, Summary, signal_name, to_json_types

WHOLE = Outcome(
    3, 1, 0, "raised", 1.5, Summary("dict", "{…}", {"a": [1, None]}, True, 40), ErrorInfo("E", "m", "t"), 2, 9
)


@pytest.mark.parametrize("outcome", [WHOLE, Outcome(0, 0, 0, "returned")])
def test_an_outcome_passes_through_json(outcome: Outcome) -> None:
    assert outcome.to_json() == asdict(outcome)
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome


def test_plain_copies_no_leaves() -> None:
    assert WHOLE.summary is not None
    assert to_json_types(WHOLE)["summary"]["json"] is WHOLE.summary.json


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome(0, 0, 0, "exited", exit_code=7), 7),
        (Outcome(0, 0, 0, "exited", exit_code=0), 0),
        (Outcome(0, 0, 0, "exited", signal=15), 143),
        (Outcome(0, 0, 0, "raised", error=ErrorInfo("E", "m")), None),
        (Outcome(0, 0, 0, "lost"), None),
    ],
)
def test_a_root_cause_knows_the_status_to_exit_with(outcome: Outcome, code: int | None) -> None:
    cause = RootCause.from_outcome(outcome)
    assert (cause.rank, cause.outcome, cause.exit_code) == (0, outcome.kind, code)
    assert RootCause(**json.loads(json.dumps(cause.to_json()))) == cause


def test_without_an_error_the_kind_is_the_type() -> None:
    assert RootCause.from_outcome(Outcome(0, 0, 0, "lost")).type == "lost"


def test_what_is_not_there_stays_not_there() -> None:
    assert Summary.from_wire(None) is None
    assert ErrorInfo.from_wire(None) is None
    assert Summary.from_wire({"type": "int", "text": "1"}) == Summary("int", "1")


def test_signals_have_names() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(200) == "signal 200"
