"""``skyward-tui launch`` and ``exec``: run a job file on a pool, or a command."""

from __future__ import annotations

from skyward_core.front import passing_folders
from skyward_core.front.job_request import (
    JobFile,
    JobRequest,
    tasks_of,
    tasks_on,
)
from skyward_core.front.kept_jobs import KeptJob
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError
from skyward_core.model.spec import PoolSpec
from skyward_core.views.views import PoolView

from ..words import NO_RUN, count, duration
from .console import Console
from .execute import StepsRun, check_fits
from .reach import opened
from .report import table
from .run import have_terminal, live_pool


def launch(
    request: JobRequest,
    console: Console,
    *,
    setup: bool = True,
    detach: bool = False,
    down: bool = False,
    dry_run: bool = False,
    watch: bool = False,
) -> int:
    """Have a pool as a job file asks for it, set its nodes up, run the job, and give the exit status.

    A pool of that name that is up is used as it is. The pool stays up afterwards; ``down`` tears it down, also one that
    was up before.
    """
    if watch:
        have_terminal(console, detach=detach)
    job = request.job
    with opened(console) as session:
        found = live_pool(session, request.pool)
        if found is not None:
            check_fits(job, found)
            if said := request.shapes_pool:
                raise UsageError(
                    f"pool {found.name} is up already and is used as it is: leave out {', '.join(said)}"
                )
            spec, notes = None, list(job.notes)
        else:
            spec, notes = request.spec(clone=not dry_run)
        for note in notes:
            console.note(f"{job.path}: {note}")
        if dry_run:
            return _tell(job, spec, found, console, setup=setup)
        name = spec.name if spec is not None else found.name if found is not None else ""
        runner = StepsRun(session, console, name, ours=found is None or down, keep=not down)
        if watch:
            runner.watch()
        with passing_folders.held(passing_folders.TASKS) as folder, runner.follower.signals():
            steps = (
                list(tasks_of(job, folder, setup=setup))
                if found is None
                else tasks_on(job, found, folder, setup=setup)
            )
            kept = KeptJob.of(job, request if spec is not None else None, setup=setup, down=down)
            status = runner.all_of(spec, steps, detach=detach, kept=kept)
        if not job.run.strip() and status == exit_status.OK:
            done = "" if spec is None else f"pool {name} was made"
            console.note(f"{job.path} has no run: {_done(job, done, setup=setup)}")
        if not down and spec is not None and runner.key and runner.error is None:
            idle = duration(spec.options.idle_timeout)
            console.note(
                f"pool {name} stays up, and ends itself {idle} after its last use: skyward-tui down {name}"
            )
        return status


def _done(job: JobFile, pool: str, *, setup: bool) -> str:
    """What came of a job without ``run``."""
    did = [pool] if pool else []
    if job.mounts:
        did.append("its files were brought")
    if setup and job.setup.strip():
        did.append("its nodes were set up")
    return f"{', '.join(did) or 'nothing was done'}" + (", and nothing was run" if did else "")


def _tell(
    job: JobFile, spec: PoolSpec | None, found: PoolView | None, console: Console, *, setup: bool
) -> int:
    """What a launch would do."""
    told = [("job", job.name or str(job.path))]
    if found is not None:
        told.append(
            ("pool", f"{found.name}, which is up ({count(len(found.nodes), 'node')} on {found.provider})")
        )
    elif spec is not None:
        told.append(("pool", f"{spec.name}: {count(spec.most_nodes, 'node')} on {spec.provider.name}"))
        if spec.accelerator is not None:
            told.append(("accelerator", str(spec.accelerator)))
    told.append(("working folder", job.folder))
    told += [("brings", f"{source} to {target}") for target, source in job.mounts.items()]
    told += [(name, f"{len(text.splitlines())} lines") for name, text in _commands(job, setup=setup).items()]
    if not job.run.strip():
        told.append(("run", NO_RUN))
    for line in table(told):
        console.say(line)
    console.result({"plan": [list(each) for each in told]})
    return exit_status.OK


def _commands(job: JobFile, *, setup: bool) -> dict[str, str]:
    texts = {"setup": job.setup if setup else "", "run": job.run}
    return {name: text for name, text in texts.items() if text.strip()}
