"""States of ranks and nodes: notes, metrics, job steps and startup phases."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RootCause
from skyward_core.views import events
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_tui.app.app import SkywardApp
from skyward_tui.panels.node_phases import MAX_DETAIL_LINES, PhaseBoard
from skyward_tui.panels.rank_states_and_heat_map import SHADES, STATE, _metric_cells, heat_map, heat_metrics, rank_rows
from skyward_tui.text.rank_states_from_views import RankState, no_output_reason, rank_states
from skyward_tui.text.text_width_tables_and_ascii import clip_parts
from tests.support.app_driver import on_run_screen, press, screen_text, until
from tests.support.fake_session import FakeSession, value


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_rank_shows_the_task_that_began_last(session: FakeSession, order: Sequence[int]) -> None:
    """The order of the tasks in the view, by index or by arrival, does not matter."""
    view = session.pool("sweep", 1)
    run = session.open_run(view, kind="gather", total=3)
    for index in order:
        at = session.now - 30 + 10 * index
        session.emit(view, events.RankBegan(pool="sweep", run=run.id, index=index, rank=0, node=0, at=at))
    (state,) = rank_states(view, run, session.now)
    assert (state.state, state.seconds) == ("running", 10.0)
    session.emit(
        view,
        events.RankEnded(
            pool="sweep", run=run.id, outcome=Outcome(2, 0, 0, "returned", 7.5, summary=value(1)), at=session.now
        ),
    )
    (state,) = rank_states(view, run, session.now)
    assert (state.state, state.seconds) == ("returned", 7.5)


def test_log_of_an_ended_run_without_output_says_so(session: FakeSession) -> None:
    view, run = session.pool_with_run("quiet", 1)
    assert no_output_reason(view, rank_states(view, run, session.now), run, session.now) == "nothing printed yet"
    session.emit(view, events.RunEnded(pool="quiet", run=run.id, state="failed", at=session.now))
    assert no_output_reason(view, rank_states(view, run, session.now), run, session.now) == "this run printed nothing"


def test_rank_of_an_unreachable_node_shows_the_next_retry(session: FakeSession) -> None:
    view = session.pool("far", 1, state="starting", phase="running")
    refused = events.NodePhase(
        pool="far", node=0, phase="running", detail="gpu1: connection refused", retry_at=session.now + 4
    )
    session.emit(view, refused)
    (state,) = rank_states(view, None, session.now)
    assert state.note == "gpu1: connection refused, retry in 0:04"
    (state,) = rank_states(view, None, session.now + 5)
    assert state.note == "gpu1: connection refused"


def test_rank_of_a_preempted_machine_shows_the_remaining_time(session: FakeSession) -> None:
    view = session.pool("spot", 2)
    run = session.open_run(view, total=2)
    for kind, ends_at, note in (
        ("rebalance", None, "may soon be preempted"),
        ("terminate", session.now + 102, "preempted in 1:42 (terminate)"),
    ):
        session.emit(view, events.NodeNotice(pool="spot", node=1, kind=kind, ends_at=ends_at))  # type: ignore[arg-type]
        first, second = rank_states(view, run, session.now)
        assert (first.note, second.note) == ("", note)
    (_, later) = rank_states(view, run, session.now + 101)
    assert later.note == "preempted in 0:01 (terminate)"
    (_, later) = rank_states(view, run, session.now + 102)
    assert later.note == "preempted now (terminate)"


def test_clipped_metrics_are_omitted_as_a_whole() -> None:
    message = "step 75  loss 2.229  tokens/s 41,021"
    assert clip_parts(message, 36) == message
    assert clip_parts(message, 22) == clip_parts(message, 35) == "step 75  loss 2.229"
    assert clip_parts(message, 5) == "step…"
    assert clip_parts("12:00:59 step=59", 8) == "12:00:5…"


async def test_metrics_of_all_ranks_are_in_the_same_columns(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 1, 2)
    view.metrics.add_values(run.id, 0, session.now, {"loss": 0.5, "accuracy": 0.25, "lr": 1})
    view.metrics.add_values(run.id, 1, session.now, {"loss": 0.009558, "accuracy": 0.75, "lr": 1})
    async with on_run_screen(app, (80, 24)) as (pilot, _):
        await press(pilot, "1", until="loss 0.009558   accuracy 0.75")
        first, second = (line for line in screen_text(app).splitlines() if " n0 " in line)
        assert first.index("accuracy") == second.index("accuracy") and "lr 1" in first


def test_long_notes_of_ranks_keep_their_words() -> None:
    assert _metric_cells("no output for 5:04  last: step 3", 80) == "no output for 5:04  last: step 3"
    assert _metric_cells("loss 0.5  a_very_long_name_of_a_metric 3", 20).rstrip() == "loss 0.5"
    assert _metric_cells("loss 0.25", 6) == "loss…"


# Ranks shown by a figure in place of their state: one key goes through what figures there are.


def measured(session: FakeSession, nodes: int, gpus: int) -> MachineMetrics:
    """Add GPU metrics: the utilization of each GPU is its index among all, and half of the memory is used."""
    book = MachineMetrics()
    for node in range(nodes):
        of_each = [{"util": (node * gpus + gpu) % 100, "mem_used": 40, "mem_total": 80} for gpu in range(gpus)]
        sample = {"at": session.now, "node": {"cpu": 10.0 * node}, "gpus": of_each}
        book.feed(node, json.dumps(sample).encode())
    return book


@pytest.mark.proof("1 s of a processor")
async def test_wide_row_of_a_rank_shows_gpu_use_and_memory(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft", 2, 4)
    view.machines = measured(session, 2, 4)
    async with on_run_screen(app, (120, 40)) as (pilot, _):
        await press(pilot, "1", "z", until=lambda: re.search(r"r6 .* gpu +6 % mem +50 %", screen_text(app)) is not None)


def test_each_rank_shows_the_metrics_of_its_own_gpus(session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2, 4)
    assert heat_metrics(view, run, session.now) == [STATE]
    view.machines = measured(session, 2, 4)
    assert heat_metrics(view, run, session.now) == [STATE, "use %", "memory %"]
    assert [each.text for each in heat_map(view, run, "use %", session.now).of.values()] == [
        f"{rank} %" for rank in range(8)
    ]
    assert {each.text for each in heat_map(view, run, "memory %", session.now).of.values()} == {"50 %"}
    view.machines = measured(session, 2, 8)  # two GPUs each
    assert [each.text for each in heat_map(view, run, "use %", session.now).of.values()][:2] == ["0 %", "2 %"]
    view.machines = measured(session, 2, 3)  # nobody knows which are whose
    assert [each.text for each in heat_map(view, run, "use %", session.now).of.values()] == ["1 %"] * 4 + ["4 %"] * 4
    view.machines = measured(session, 2, 0)
    assert heat_map(view, run, "use %", session.now).of[7].text == "10 %", "of its node"
    assert heat_map(view, run, "use %", session.now + 60).of == {}, "metrics too old"


@pytest.mark.parametrize(
    ("values", "shades"),
    [
        ([1.0, 2.0, 3.0, 4.0], SHADES),
        ([5.0, 5.0], SHADES[0] * 2),
        ([1.0, float("nan"), 9.0], f"{SHADES[0]}!{SHADES[3]}"),
        ([float("inf")], "!"),
    ],
)
def test_heat_map_shades_span_the_least_and_greatest_value(
    session: FakeSession, values: list[float], shades: str
) -> None:
    view, run = session.pool_with_run("llama-ft", len(values))
    for rank, loss in enumerate(values):
        view.metrics.add_values(run.id, rank, session.now, {"loss": loss})
    assert "".join(each.shade for each in heat_map(view, run, "loss", session.now).of.values()) == shades


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize(("nodes", "per_node"), [(4, 1), (4, 4), (32, 8)])  # two tables and a mosaic
async def test_heat_map_key_cycles_through_the_metrics(
    app: SkywardApp, session: FakeSession, nodes: int, per_node: int
) -> None:
    view, run = session.pool_with_run("llama-ft", nodes, per_node)
    async with on_run_screen(app, (160, 48)) as (pilot, _):
        await press(pilot, "asterisk", until="no metrics yet to colour ranks by")
        view.machines = measured(session, nodes, per_node)
        for rank in range(nodes * per_node):
            view.metrics.add_values(run.id, rank, session.now, {"loss": 2.0 + rank})
        session.end_rank(view, run, 3, "raised")
        await until(pilot, "✗ 1")
        await press(pilot, "asterisk", until=f"1 ranks use % 0 {SHADES} 100 %")
        await press(pilot, "asterisk", "asterisk", until=f"1 ranks loss 2 {SHADES}")
        shown = screen_text(app)
        assert SHADES[1] in shown and SHADES[3] in shown
        assert shown.count("✗") > 1, "what has failed is not hidden by a shade"
        await press(pilot, "asterisk", until=lambda: SHADES not in screen_text(app))


# Rows of ranks: trouble first, equal outcomes in one row, and a mosaic of what does not fit.


def state_of(rank: int, state: str = "running", text: str = "", **more: Any) -> RankState:
    return RankState(rank, rank // 8, state, 1.0, text, **more)


def shown(states: Sequence[RankState], room: int) -> list[tuple[str, str]]:
    return [(row.name, row.state.state) for row in rank_rows(states, room)]


def test_equal_outcomes_share_a_row_and_failures_come_first() -> None:
    stopped = [state_of(rank, "collateral", "stopped because rank 13 failed") for rank in range(32) if rank != 13]
    states = sorted([*stopped, state_of(13, "raised", "ValueError: x")], key=lambda each: each.rank)
    assert shown(states, 40) == [("r13", "raised"), ("r0-12, r14-31", "collateral")]
    done = [state_of(0, "returned", "loss 1"), state_of(1, "returned", "loss 2"), state_of(2, "returned", "loss 2")]
    assert shown(done, 40) == [("r0", "returned"), ("r1-2", "returned")]
    assert shown(done, 1) == [("r0-2", "returned")], "there is no room for differences"
    many = [*done, *(state_of(rank) for rank in range(3, 9))]
    found = [row.name for row in rank_rows(many, 3, {3})]
    assert found == ["r0-2", "r3", "r4-8"], "outcomes share a row so that one rank has its own"


def test_silent_ranks_come_before_running_ones() -> None:
    numbers = {"step": 7.0, "val_loss": 0.5}
    states = [state_of(rank, numbers=numbers, quiet=300.0 if rank == 2 else None) for rank in range(4)]
    assert shown(states, 4) == [("r2", "running"), ("r0", "running"), ("r1", "running"), ("r3", "running")]
    few = rank_rows(states, 2)
    assert [(row.name, row.note) for row in few] == [
        ("r2", "val_loss 0.5  step 7"),
        ("r0-1, r3", "val_loss 0.5 to 0.5"),
    ]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["running", "raised", "returned", "collateral", "paused", "waiting"]),
            st.sampled_from(["", "a", "b"]),
            st.none() | st.floats(30, 900),
        ),
        max_size=40,
    ),
    st.integers(1, 45),
)
def test_each_rank_is_in_one_row(drawn: list[tuple[str, str, float | None]], room: int) -> None:
    states = [state_of(rank, state, text, quiet=quiet) for rank, (state, text, quiet) in enumerate(drawn)]
    rows = rank_rows(states, room)
    assert sorted(rank for row in rows for rank in row.ranks) == list(range(len(states)))
    assert all(states[rank].state == row.state.state for row in rows for rank in row.ranks)
    troubled = [row.state.is_troubled for row in rows]
    assert troubled == sorted(troubled, reverse=True)


async def test_ranks_above_the_rows_are_a_mosaic_by_node(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 8, 8)
    session.end_rank(view, run, 13, "raised")
    async with on_run_screen(app, (120, 40), until="n7") as (pilot, screen):
        lines = [line[:46] for line in screen_text(app).splitlines()]
        assert any("r13 " in line and "raised" in line for line in lines)
        assert any(" r0  n0 " in line for line in lines), "free rows show ranks of their own"
        mosaic = next(line for line in lines if "n1 ●●" in line)
        assert "n1 ●●●●●✗●●" in mosaic
        board = screen.panels["ranks"].main
        y = next(at for at, line in enumerate(lines) if line is mosaic) - board.region.y
        await pilot.click(board, offset=(mosaic.index("n1") + 3 - board.region.x + 5, y))
        await until(pilot, lambda: screen.rank == 13)


# The steps of a job on the board of the nodes.


def row_of(app: SkywardApp, node: int) -> str:
    return next((line for line in screen_text(app).splitlines() if f" n{node} " in line and "■" in line), "")


async def test_each_node_shows_its_job_steps_and_late_nodes(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("wide", 4)
    files = session.open_run(view, "workdir", job="j1")
    for rank in range(4):
        session.end_rank(view, files, rank, seconds=0.25)
    session.end_run(view, files)
    session.now += 1  # steps are in the order in which they were opened
    setup = session.open_run(view, "setup", job="j1")
    for rank in (0, 1, 3):
        session.end_rank(view, setup, rank, seconds=12.0)
    async with app.run_test(size=(140, 40)) as pilot:
        await press(pilot, "enter", "3", "z", until=lambda: "✓ setup 12.0 s" in row_of(app, 0))
        assert "✓ workdir 250 ms" in row_of(app, 2)
        assert "● setup 0:40 ! other nodes wait for this node" in row_of(app, 2), row_of(app, 2)
        # The others of the pool's runs are of no job: nodes are what they were.
        session.open_run(view, "train")
        await pilot.press("right_curly_bracket")
        await until(pilot, lambda: "setup" not in row_of(app, 2) and "127.0.0.1" in row_of(app, 2))
        await press(pilot, "left_curly_bracket", until=lambda: "! other nodes wait for this node" in row_of(app, 2))


async def test_running_job_step_is_visible_in_a_narrow_panel(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("wide", 2)
    for name in ("workdir", "setup", "a-job-of-mine"):
        session.now += 1
        run = session.open_run(view, name, job="j1")
        for rank in range(2 if name != "a-job-of-mine" else 0):
            session.end_rank(view, run, rank, seconds=12.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "3", until="n1    ● a-job-of-mine 0:40  ✓ setup 12.0")


async def test_failed_setup_step_shows_its_last_lines_first(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("pair", 2)
    setup = session.open_run(view, "setup", job="j1")
    view.logs.feed(1, "out", b"Collecting tensorboard\nERROR: no such version\n", session.now, setup.id, "r001")
    error = ErrorInfo("Exit", "ended with status 1")
    session.end_rank(view, setup, 1, "exited", error=error)
    session.end_rank(view, setup, 0, "collateral")
    cause = RootCause(1, "exited", "Exit", "ended with status 1")
    session.emit(view, events.RunEnded(pool=view.name, run=setup.id, state="failed", root_cause=cause, at=session.now))
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "3", "z", until="n1 setup: ended with status 1")
        lines = [line.strip("│ ") for line in screen_text(app).splitlines()]
        at = lines.index("n1 setup: ended with status 1")
        assert lines[at + 1 : at + 3] == ["Collecting tensorboard", "ERROR: no such version"]
        await until(pilot, lambda: "✗ setup" in row_of(app, 1))


# The panel of nodes: a cursor among them, and what was said of each on its way.


@pytest.mark.usefixtures("painted")
async def test_enter_shows_the_last_installer_output_of_a_node(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 3, state="starting", phase="requested")
    at = session.now - 60
    for number in range(30):
        line = f"Downloading part-{number:02}.whl"
        session.emit(view, events.NodePhase(pool="llama-ft", node=1, phase="installed", detail=line, at=at + number))
    late = events.NodePhase(
        pool="llama-ft", node=2, phase="running", detail="connection refused", at=at, retry_at=session.now + 7
    )
    session.emit(view, late)
    async with on_run_screen(app, (120, 40)) as (pilot, _):
        await press(pilot, "3", until=lambda: isinstance(app.focused, PhaseBoard))
        await until(pilot, lambda: "retry 0:07" in screen_text(app) and "part-29" in screen_text(app))
        assert "part-28" not in screen_text(app)
        await press(pilot, "down", "enter", until="part-28")
        await press(pilot, "z", until=f"part-{30 - MAX_DETAIL_LINES}")
        assert "part-28" in screen_text(app) and f"part-{29 - MAX_DETAIL_LINES}" not in screen_text(app)
        session.emit(view, events.NodePhase(pool="llama-ft", node=1, phase="ready", at=session.now))
        await until(pilot, "● ready")
        assert "part-29" in screen_text(app), "it stays to be read"
        await press(pilot, "enter", until=lambda: "part-28" not in screen_text(app))
        await press(pilot, "up", "enter", until="no messages yet")
        session.emit(view, events.NodePhase(pool="llama-ft", node=0, phase="ready", at=session.now))
        await until(pilot, "no startup messages of this node are saved on this machine")
        rows = screen_text(app).splitlines()
        place = next(y for y, row in enumerate(rows) if " n2 " in row)
        await pilot.click(offset=(6, place))
        await until(pilot, lambda: screen_text(app).count("connection refused") == 2)
