"""``skyward-tui exec``: run a job file's ``run``, or a command, on a pool that is up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from skyward_core.front.scripts import Task
from skyward_core.front.shell_tasks import shell_task
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError
from skyward_core.model.spec import PoolSpec
from skyward_core.views.views import PoolView

from ..words import count
from .console import Console
from .reach import opened, up
from .run import Job, have_terminal

if TYPE_CHECKING:
    from skyward_core.front.job_request import JobFile


def execute(
    pool: str,
    words: Sequence[str],
    console: Console,
    *,
    job: JobFile | None = None,
    env: Mapping[str, str],
    secrets: Mapping[str, str],
    detach: bool = False,
    watch: bool = False,
) -> int:
    """Run a job file's ``run``, or a command, on a pool that is up, and give the exit status.

    The working folder is brought anew where the file names one; nothing is set up.
    """
    if watch:
        have_terminal(console, detach=detach)
    with opened(console) as session:
        (row,) = up(session, (pool,))
        runner = StepsRun(session, console, pool, ours=False, keep=True)
        if watch:
            runner.watch()
        with TemporaryDirectory(prefix="skyward-job-") as large, runner.follower.signals():
            if job is None:
                steps = [shell_task(words, env, secrets)]
            else:
                from skyward_core.front.job_request import tasks_on  # a command is there sooner without

                view = session.look(row.key).result()
                check_fits(job, view)
                steps = tasks_on(job, view, Path(large), run_alone=True)
            return runner.all_of(None, steps, detach=detach)


class StepsRun(Job):
    """The calls of a job, one after the other, on one pool."""

    def all_of(self, spec: PoolSpec | None, steps: Sequence[Task], *, detach: bool) -> int:
        """Run them until one fails, and give its exit status, or that of the last."""

        def work() -> int:
            status = exit_status.OK
            for number, task in enumerate(steps, 1):
                left = detach and number == len(steps)
                status = self.see_out(self.launch(task, stays=left), left)
                if status != exit_status.OK:
                    if rest := [each.name for each in steps[number:]]:
                        self.console.note(f"what comes after {task.name} is not begun: {', '.join(rest)}")
                    break
            return status

        return self.through(spec, work)


def check_fits(job: JobFile, pool: PoolView) -> None:
    if job.num_nodes > len(pool.nodes):
        raise UsageError(
            f"{job.path} runs on {count(job.num_nodes, 'node')}, and pool {pool.name} has {len(pool.nodes)}: say fewer "
            "with num_nodes, or launch it on a pool of its own"
        )
