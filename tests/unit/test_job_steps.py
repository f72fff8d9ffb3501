"""Where each node is in a job's steps."""

from __future__ import annotations

from types import SimpleNamespace

from skyward_core.model.outcomes import ErrorInfo, Outcome, RootCause
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, RunView, apply
from skyward_core.views.sweep_trials import failure_lines, steps_by_node, steps_of_job
from skyward_tui.cli.commands.run import PoolCommand

SPEC = {"provider": "local", "nodes": 4, "worker": {"ranks_per_node": 1}}


def pool() -> PoolView:
    view = PoolView("p")
    apply(view, events.PoolOpened(pool="p", spec=SPEC, created_at=0.0, at=0.0))
    for node in range(4):
        apply(view, events.NodePhase(pool="p", node=node, phase="ready", at=1.0))
    return view


def opened(view: PoolView, run: str, name: str, at: float, job: str = "j") -> RunView:
    apply(view, events.RunOpened(pool="p", run=run, function=name, kind="broadcast", total=4, at=at, job=job))
    for node in range(4):
        apply(view, events.RankBegan(pool="p", run=run, index=node, rank=node, node=node, at=at))
    return view.runs[run]


def ended(view: PoolView, run: str, node: int, seconds: float, kind: str = "returned") -> None:
    error = None if kind == "returned" else ErrorInfo("Exit", "ended with status 3")
    outcome = Outcome(node, node, node, kind, seconds, error=error)  # type: ignore[arg-type]
    apply(view, events.RankEnded(pool="p", run=run, outcome=outcome))


def test_each_node_has_its_steps_with_the_time_in_each() -> None:
    view = pool()
    opened(view, "b", "setup", 20.0)
    opened(view, "a", "workdir", 10.0)
    opened(view, "x", "other", 15.0, job="")
    for node in range(4):
        ended(view, "a", node, 2.0 + node)
    ended(view, "b", 0, 1.0)
    steps = steps_of_job(view, view.runs["b"])
    assert [run.id for run in steps] == ["a", "b"]
    found = steps_by_node(steps, 23.5)
    assert [(step.name, step.state, step.seconds) for step in found[0]] == [
        ("workdir", "returned", 2.0), ("setup", "returned", 1.0)
    ]  # fmt: skip
    assert found[3][1].state == "running" and found[3][1].seconds == 3.5
    assert steps_of_job(view, view.runs["x"]) == [] and steps_of_job(view, None) == []


def test_the_one_that_others_wait_for_is_late() -> None:
    view = pool()
    opened(view, "b", "setup", 20.0)

    def late(now: float) -> list[bool]:
        found = steps_by_node(steps_of_job(view, view.runs["b"]), now)
        return [found[node][0].late for node in range(4)]

    assert late(100.0) == [False] * 4, "nobody has ended: nobody is late"
    ended(view, "b", 0, 10.0)
    assert late(100.0) == [False] * 4, "one alone says little"
    ended(view, "b", 1, 12.0)
    assert late(34.0) == [False] * 4
    assert late(37.0) == [False, False, True, True]
    ended(view, "b", 2, 20.0)
    ended(view, "b", 3, 40.0)
    assert late(99.0) == [False] * 4


def test_of_a_step_that_failed_the_last_lines_are_told() -> None:
    view = pool()
    opened(view, "b", "setup", 20.0)
    for line in range(9):
        view.logs.feed(2, "out", f"line {line}\n".encode(), 21.0, "b", "r002")
    assert failure_lines(view, steps_of_job(view, view.runs["b"])) == []
    ended(view, "b", 2, 1.0, "exited")
    cause = RootCause(2, "exited", "Exit", "ended with status 3")
    apply(view, events.RunEnded(pool="p", run="b", state="failed", root_cause=cause, at=22.0))
    said = failure_lines(view, steps_of_job(view, view.runs["b"]))
    assert said == ["n2 setup: ended with status 3", "  line 6", "  line 7", "  line 8"]


def test_who_comes_later_learns_the_job_with_the_nodes() -> None:
    view = pool()
    opened(view, "b", "setup", 20.0, job="")
    apply(view, events.RunPlaced(pool="p", run="b", nodes=[1, 2], job="j"))
    assert steps_of_job(view, view.runs["b"]) == [view.runs["b"]]


def test_who_follows_a_job_goes_on_with_its_next_step_or_is_told_that_none_comes() -> None:
    view, said, statuses = pool(), list[str](), iter((0, 0, 0, 7))
    run = opened(view, "a", "setup", 10.0)
    job = PoolCommand.__new__(PoolCommand)
    job.pool = job.key = "p"
    job.session = SimpleNamespace(view=lambda key: view, subscribe=lambda *_, **__: None)  # type: ignore[assignment]
    job.console = SimpleNamespace(note=said.append)  # type: ignore[assignment]
    job.follower = SimpleNamespace(  # type: ignore[assignment]
        wait_until=lambda come, most: come(), on_event=None, on_log=None
    )
    job.wait_and_report = lambda run, detach=False: next(statuses)  # type: ignore[method-assign]
    job._finish = lambda status: status  # type: ignore[method-assign]
    assert job.resume(run) == 0 and said == ["run a: setup on 4 ranks"], "it was the last one"
    run.more = True
    assert job.resume(run) == 1, "the job is not done"
    assert said[2:] == [
        "what follows setup has not begun: its client is gone, or it waits for nodes (skyward-tui queue p)"
    ]
    opened(view, "x", "other", 11.0, job="k")
    opened(view, "b", "train", 12.0)
    del said[:]
    assert job.resume(run) == 7 and said == ["run a: setup on 4 ranks", "run b: train on 4 ranks"]
