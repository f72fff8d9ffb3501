"""Decision about the next attempt of a failed run: causes, budgets, progress and pauses."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skyward_core as sky
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RestartCause, RootCause
from skyward_core.model.restart_policy import (
    LONGEST_PAUSE,
    MAX_IDLE_ATTEMPTS,
    AttemptEnd,
    attempt_keys,
    decide_restart,
    describe_end,
    place_attempt,
)
from skyward_core.model.root_cause import root_cause
from skyward_core.model.specs import PoolSpec
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.output_checkpoint_and_source_files import list_checkpoints
from skyward_core.protocol.frame_schemas_and_size_limits import ATTEMPT_KEYS, PREEMPTED
from tests.support.examples import examples

TRACEBACK = 'Traceback\n  File "train.py", line 7, in train\nValueError: bad\n'


def options(restarts: int = 3, error_restarts: int = 0, preemption_restarts: int | None = None) -> sky.Options:
    chosen = sky.Options(on_loss="restart", restarts=restarts, error_restarts=error_restarts)
    return replace(chosen, preemption_restarts=preemption_restarts)


def ended(
    *causes: str, steps: Sequence[float | None] = (), signature: str = "", saved: Sequence[int] = ()
) -> list[AttemptEnd]:
    """Return ends of attempts. ``saved``: numbers of the attempts that saved a checkpoint."""
    steps = steps or [None] * len(causes)
    return [
        AttemptEnd(
            number, cause, "failed", signature if cause == "error" else "", step,  # type: ignore[arg-type]
            has_saved=number in saved,
        )
        for number, (cause, step) in enumerate(zip(causes, steps, strict=True), 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [
        (Outcome(0, 0, 0, "raised", error=ErrorInfo("ValueError", "bad", TRACEBACK)), "error"),
        (Outcome(0, 0, 0, "exited", error=ErrorInfo("SystemExit", "exit 3"), exit_code=3), "error"),
        (Outcome(0, 0, 0, "exited", error=ErrorInfo("TimeoutError", "ran longer"), exit_code=143), "error"),
        (Outcome(0, 0, 0, "exited", error=ErrorInfo("TimeoutError", "ran longer")), "error"),
        (Outcome(0, 0, 0, "exited", error=ErrorInfo("Killed", "SIGKILL"), signal=signal.SIGKILL), "loss"),
        (Outcome(0, 0, 0, "exited", error=ErrorInfo("Exited", "while no agent was running")), "loss"),
        (Outcome(0, 0, 0, "lost", error=ErrorInfo("NodeLost", "its machine is gone")), "loss"),
        (Outcome(0, 0, 0, "raised", error=ErrorInfo("torch.distributed.DistNetworkError", "reset")), "loss"),
        (Outcome(0, 0, 0, "lost", error=ErrorInfo(PREEMPTED, "preempted: node 0")), "preemption"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.kind}-{value.error.type}",
)
def test_cause_of_an_attempt_follows_from_its_root_cause(outcome: Outcome, cause: str) -> None:
    root = RootCause.from_outcome(outcome)
    end = describe_end(1, root, [outcome], None)
    assert end.cause == cause
    assert bool(end.signature) is (cause == "error")
    is_process_lost = outcome.kind == "lost" or (cause == "loss" and outcome.kind == "exited")
    assert end.lost_ranks == ((0,) if is_process_lost else ())
    assert describe_end(1, root, [outcome], None, preempted=True).cause == "preemption"


def test_head_restarts_ranks_whose_client_died_after_it_stopped_them_for_more_nodes() -> None:
    call = Call("r", 0, {"t": "call"}, b"", None)  # type: ignore[typeddict-item]
    call.stop_reason = "growth"
    error: Any = call.stopped_details()["error"]
    stopped = Outcome(0, 0, 0, "collateral", error=ErrorInfo(**error))
    root = root_cause([stopped])
    assert root is not None
    end = describe_end(1, root, [stopped], None)
    assert (end.cause, end.signature) == ("growth", "") and decide_restart([end], options()).restarts


def test_lost_ranks_count_within_the_run() -> None:
    """A run on node 1 only has rank 0 where the pool has rank 2."""
    outcome = Outcome(0, 2, 1, "lost", error=ErrorInfo("NodeLost", "its machine is gone"))
    assert describe_end(1, RootCause.from_outcome(outcome), [outcome], None).lost_ranks == (0,)


def test_signature_depends_on_the_place_of_the_error_and_on_its_message_only_without_a_place() -> None:
    def signature(message: str, traceback: str, kind: str = "ValueError") -> str:
        outcome = Outcome(1, 1, 0, "raised", error=ErrorInfo(kind, message, traceback))
        root = root_cause([outcome])
        assert root is not None
        return describe_end(1, root, [outcome], None).signature

    elsewhere = TRACEBACK.replace("line 7", "line 8")
    assert signature("loss is nan in batch 0.1", TRACEBACK) == signature("loss is nan in batch 0.2", TRACEBACK)
    assert len({signature("bad", TRACEBACK), signature("bad", elsewhere), signature("bad", TRACEBACK, "KeyError")}) == 3
    assert signature("bad", "") == signature("bad", "") != signature("worse", "")


@pytest.mark.parametrize(
    ("ends", "chosen", "restarts", "reason"),
    [
        (ended("loss"), options(), True, "restart 1 of 3 after a lost rank"),
        (ended(*["loss"] * 4), options(), False, "(restarts=3)"),
        (ended("loss"), options(restarts=0), False, ""),
        (ended("error"), options(), False, ""),
        (ended("error"), options(error_restarts=1), True, "restart 1 of 1 after an error of the code"),
        (ended("error", "error"), options(error_restarts=1), False, "restarted once"),
        (ended("error", "loss", "loss"), options(restarts=2, error_restarts=1), True, "restart 2 of 2"),
        (ended(*["preemption"] * 50), options(restarts=0), True, "restart 50 after a preemption"),
        (ended("preemption"), options(preemption_restarts=1), True, "restart 1 of 1 after a preemption"),
        (ended(*["preemption"] * 3), options(preemption_restarts=2), False, "limit (preemption_restarts=2)"),
        (ended("preemption"), options(preemption_restarts=0), False, ""),
        (ended("error", "error", signature="s"), options(error_restarts=9), False, "the same error"),
        (ended("error", "error", signature="s", steps=(5, 6)), options(error_restarts=9), True, "restart 2 of 9"),
        (ended("error", "error", signature="s", steps=(5, 5)), options(error_restarts=9), False, "the same error"),
        (ended("error", "loss", "error", signature="s"), options(error_restarts=9), True, "restart 2 of 9"),
        (ended(*["preemption"] * 4, steps=(5, 5, 5, 5)), options(), False, "without progress"),
        (ended(*["preemption"] * 4, steps=(5, 5, 5, 6)), options(), True, "restart 4"),
        (ended("error", "error", signature="s", saved=(2,)), options(error_restarts=9), True, "restart 2 of 9"),
        (ended("error", "error", signature="s", saved=(1,)), options(error_restarts=9), False, "the same error"),
        (ended("error", "error", signature="s", saved=(2,)), options(error_restarts=1), False, "restarted once"),
        (ended(*["preemption"] * 4, steps=(5, 5, 5, 5), saved=(3,)), options(), True, "restart 4"),
        (ended(*["preemption"] * 5, steps=(5, 5, 5, 5, 5), saved=(2,)), options(), False, "without progress"),
    ],
)  # fmt: skip
def test_restart_depends_on_budget_of_the_cause_and_on_progress(
    ends: list[AttemptEnd], chosen: sky.Options, restarts: bool, reason: str
) -> None:
    decision = decide_restart(ends, chosen)
    assert decision.restarts is restarts
    assert reason in decision.reason
    assert bool(decision.reason) is bool(reason)


def test_agent_finds_new_files_in_the_checkpoint_folder_of_the_run_only(tmp_path: Path) -> None:
    for name, changed_at in (("run/step-1/state", 100.0), ("other/state", 300.0)):
        file = tmp_path / "checkpoints" / name
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (changed_at, changed_at))
    assert max(file["at"] for file in list_checkpoints(str(tmp_path), ["run"])) == 100.0
    assert list_checkpoints(str(tmp_path), ["", "none"]) == []


def test_agents_know_the_limit_on_preemptions() -> None:
    keys = attempt_keys(1, options(preemption_restarts=2), [])
    assert ATTEMPT_KEYS(dict(keys)) and keys.get("preemption_restarts") == 2
    assert "preemption_restarts" not in attempt_keys(1, options(), [])


def test_checkpoint_counts_after_the_end_of_an_attempt_was_sent() -> None:
    end = ended("error", signature="s", saved=(1,))[0]
    assert AttemptEnd.from_keys(end.to_keys()) == end


causes = st.sampled_from(get_args(RestartCause))
steps = st.none() | st.integers(0, 5).map(float)


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(causes, steps), min_size=1, max_size=30), st.integers(0, 4), st.integers(0, 4))
def test_no_cause_exceeds_its_budget_and_pauses_are_bounded(
    history: list[tuple[RestartCause, float | None]], restarts: int, error_restarts: int
) -> None:
    budgets = {"loss": restarts, "error": error_restarts, "preemption": len(history), "growth": len(history)}
    used = dict.fromkeys(budgets, 0)
    ends: list[AttemptEnd] = []
    best: float | None = None
    for number, (cause, step) in enumerate(history, 1):
        best = step if best is None or (step is not None and step > best) else best
        ends.append(AttemptEnd(number, cause, "failed", "", best))
        decision = decide_restart(ends, options(restarts, error_restarts))
        assert 0 <= decision.pause <= LONGEST_PAUSE
        if not decision.restarts:
            idle = best is not None and len(ends) > MAX_IDLE_ATTEMPTS
            assert used[cause] >= budgets[cause] or idle
            return
        used[cause] += 1
        assert used[cause] <= budgets[cause]
        if number == 1:
            assert decision.pause == 0


@pytest.mark.parametrize(
    ("away", "least", "nodes", "reason"),
    [
        ({}, None, (0, 1, 2, 3), ""),
        ({2: "no power"}, 2, (0, 1, 3), "on 3 of 4 nodes, because node 2 is lost: no power"),
        ({2: "no power"}, None, (), "node 2 is lost: no power"),
        ({1: "a", 2: "b"}, 3, (), "node 1 is lost: a; node 2 is lost: b; 2 of at least 3 nodes are left"),
        ({0: "no power"}, 1, (), "node 0 is lost: no power"),
    ],
)
def test_attempt_runs_on_the_nodes_that_are_left_if_they_suffice(
    away: dict[int, str], least: int | None, nodes: tuple[int, ...], reason: str
) -> None:
    assert place_attempt(range(4), away, least) == (nodes, reason)


@given(st.integers(1, 8), st.sets(st.integers(0, 7)), st.none() | st.integers(1, 8))
def test_attempt_never_runs_on_lost_nodes_or_without_the_head_or_below_the_minimum(
    count: int, lost: set[int], least: int | None
) -> None:
    away = {node: "lost" for node in sorted(lost) if node < count}
    nodes, reason = place_attempt(range(count), away, least)
    assert not away.keys() & {*nodes} and (nodes[:1] == (0,) or not nodes)
    assert len(nodes) in (
        {0, count} if least is None else {0, *range(least, count + 1)} | ({count} if not away else set())
    )
    assert bool(reason) is bool(away)


@pytest.mark.parametrize(
    ("nodes", "chosen"),
    [(4, {}), ("4:4", {}), ("2:4", {"on_loss": "replace"}), ("2:4", {"cluster": False})],
)
def test_smaller_gangs_are_rejected_where_no_attempt_could_have_one(nodes: Any, chosen: dict[str, Any]) -> None:
    given: dict[str, Any] = {"on_loss": "restart", "restart_smaller": True} | chosen
    with pytest.raises(sky.SpecError, match='range of nodes such as nodes="2:8"'):
        PoolSpec(name="p", provider=sky.Local(), nodes=nodes, options=sky.Options(**given))
