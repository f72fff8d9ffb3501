"""``skyward-tui exec``, ``launch`` and ``queue``: job files and commands on pools, and the queue of a pool."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import click

from skyward_core.client.launch import job_and_shell_launch
from skyward_core.client.launch.job_and_shell_launch import JobRequest, job_steps, shell_task
from skyward_core.client.launch.launch_records_and_script_state import CommandRecord, JobRecord
from skyward_core.client.launch.plugin_and_provider_catalog import Task
from skyward_core.model import errors
from skyward_core.model.errors import UsageError
from skyward_core.model.specs import PoolSpec
from skyward_core.views.pool_view import PoolView
from skyward_core.views.stack_groups_and_profiles import format_ranges
from skyward_tui.cli.commands.launched_and_attached_runs import PoolCommand, live_pool
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.pool_and_run_lookup import live_pools, open_session
from skyward_tui.cli.shared_options_and_command_class import (
    ConsoleCommand,
    NodeSelection,
    command,
    variable_options,
    watch_option,
)
from skyward_tui.launch_form.job_file_plan import JobPlan, job_rows
from skyward_tui.text.number_time_and_run_state_format import count, duration
from skyward_tui.text.queue_trial_and_comparison_rows import queue_row_json, queue_rows, waiting_reason

if TYPE_CHECKING:
    from skyward_core.client.launch.job_and_shell_launch import JobFile
    from skyward_core.client.launch.launch_records_and_script_state import ShellRecord


class ExecCommand(ConsoleCommand):
    """Class of the command ``exec``. If the command to run is one quoted word with spaces, options of ``exec`` may
    follow it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        first, *others = ctx.params.get("words") or [""]
        if others and others[0].startswith("-") and first.split() != [first]:
            ctx.params.clear()
            return super().parse_args(ctx, [*others, *given[: -len(others)]])
        return rest


@command("exec", cls=ExecCommand, context_settings={"allow_interspersed_args": False})
@variable_options
@click.option(
    "--nodes",
    metavar="N|LIST",
    type=NodeSelection(),
    help="Wait for N free nodes, or for the listed nodes (0,2), and run the command on them. 0 means node 0.",
)
@click.option("--detach", is_flag=True, help="Exit as soon as the job or command runs.")
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

    For a job file, uploads its working folder and runs its run commands, but skips its setup commands. A command runs
    on every rank: exec POOL nvidia-smi -L. The exit status is that of the first rank that failed.
    """
    if words[0].startswith("-") and words[0] != "--":
        raise click.UsageError(
            f"options of exec must precede the pool: exec {words[0]} … {pool} COMMAND. "
            f"Put -- before a command that begins with a dash"
        )
    if words[0] == "--":
        words = words[1:]
    else:
        for own in {"--json", "--detach", "--watch"}.intersection(words[1:]):
            console.note(f"{own} is an option of {words[0]} here. Options of exec must precede the pool")
    if not words:
        raise click.UsageError("name a job file, or a command")
    is_file = words[0].endswith((".yaml", ".yml"))
    if is_file and len(words) > 1:
        raise click.UsageError(f"options of exec must precede the pool: exec {' '.join(words[1:])} {pool} {words[0]}")
    given = job_and_shell_launch.parse_variables("--env", env)
    hidden = job_and_shell_launch.parse_variables("--secret", secrets)
    if is_file:
        if nodes is not None:
            raise click.UsageError(f"{words[0]} sets its number of nodes with num_nodes. Remove --nodes")
        job = job_and_shell_launch.read_job_file(Path(words[0]), given, hidden)
        return execute(pool, (), console, job=job, env={}, secrets={}, detach=detach, watch=watch)
    variables = job_and_shell_launch.resolve_variables("--env", given)
    blanked = job_and_shell_launch.resolve_variables("--secret", hidden)
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
    """Run the ``run`` section of a job file, or a command, on a running pool, and return the exit status.

    The working folder of the job file is uploaded. Its ``setup`` section is not run.

    Args:
        pool: Name or key of the pool.
        words: Words of the command; empty for a job file.
        console: Console for the output.
        job: The job file; None for a command.
        env: Variables of the command by name.
        secrets: Variables of the command whose values are masked in logs.
        detach: Whether to return as soon as the last step runs.
        nodes: Number of nodes that run the command, or the indexes of these nodes; None for all nodes.
        watch: Whether to show a live summary instead of the output.
    """
    with open_session(console) as session:
        (row,) = live_pools(session, (pool,))
        runner = JobCommand(session, console, pool, ours=False, keep=True, watch=watch)
        with (
            job_and_shell_launch.temporary_folder(job_and_shell_launch.TASKS_FOLDER) as large,
            runner.follower.catch_signals(),
        ):
            record: ShellRecord
            if job is None:
                steps = [replace(shell_task(words, env, secrets), nodes=nodes)]
                record = CommandRecord.from_command(words, env, secrets, nodes)
            else:
                view = session.observe(row.key).result()
                check_fits(job, view)
                steps = job_steps(job, view, large, run_alone=True)
                record = JobRecord.from_job(job, run_alone=True)
            return runner.run_steps(None, steps, detach=detach, record=record, is_whole=False)


class JobCommand(PoolCommand):
    """Execution of the steps of a job, one after the other on one pool."""

    def run_steps(
        self, spec: PoolSpec | None, steps: Sequence[Task], *, detach: bool, record: ShellRecord, is_whole: bool
    ) -> int:
        """Run the steps until one fails. Return the exit status of the failed step, or of the last one.

        Args:
            spec: The pool to create; None for a running pool.
            steps: The steps in their order.
            detach: Whether to return as soon as the last step runs.
            record: Record of the job's launch, saved with each run of the job for ``rerun``.
            is_whole: Whether the steps include the set-up of the nodes, so that they can be repeated on new machines.
        """

        noted: set[str] = set()

        def note_queued() -> None:
            for row in queue_rows(self.session.view(self.key)):
                mine = self.run is not None and row.run == self.run.id and row.run not in noted
                if mine and row.waits and (row.behind[0] or row.free < row.wants or (row.only and row.holders)):
                    noted.add(row.run)
                    self.console.note(f"run {row.run} {waiting_reason(row, time.time())}")

        self.follower.on_queue, self.follower.is_output_ours = note_queued, self.is_output_ours

        def work() -> int:
            status, job = errors.OK, token_hex(5)
            nodes: tuple[int, ...] = ()
            for number, step in enumerate(steps, 1):
                detaches = detach and number == len(steps)
                # All later steps of the job must run on the nodes of the first step.
                before = tuple(steps[: number - 1]) if is_whole else None
                task = replace(step, job=job, more=number < len(steps), before=before)
                if nodes and isinstance(task.nodes, int):
                    task = replace(task, nodes=nodes)
                rest = ", ".join(each.name for each in steps[number:])
                self.detach_text = f"this step continues, the remaining steps ({rest}) are skipped" if rest else ""
                run = self.launch(task, is_retained=detaches, request=record)
                status = self.wait_and_report(run, detaches)
                if run.state == "cancelled":
                    self.console.note(f"run {run.id} was cancelled")
                nodes = run.nodes
                if status != errors.OK:
                    if rest:
                        self.console.note(f"skipped after {task.name}: {rest}")
                    break
            return status

        return self.run_on_pool(spec, work, record)


def check_fits(job: JobFile, pool: PoolView) -> None:
    if job.num_nodes > len(pool.nodes):
        raise UsageError(
            f"{job.path} needs {count(job.num_nodes, 'node')}, but pool {pool.name} has {len(pool.nodes)}. Reduce "
            "num_nodes, or launch the job on a new pool"
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
    """Create the pool of a job file, set up its nodes, run the job, and return the exit status.

    A running pool of that name is used as it is.

    Args:
        request: The job and the options of its pool.
        console: Console for the output.
        setup: Whether to run the setup commands of the job file.
        detach: Whether to return as soon as the job runs.
        down: Whether to tear the pool down afterwards, even if the pool was up before.
        dry_run: Whether to show the plan without creating or running anything.
        watch: Whether to show a live summary instead of the output.
    """
    job = request.job
    with open_session(console) as session:
        pool: PoolView | PoolSpec
        if (found := live_pool(session, request.options.pool)) is None:
            spec, notes = request.spec(clone=not dry_run)
            pool = spec
        else:
            check_fits(job, found)
            spec, notes, pool = None, list(job.notes), found
            if options := request.shapes_pool:
                raise UsageError(f"pool {pool.name} is up and is used as it is. Remove {', '.join(options)}")
        for note in notes:
            console.note(f"{job.path}: {note}")
        if dry_run:
            shown = job if setup else replace(job, setup="")
            rows = job_rows(JobPlan(shown, request, pool, (), (), not down), f"skyward-tui down {pool.name}")
            console.print_table(rows)
            console.result({"plan": [list(each) for each in rows]})
            return errors.OK
        runner = JobCommand(session, console, pool.name, ours=found is None or down, keep=not down, watch=watch)
        with (
            job_and_shell_launch.temporary_folder(job_and_shell_launch.TASKS_FOLDER) as folder,
            runner.follower.catch_signals(),
        ):
            steps = job_steps(job, found, folder, setup=setup)
            record = JobRecord.from_job(job, request if spec is not None else None, setup=setup, down=down)
            status = runner.run_steps(spec, steps, detach=detach, record=record, is_whole=setup)
        if not job.run.strip() and status == errors.OK:
            done = "" if spec is None else f"created pool {pool.name}"
            console.note(f"{job.path} has no run commands: {_result_text(job, done, setup=setup)}")
        if not down and spec is not None and runner.key and runner.error is None:
            idle = duration(spec.options.idle_timeout)
            console.note(
                f"pool {pool.name} stays up until it is idle for {idle}; end it now: skyward-tui down {pool.name}"
            )
        return status


def _result_text(job: JobFile, pool: str, *, setup: bool) -> str:
    """Return a text about what was done for a job without a ``run`` section, such as "set up its nodes"."""
    done = [pool] if pool else []
    if job.mounts:
        done.append("uploaded its files")
    if setup and job.setup.strip():
        done.append("set up its nodes")
    return ", ".join(done) or "nothing was done"


@command()
@click.argument("pool")
def queue(console: Console, pool: str) -> None:
    """Show the running and queued runs of a pool.

    Each queued run is shown with its reason for waiting. Runs start in the order of their arrival. Remove a run from
    the queue with "cancel RUN".
    """
    with open_session(console) as session:
        (row,) = live_pools(session, (pool,))
        view = session.observe(row.key).result()
        rows, now = queue_rows(view), time.time()
    if console.as_json:
        runs = [queue_row_json(each, now) for each in rows]
        console.result({"pool": view.name, "nodes": len(view.nodes), "runs": runs})
        return
    if not rows:
        console.print_line(f"no running or queued runs on pool {view.name} ({count(len(view.nodes), 'node')})")
        return
    lines = [("run", "name", "state", "nodes", "for", "")]
    for each in rows:
        state = "◌ waiting" if each.waits else "● running"
        nodes = format_ranges(each.nodes) if each.nodes else "-"
        since = duration(max(0.0, now - each.since))
        lines.append((each.run, each.name, state, nodes, since, waiting_reason(each, now)))
    console.print_table(lines, clipped=True)
    if waiting := next((each.run for each in rows if each.waits), ""):
        console.note(f"remove a queued run: skyward-tui cancel {waiting}")
