"""``skyward-tui exec``: run a job file's ``run``, or a command, on a pool that is up."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING

from skyward_core.front import passing_folders
from skyward_core.front.scripts import Task
from skyward_core.front.shell_tasks import shell_task
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError
from skyward_core.model.spec import PoolSpec
from skyward_core.views.views import PoolView

from ..queue_rows import queue_of
from ..queue_words import reason
from ..words import count
from .console import Console
from .reach import opened, up
from .run import Job, have_terminal

if TYPE_CHECKING:
    from skyward_core.front.job_request import JobFile
    from skyward_core.front.kept_commands import KeptShell


def execute(
    pool: str,
    words: Sequence[str],
    console: Console,
    *,
    job: JobFile | None = None,
    env: Mapping[str, str],
    secrets: Mapping[str, str],
    detach: bool = False,
    nodes: int | tuple[int, ...] | None = None,
    watch: bool = False,
) -> int:
    """Run a job file's ``run``, or a command, on a pool that is up, and give the exit status.

    The working folder is brought anew where the file names one; nothing is set up.

    Args:
        nodes: how many of the pool's nodes run a command, or which; None for all.
    """
    if watch:
        have_terminal(console, detach=detach)
    with opened(console) as session:
        (row,) = up(session, (pool,))
        runner = StepsRun(session, console, pool, ours=False, keep=True)
        if watch:
            runner.watch()
        with passing_folders.held(passing_folders.TASKS) as large, runner.follower.signals():
            kept: KeptShell
            if job is None:
                from skyward_core.front.kept_commands import KeptCommand

                steps = [replace(shell_task(words, env, secrets), nodes=nodes)]
                kept = KeptCommand.of(words, env, secrets, nodes)
            else:
                from skyward_core.front.job_request import tasks_on  # a command is there sooner without
                from skyward_core.front.kept_jobs import KeptJob

                view = session.look(row.key).result()
                check_fits(job, view)
                steps = tasks_on(job, view, large, run_alone=True)
                kept = KeptJob.of(job, run_alone=True)
            return runner.all_of(None, steps, detach=detach, kept=kept)


class StepsRun(Job):
    """The calls of a job, one after the other, on one pool."""

    def all_of(
        self, spec: PoolSpec | None, steps: Sequence[Task], *, detach: bool, kept: KeptShell | None = None
    ) -> int:
        """Run them until one fails, and give its exit status, or that of the last.

        Args:
            kept: the job, kept with each of its runs to be launched again.
        """

        told: set[str] = set()

        def tell_of_waiting() -> None:
            view = self.session.view(self.key)
            for row in queue_of(view):
                mine = self.run is not None and row.run == self.run.id and row.run not in told
                if (
                    mine
                    and row.waits
                    and (row.behind[0] or row.free < row.wants or (row.only and row.holders))
                ):
                    told.add(row.run)
                    self.console.note(f"run {row.run} {reason(row, time.time())}")

        self.follower.on_queue, self.follower.prints = tell_of_waiting, self.prints

        def work() -> int:
            status, job = exit_status.OK, token_hex(5)
            nodes: tuple[int, ...] = ()
            for number, step in enumerate(steps, 1):
                left = detach and number == len(steps)
                # The nodes that the first got are kept for those that follow.
                task = replace(step, job=job, more=number < len(steps))
                if nodes and isinstance(task.nodes, int):
                    task = replace(task, nodes=nodes)
                rest = ", ".join(each.name for each in steps[number:])
                self.leaving = (
                    f"and leave it running, and what comes after it ({rest}) does not begin" if rest else ""
                )
                run = self.launch(task, stays=left, request=kept)
                status = self.see_out(run, left)
                if run.state == "cancelled":
                    self.console.note(f"run {run.id} was cancelled")
                nodes = run.nodes
                if status != exit_status.OK:
                    if rest:
                        self.console.note(f"what comes after {task.name} is not begun: {rest}")
                    break
            return status

        return self.through(spec, work)


def check_fits(job: JobFile, pool: PoolView) -> None:
    if job.num_nodes > len(pool.nodes):
        raise UsageError(
            f"{job.path} runs on {count(job.num_nodes, 'node')}, and pool {pool.name} has {len(pool.nodes)}: say fewer "
            "with num_nodes, or launch it on a pool of its own"
        )
