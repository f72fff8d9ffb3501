"""The lists of states agree with what the protocol, the agent and the screens know of them."""

from __future__ import annotations

from typing import get_args

import pytest

from skyward_core.model import states
from skyward_core.node.agent.phases import PHASES
from skyward_core.wire import messages
from skyward_tui.theme import look, node_look
from skyward_tui.words import BROKEN_OFF


def test_an_agent_tells_of_the_phases_that_there_are() -> None:
    assert get_args(states.RankPhase) == PHASES


@pytest.mark.parametrize("kind", get_args(states.RunKind))
def test_the_protocol_knows_each_kind_of_run(kind: str) -> None:
    assert messages.FROM_AGENT["run"].checks["kind"](kind)


@pytest.mark.parametrize("kind", get_args(states.OutcomeKind))
def test_the_protocol_knows_each_kind_of_outcome(kind: str) -> None:
    assert messages.FROM_AGENT["outcome"].checks["kind"](kind)


def test_a_task_ends_as_its_outcome_says() -> None:
    assert get_args(states.TaskStatus) == ("waiting", "running", *get_args(states.OutcomeKind))


SHOWN = {
    *get_args(states.PoolStatus),
    *get_args(states.RunStatus),
    *get_args(states.TaskStatus),
    *get_args(states.RankPhase),
} - {"left", ""}  # who has left a run shows it no more, and who is idle is said to be


@pytest.mark.parametrize("state", sorted(SHOWN))
def test_the_screens_have_a_look_for_each_state(state: str) -> None:
    assert look(state).glyph != "?"


def test_a_start_that_was_broken_off_is_called_the_same_everywhere() -> None:
    assert look("unfinished").word == BROKEN_OFF


@pytest.mark.parametrize("phase", get_args(states.NodePhase))
def test_the_screens_have_a_look_for_each_phase_of_a_node(phase: str) -> None:
    assert node_look(phase).glyph != "?"
