"""A launch, from the checked form to the end of the run. It outlives the form that began it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from typing import TYPE_CHECKING, NamedTuple

from skyward_core.model.capabilities import Asks
from skyward_core.model.errors import Cancelled, PoolError, PoolGone, SkywardError
from skyward_core.views.views import PoolView, RunView

from ..app_face import AppFace, settled
from ..dialogs.ask import ChoiceScreen
from ..hints import words_of
from ..trial_words import outcome_line
from ..unfetched import receipt_line
from ..words import one_line

if TYPE_CHECKING:
    from skyward_core.front.base import Front
    from skyward_core.front.launch_plan import LaunchPlan
    from skyward_core.front.launch_request import LaunchRequest
    from skyward_core.front.scripts import Task

    from ..job_form import JobPlan


class BegunPool(NamedTuple):
    """The pool that a launch uses: its key, and when it is up; None where it was before."""

    key: str
    created: Future[PoolView] | None = None


async def create(app: AppFace, plan: LaunchPlan | JobPlan) -> BegunPool:
    """Ask for the pool; returns as soon as there is one to look at.

    Raises:
        SkywardError: it was refused at once (its name is taken, the ledger cannot be written).
    """
    session = app.session
    if session is None:
        raise PoolError(app.session_error or "the ledger is still being read; try again in a moment")
    if isinstance(plan.pool, PoolView):
        used = plan.pool
        if not any(pool.key == used.key and pool.is_live for pool in session.pools()):
            raise PoolError(f"pool {used.name} is not up any more")
        return BegunPool(used.key)
    if isinstance(plan.pool.provider, Asks):
        app.host_keys.begin(session)
    begun: Future[PoolView] = Future()
    created = session.create(plan.pool, begun=begun)
    return BegunPool((await settled(begun)).key, created)


async def follow(
    app: AppFace, plan: LaunchPlan, tasks: Sequence[Task], begun: BegunPool, request: LaunchRequest
) -> None:
    """Launch when the pool is ready; a pool that is not to be kept is torn down when the run has ended.

    Args:
        tasks: one, or of a sweep one for each combination.
    """
    session, joined = app.session, plan.spec is None
    if session is None:
        return
    if begun.created is not None and not await _is_up(app, plan, begun.created):
        return
    failed = ""
    try:
        if plan.sheet is not None:
            launched = session.launch_sweep(begun.key, tasks, plan.sheet, request, joined=joined)
        else:
            launched = session.launch(begun.key, tasks[0], one=plan.one, request=request, joined=joined)
        run = await settled(launched)
        await _keep(app, session, begun.key, run, request, joined=joined)
        if plan.sheet is not None and plan.sheet.gang:
            await _see_gangs_out(app, session, begun.key, run)
        elif plan.keep or plan.spec is None:
            return
        else:
            await settled(session.wait(begun.key, run.id))
    except SkywardError as error:
        failed = one_line(words_of(error))
    await _end(app, session, plan, begun.key, "run ended, ", failed)


async def _see_gangs_out(app: AppFace, session: Front, pool: str, run: RunView) -> None:
    """Wait for all runs of a sweep by gangs, and say how it went.

    Raises:
        SkywardError: why the rest of them was not begun.
    """
    from skyward_core.views.metrics import MetricBook

    try:
        await settled(session.sweep_over(pool, run.id))
    except PoolGone:  # whoever tore it down knows
        return
    board = await settled(session.trials(pool, run))
    view = next((each for each in session.pools() if each.key == pool), None)
    runs = {} if view is None else view.runs
    found = board.table(run.id, run.tasks, MetricBook(), runs)
    said = outcome_line(found, run.id)
    app.flash(
        said or f"all {len(found.rows):,} combinations of {run.function} have results",
        "error" if said else "done",
    )


async def _end(
    app: AppFace, session: Front, plan: LaunchPlan | JobPlan, key: str, ended: str, failed: str
) -> None:
    """Tear down a pool that was made for what has ended, be it by an error, and say both in one line."""
    name = plan.pool.name
    ours = plan.spec is not None and not plan.keep
    if failed:
        app.flash(f"{name}: {failed}", "error")
        ours = ours and any(pool.key == key and pool.is_live for pool in session.pools())
    if not ours:
        return
    try:
        receipt = await settled(session.down(key))
    except SkywardError as error:
        app.flash(f"{name}: {one_line(words_of(error))}", "error")
        return
    said = f"{failed}; " if failed else ended
    app.flash(
        f"{said}{name} torn down: {receipt_line(receipt)}", "done" if receipt.ok and not failed else "error"
    )


async def _keep(
    app: AppFace, session: Front, pool: str, run: RunView, request: LaunchRequest, *, joined: bool
) -> None:
    """Keep what the run was launched with, so that it can be launched again."""
    try:
        await settled(session.keep_launch(pool, run.id, request, joined=joined))
    except OSError as error:
        app.flash(f"how run {run.id} was launched is not kept whole: {error}", "error")


async def follow_job(
    app: AppFace, plan: JobPlan, steps: Sequence[Task], folder: Path, begun: BegunPool
) -> None:
    """Run a job's steps one by one when the pool is ready; each is a run of its own, and the first that fails is the
    last.

    Args:
        folder: that has what is large of them, and goes with the last.
    """
    session = app.session
    if session is None:
        return
    from skyward_core.front.kept_jobs import KeptJob

    job, failed = token_hex(5), ""
    kept = KeptJob.of(plan.job, plan.request, down=plan.spec is not None and not plan.keep)
    nodes: tuple[int, ...] = ()
    try:
        if begun.created is not None and not await _is_up(app, plan, begun.created):
            return
        for number, step in enumerate(steps, 1):
            task = replace(step, job=job, more=number < len(steps))
            if nodes and isinstance(task.nodes, int):
                task = replace(task, nodes=nodes)
            run = await settled(session.launch(begun.key, task, request=kept))
            await settled(session.wait(begun.key, run.id))
            nodes = run.nodes
            if run.state != "done":
                rest = ", ".join(each.name for each in steps[number:])
                failed = f"{task.name} {run.state}" + (f": {rest} not begun" if rest else "")
                break
        else:
            done = "is done" if plan.job.run.strip() else "has no run: nothing was run"
            app.flash(f"job {plan.job.name or plan.job.path.name} {done}", "done")
    except SkywardError as error:
        failed = one_line(words_of(error))
    finally:
        rmtree(folder, ignore_errors=True)
    await _end(app, session, plan, begun.key, "", failed)


async def _is_up(app: AppFace, plan: LaunchPlan | JobPlan, created: Future[PoolView]) -> bool:
    try:
        await settled(created)
    except Cancelled as error:
        app.flash(words_of(error))
        return False
    except SkywardError as error:
        _offer_another_try(app, f"Pool {plan.pool.name} did not start", words_of(error))
        return False
    app.unlaunched = None
    return True


def _offer_another_try(app: AppFace, title: str, text: str) -> None:
    """Say what went wrong; the form, as it was filled in, is one key away."""

    def go(choice: str | None) -> None:
        if choice == "edit":
            app.show_launch()

    choices = [("close", "Close", False), ("edit", "Change the launch", False)]
    app.push_screen(ChoiceScreen(title, text, choices, escape="close"), go)
