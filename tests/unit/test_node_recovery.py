"""Recovery of silent nodes by the machine state that the provider reports, and limits of agent restarts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.errors import LedgerError, PoolError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.outcomes_states_and_alerts import MachineStatus
from skyward_core.pool.node_recovery import (
    MAX_FAILURES,
    MAX_STARTS,
    PAUSE,
    RESTART_WINDOW,
    NodeRecovery,
    RestartLimiter,
)
from skyward_core.pool.pool_context import PoolContext


class Stage:
    """Pool of two nodes of which node 1 is down. ``done``: actions of the recovery."""

    def __init__(
        self,
        state: MachineStatus,
        why: str = "",
        *,
        alone: bool = False,
        other_up: bool = True,
        preempted: str = "",
        noticed: bool = False,
    ) -> None:
        self.done: list[str] = []
        self.notes: list[Any] = []
        self.start_fails = ""
        self.written_fails = False
        self.ended = False
        extra = ({"why": why} if why else {}) | ({"preempted": preempted} if preempted else {})
        view = SimpleNamespace(nodes=[SimpleNamespace(is_preempted=each) for each in (False, noticed)])
        self.machine = Machine("m1", 1, "h1", "", state=state, extra=extra)
        self.links = [self.link(0, up=other_up), self.link(1, up=False)]
        stage = self

        class Provider:
            def notices(self, machine: Machine) -> str:
                return "asks" if preempted else ""

            async def describe(self, pool: str, machines: Any) -> list[Machine]:
                return [stage.machine]

            async def terminate(self, pool: str, machines: Any) -> None:
                stage.done.append("terminated")

        def written(*given: Any) -> Any:
            if stage.written_fails:
                raise LedgerError("the ledger is locked")
            return SimpleNamespace(state="up")

        async def have_come(*, wait: bool) -> bool:
            return stage.ended

        async def prepare(link: Any) -> Any:
            if stage.start_fails:
                raise PoolError(stage.start_fails)
            stage.done.append("revived")
            return lambda *words: None

        context: Any = SimpleNamespace(
            name="p", token="t", links=self.links, machines=[None, self.machine], provider=Provider(),
            is_standalone=alone,
            view=view, leaving=False, external_end=None, observer=False,
            options=SimpleNamespace(lost_after=None, replaces_lost_nodes=False),
            ledger=SimpleNamespace(pool=written, set_pool_state=written), present_links=self.links, roster=None,
            news=SimpleNamespace(
                emit_phase=self.note, emit_state=self.note, emit_warning=self.note,
                emit_link=self.note, emit_node_note=self.note,
                redactor=SimpleNamespace(redact_text=lambda text: text),
            ),
            shutdown=SimpleNamespace(
                check_ended=have_come, on_external_end=lambda ending: self.done.append(f"ended: {ending.why}")
            ),
            startup=SimpleNamespace(prepare=prepare),
            registry=SimpleNamespace(
                on_node_lost=lambda: self.done.append("seen"), drop_link=lambda link: self.done.append("dropped")
            ),
        )  # fmt: skip
        context.describe = lambda machines: PoolContext.describe(context, machines)
        context.terminate = lambda machine: PoolContext.terminate(context, machine)
        self.recovery = NodeRecovery(context)
        self.recovery.replacements.begin = lambda node: self.done.append("replacing")  # type: ignore[method-assign]

    def note(self, *values: Any) -> None:
        self.notes.append(values[-1])

    def link(self, node: int, *, up: bool) -> Any:
        link = SimpleNamespace(node=node, up=up, gone=False, finished=False, lost_reason="", epoch=node)

        def lose(why: str = "", *, taken_back: bool = False) -> None:
            link.gone, link.lost_reason, link.taken_back = True, why, taken_back

        link.mark_lost = lose
        return link

    async def decide(self, *, decided: bool = False) -> list[str]:
        await self.recovery._handle_failure(self.links[1], decided)
        return self.done


LOST = ["replacing", "seen", "dropped"]


@pytest.mark.parametrize(
    ("state", "alone", "done"),
    [
        ("running", False, []),
        ("unreachable", False, []),
        ("lost", False, [*LOST, "terminated"]),
        ("lost", True, []),  # nodes that stand alone do not know of each other
        ("gone", False, [*LOST, "terminated"]),
        ("ending", False, [*LOST, "terminated"]),
        ("orphaned", False, ["revived"]),
        ("orphaned", True, ["revived"]),
    ],
)
async def test_machine_state_decides_what_happens_to_a_silent_node(
    state: MachineStatus, alone: bool, done: list[str]
) -> None:
    assert await Stage(state, alone=alone).decide() == done


async def test_node_whose_agent_was_ended_is_lost() -> None:
    stage = Stage("running")
    stage.links[1].finished = True
    assert await stage.decide() == LOST
    assert stage.links[1].lost_reason == "its agent was ended on its machine"


async def test_loss_decided_by_another_client_stands() -> None:
    stage = Stage("orphaned")
    assert await stage.decide(decided=True) == LOST


async def test_last_node_that_ended_itself_ends_the_pool() -> None:
    why = "the node ended itself: idle for 600 s"
    assert await Stage("gone", why, other_up=False).decide() == ["ended: idle for 600 s"]
    assert await Stage("gone", why).decide() == [*LOST, "terminated"]


async def test_ended_pool_marks_no_node_as_lost() -> None:
    stage = Stage("gone")
    stage.ended = True
    assert await stage.decide() == []


async def test_node_is_lost_after_repeated_failed_agent_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage("orphaned")
    stage.start_fails = "no room"
    monkeypatch.setattr(stage.recovery._restart_limiter, "is_due", lambda node: True)
    for _ in range(MAX_FAILURES):
        assert await stage.decide() == []
    assert await stage.decide() == [*LOST, "terminated"]
    message = f"{MAX_FAILURES} attempts to start a new agent failed; the last: no room"
    assert stage.links[1].lost_reason == message


async def test_failed_agent_start_is_not_retried_at_once() -> None:
    stage = Stage("orphaned")
    stage.start_fails = "no room"
    assert await stage.decide() == []
    stage.start_fails = ""
    assert await stage.decide() == []  # the next look comes soon enough


async def test_calls_of_a_lost_node_end_without_the_ledger() -> None:
    stage = Stage("gone")
    stage.written_fails = True
    assert await stage.decide() == [*LOST, "terminated"]
    assert any("not saved" in each for each in stage.notes if isinstance(each, str))


async def test_reconnected_node_is_not_lost() -> None:
    stage = Stage("gone")
    stage.links[1].up = True
    assert await stage.decide() == []


@pytest.mark.parametrize("finished", [True, False])
async def test_preempted_machine_is_reported_as_preempted(finished: bool) -> None:
    """The cause is the notice or the provider's state; a pool whose only node was preempted continues."""
    message = "preempted: the machine of node 1 was preempted by its provider"
    how = "EC2 took it back"
    for stage, words in (
        (Stage("gone", noticed=True, other_up=False), message),
        (Stage("gone", preempted=how, other_up=False), f"{message}: {how}"),
    ):
        stage.links[1].finished = finished
        assert (await stage.decide())[:3] == LOST
        assert (stage.links[1].lost_reason, stage.links[1].taken_back) == (words, True)


# How often a node's agent is started anew.


class Clock:
    """Clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_agent_restarts_are_limited_per_window() -> None:
    clock = Clock()
    revivals = RestartLimiter(clock)
    for _ in range(MAX_STARTS):
        assert revivals.refusal_reason(0) == ""
        revivals.add_success(0)
        clock.now += 1
    assert revivals.refusal_reason(0) == f"its agent died {MAX_STARTS + 1} times within {RESTART_WINDOW:.0f} s"
    assert revivals.refusal_reason(1) == "", "another node has its own"
    clock.now = RESTART_WINDOW
    assert revivals.refusal_reason(0) == "", "the first was long ago"


def test_failed_agent_starts_are_retried_after_growing_pauses() -> None:
    clock = Clock()
    revivals = RestartLimiter(clock)
    for n in range(MAX_FAILURES):
        assert revivals.refusal_reason(0) == ""
        assert revivals.is_due(0)
        revivals.add_failure(0, f"reason {n}")
        clock.now += PAUSE * 2**n - 0.01
        assert not revivals.is_due(0)
        clock.now += 0.01
    assert revivals.refusal_reason(0) == f"{MAX_FAILURES} attempts to start a new agent failed; the last: reason 3"


def test_successful_agent_start_resets_failures() -> None:
    clock = Clock()
    revivals = RestartLimiter(clock)
    for _ in range(MAX_FAILURES - 1):
        revivals.add_failure(0, "killed")
    revivals.add_success(0)
    assert revivals.is_due(0)
    revivals.add_failure(0, "killed")
    assert revivals.refusal_reason(0) == ""
