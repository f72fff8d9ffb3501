"""The lists of states agree with what the protocol, the agent and the screens know of them."""

from __future__ import annotations

from typing import get_args

import pytest

from skyward_core.model import outcomes
from skyward_core.node.agent.connected_clients import PHASES
from skyward_core.protocol import frame_schema
from skyward_tui.text.number_and_time_format import BROKEN_OFF
from skyward_tui.ui.themes import node_style, state_style


def test_an_agent_tells_of_the_phases_that_there_are() -> None:
    assert get_args(outcomes.RankPhase) == PHASES


@pytest.mark.parametrize("kind", get_args(outcomes.RunKind))
def test_the_protocol_knows_each_kind_of_run(kind: str) -> None:
    assert frame_schema.FROM_AGENT["run"].checks["kind"](kind)


@pytest.mark.parametrize("kind", get_args(outcomes.OutcomeKind))
def test_the_protocol_knows_each_kind_of_outcome(kind: str) -> None:
    assert frame_schema.FROM_AGENT["outcome"].checks["kind"](kind)


def test_a_task_ends_as_its_outcome_says() -> None:
    assert get_args(outcomes.TaskStatus) == ("waiting", "running", *get_args(outcomes.OutcomeKind))


SHOWN = {
    *get_args(outcomes.PoolStatus),
    *get_args(outcomes.RunStatus),
    *get_args(outcomes.TaskStatus),
    *get_args(outcomes.RankPhase),
} - {"left", ""}  # who has left a run shows it no more, and who is idle is said to be


@pytest.mark.parametrize("state", sorted(SHOWN))
def test_the_screens_have_a_look_for_each_state(state: str) -> None:
    assert state_style(state).glyph != "?"


def test_a_start_that_was_broken_off_is_called_the_same_everywhere() -> None:
    assert state_style("unfinished").word == BROKEN_OFF


@pytest.mark.parametrize("phase", get_args(outcomes.NodePhase))
def test_the_screens_have_a_look_for_each_phase_of_a_node(phase: str) -> None:
    assert node_style(phase).glyph != "?"
