"""``skyward-tui exec``, ``launch`` and ``queue``: job files and commands run on pools, and queued runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import click

from skyward_core.client.launch import job_launch
from skyward_core.client.launch.job_launch import JobRequest, job_tasks, pool_job_tasks, shell_task
from skyward_core.client.launch.job_records import CommandRecord, JobRecord
from skyward_core.client.launch.script_plugin_provider_discovery import Task
from skyward_core.model import errors
from skyward_core.model.errors import UsageError
from skyward_core.model.specs import PoolSpec
from skyward_core.views.pool_view import PoolView
from skyward_core.views.stack_groups import format_ranges
from skyward_tui.cli.commands.run import PoolCommand, live_pool
from skyward_tui.cli.console import Console
from skyward_tui.cli.pool_and_run_lookup import live_pools, open_session
from skyward_tui.cli.run_report import table
from skyward_tui.cli.shared_options import NodeSelection, command, variable_options, watch_option
from skyward_tui.text.number_and_time_format import NO_RUN, clip, count, duration
from skyward_tui.text.queue_sweep_comparison_rows import queue_row_json, queue_rows, waiting_reason

if TYPE_CHECKING:
    from skyward_core.client.launch.job_launch import JobFile
    from skyward_core.client.launch.job_records import ShellRecord


@command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@variable_options
@click.option(
    "--nodes",
    metavar="N|LIST",
    type=NodeSelection(),
    help="Run a command on so many nodes, or on these (0,2); it waits until they are free.",
)
@click.option("--detach", is_flag=True, help="Leave as soon as it runs.")
@watch_option
@click.argument("pool")
@click.argument("words", metavar="TASK.YAML | [--] COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(
    console: Console,
    pool: str,
    words: tuple[str, ...],
    env: Sequence[str],
    secrets: Sequence[str],
    nodes: int | tuple[int, ...] | None,
    detach: bool,
    watch: bool,
) -> int:
    """Run a job file, or a command, on a pool that is up.

    Of a file its working folder is brought anew, and its run is run; its setup is not. A command runs on every rank:
    exec POOL nvidia-smi -L. Its exit status is that of the first rank that failed.
    """
    if words[0].startswith("-") and words[0] != "--":
        raise click.UsageError(
            f"options of exec stand before the pool, as in exec {words[0]} … {pool} COMMAND; "
            f"a command of that name behind --"
        )
    words = words[1:] if words[:1] == ("--",) else words
    if not words:
        raise click.UsageError("name a job file, or a command")
    is_file = words[0].endswith((".yaml", ".yml"))
    if is_file and len(words) > 1:
        raise click.UsageError(f"options of exec stand before the pool: exec {' '.join(words[1:])} {pool} {words[0]}")
    given, hidden = job_launch.parse_variables("--env", env), job_launch.parse_variables("--secret", secrets)
    if is_file:
        if nodes is not None:
            raise click.UsageError(f"{words[0]} says on how many nodes it runs, by num_nodes: leave out --nodes")
        job = job_launch.JobFile.from_yaml(Path(words[0]), env=given, secrets=hidden)
        return execute(pool, (), console, job=job, env={}, secrets={}, detach=detach, watch=watch)
    variables = job_launch.resolve_variables("--env", given)
    blanked = job_launch.resolve_variables("--secret", hidden)
    return execute(pool, words, console, env=variables, secrets=blanked, detach=detach, watch=watch, nodes=nodes)


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
    with open_session(console) as session:
        (row,) = live_pools(session, (pool,))
        runner = JobCommand(session, console, pool, ours=False, keep=True, watch=watch)
        with job_launch.temporary_folder(job_launch.TASKS_FOLDER) as large, runner.follower.catch_signals():
            kept: ShellRecord
            if job is None:
                steps = [replace(shell_task(words, env, secrets), nodes=nodes)]
                kept = CommandRecord.from_command(words, env, secrets, nodes)
            else:
                view = session.observe(row.key).result()
                check_fits(job, view)
                steps = pool_job_tasks(job, view, large, run_alone=True)
                kept = JobRecord.from_job(job, run_alone=True)
            return runner.note_waiting(None, steps, detach=detach, kept=kept)


class JobCommand(PoolCommand):
    """The calls of a job, one after the other, on one pool."""

    def note_waiting(
        self, spec: PoolSpec | None, steps: Sequence[Task], *, detach: bool, kept: ShellRecord | None = None
    ) -> int:
        """Run them until one fails, and give its exit status, or that of the last.

        Args:
            kept: the job, kept with each of its runs to be launched again.
        """

        told: set[str] = set()

        def tell_of_waiting() -> None:
            view = self.session.view(self.key)
            for row in queue_rows(view):
                mine = self.run is not None and row.run == self.run.id and row.run not in told
                if mine and row.waits and (row.behind[0] or row.free < row.wants or (row.only and row.holders)):
                    told.add(row.run)
                    self.console.note(f"run {row.run} {waiting_reason(row, time.time())}")

        self.follower.on_queue, self.follower.is_output_ours = tell_of_waiting, self.is_output_ours

        def work() -> int:
            status, job = errors.OK, token_hex(5)
            nodes: tuple[int, ...] = ()
            for number, step in enumerate(steps, 1):
                left = detach and number == len(steps)
                # The nodes that the first got are kept for those that follow.
                task = replace(step, job=job, more=number < len(steps))
                if nodes and isinstance(task.nodes, int):
                    task = replace(task, nodes=nodes)
                rest = ", ".join(each.name for each in steps[number:])
                self.detach_text = (
                    f"and leave it running, and what comes after it ({rest}) does not begin" if rest else ""
                )
                run = self.launch(task, stays=left, request=kept)
                status = self.wait_and_report(run, left)
                if run.state == "cancelled":
                    self.console.note(f"run {run.id} was cancelled")
                nodes = run.nodes
                if status != errors.OK:
                    if rest:
                        self.console.note(f"what comes after {task.name} is not begun: {rest}")
                    break
            return status

        return self.run_on_pool(spec, work)


def check_fits(job: JobFile, pool: PoolView) -> None:
    if job.num_nodes > len(pool.nodes):
        raise UsageError(
            f"{job.path} runs on {count(job.num_nodes, 'node')}, and pool {pool.name} has {len(pool.nodes)}: say fewer "
            "with num_nodes, or launch it on a pool of its own"
        )


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
    job = request.job
    with open_session(console) as session:
        found = live_pool(session, request.options.pool)
        if found is not None:
            check_fits(job, found)
            if said := request.shapes_pool:
                raise UsageError(f"pool {found.name} is up already and is used as it is: leave out {', '.join(said)}")
            spec, notes = None, list(job.notes)
        else:
            spec, notes = request.spec(clone=not dry_run)
        for note in notes:
            console.note(f"{job.path}: {note}")
        if dry_run:
            return _show_plan(job, spec, found, console, setup=setup)
        name = spec.name if spec is not None else found.name if found is not None else ""
        runner = JobCommand(session, console, name, ours=found is None or down, keep=not down, watch=watch)
        with job_launch.temporary_folder(job_launch.TASKS_FOLDER) as folder, runner.follower.catch_signals():
            steps = (
                list(job_tasks(job, folder, setup=setup))
                if found is None
                else pool_job_tasks(job, found, folder, setup=setup)
            )
            kept = JobRecord.from_job(job, request if spec is not None else None, setup=setup, down=down)
            status = runner.note_waiting(spec, steps, detach=detach, kept=kept)
        if not job.run.strip() and status == errors.OK:
            done = "" if spec is None else f"pool {name} was made"
            console.note(f"{job.path} has no run: {_result_text(job, done, setup=setup)}")
        if not down and spec is not None and runner.key and runner.error is None:
            idle = duration(spec.options.idle_timeout)
            console.note(f"pool {name} stays up, and ends itself {idle} after its last use: skyward-tui down {name}")
        return status


def _result_text(job: JobFile, pool: str, *, setup: bool) -> str:
    """What came of a job without ``run``."""
    did = [pool] if pool else []
    if job.mounts:
        did.append("its files were brought")
    if setup and job.setup.strip():
        did.append("its nodes were set up")
    return f"{', '.join(did) or 'nothing was done'}" + (", and nothing was run" if did else "")


def _show_plan(job: JobFile, spec: PoolSpec | None, found: PoolView | None, console: Console, *, setup: bool) -> int:
    """What a launch would do."""
    told = [("job", job.name or str(job.path))]
    if found is not None:
        told.append(("pool", f"{found.name}, which is up ({count(len(found.nodes), 'node')} on {found.provider})"))
    elif spec is not None:
        told.append(("pool", f"{spec.name}: {count(spec.most_nodes, 'node')} on {spec.provider.name}"))
        if spec.accelerator is not None:
            told.append(("accelerator", str(spec.accelerator)))
    told.append(("working folder", job.folder))
    told += [("brings", f"{source} to {target}") for target, source in job.mounts.items()]
    told += [(name, f"{len(text.splitlines())} lines") for name, text in _commands(job, setup=setup).items()]
    if not job.run.strip():
        told.append(("run", NO_RUN))
    console.print_line("\n".join(table(told)))
    console.result({"plan": [list(each) for each in told]})
    return errors.OK


def _commands(job: JobFile, *, setup: bool) -> dict[str, str]:
    texts = {"setup": job.setup if setup else "", "run": job.run}
    return {name: text for name, text in texts.items() if text.strip()}


@command()
@click.argument("pool")
def queue(console: Console, pool: str) -> int:
    """Show which runs have a pool's nodes, and which wait.

    Of those that wait it says why. First come, first served: a run that waits is before all that came after it.
    "cancel RUN" takes one out.
    """
    with open_session(console) as session:
        (row,) = live_pools(session, (pool,))
        view = session.observe(row.key).result()
        rows, now = queue_rows(view), time.time()
    if console.as_json:
        runs = [queue_row_json(each, now) for each in rows]
        console.result({"pool": view.name, "nodes": len(view.nodes), "runs": runs})
        return errors.OK
    if not rows:
        console.print_line(f"nothing runs or waits on pool {view.name} ({count(len(view.nodes), 'node')})")
        return errors.OK
    told = [("run", "name", "state", "nodes", "for", "")]
    for each in rows:
        state = "◌ waiting" if each.waits else "● running"
        nodes = format_ranges(each.nodes) if each.nodes else "-"
        since = duration(max(0.0, now - each.since))
        told.append((each.run, each.name, state, nodes, since, waiting_reason(each, now)))
    for line in table(told):
        console.print_line(clip(line, console.width))
    if waiting := next((each.run for each in rows if each.waits), ""):
        console.note(f"skyward-tui cancel {waiting} takes a waiting run out")
    return errors.OK
