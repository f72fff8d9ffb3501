"""``skyward-tui run``, ``torchrun`` and ``launch``: their options and help, without the modules that do the work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_tui.cli.shared_options import (
    SCRIPT_ARGUMENTS,
    TORCHRUN_OPTIONS,
    NodesOption,
    ScriptCommand,
    command,
    function_arguments,
    ignored_option_notes,
    launch_options,
    module_file,
    parse_nproc,
    script_arguments,
    script_commands,
    torchrun_options,
    variable_options,
    watch_option,
)

if TYPE_CHECKING:
    from skyward_tui.cli.console import Console


@command(cls=ScriptCommand, options_metavar="[OPTIONS]")
@click.argument("target", metavar="SCRIPT[:FUNCTION]")
@launch_options("run")
@click.option("-m", "--module", "as_module", is_flag=True, help="SCRIPT is a module's name, run whole as by python -m.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be made and run, and what it would cost.")
@watch_option
@click.pass_context
def run(
    context: click.Context,
    console: Console,
    /,
    target: str,
    as_module: bool,
    dry_run: bool,
    watch: bool,
    **said: Any,
) -> int:
    """Run a script's function on every rank, and show the results.

    Flags of the function stand behind the script: run train.py --epochs 5. A script without a function, and one with
    a -- behind it, is run as a whole, as python runs it: run train.py -- --epochs 5. One with commands of sky.app runs
    as python -m skyward_core runs it, on the machines that it names.

    The pool is made for it and torn down after it. ctrl-c asks whether to detach, cancel or tear down; off a
    terminal it cancels, as SIGTERM does. A second one tears down.
    """
    from skyward_tui.cli.commands import run as work
    from skyward_tui.launch_form.form import expand_example

    if as_module:
        said["module"], target = target, str(module_file(target))
        context.meta[SCRIPT_ARGUMENTS] = context.meta[SCRIPT_ARGUMENTS] or []
    target = expand_example(target)
    if not as_module and (commands := script_commands(target)):
        return work.run_command(context, target, commands, console)
    said["script_args"] = own = script_arguments(context, target)
    if own is None:
        options = [name for each in context.command.params for name in each.opts if name.startswith("--")]
        said["arguments"] = [*said["arguments"], *function_arguments(target, context.args, options)]
    return work.run(LaunchRequest.from_options(target, **said), console, dry_run=dry_run, watch=watch)


@command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--nnodes", metavar="N", type=NodesOption(), envvar="PET_NNODES", help="Machines.  [default: 1, or all hosts]"
)
@click.option(
    "--nproc-per-node", "--nproc_per_node", metavar="N|gpu", default="1", envvar="PET_NPROC_PER_NODE",
    help="Processes on each machine.  [default: 1]",
)  # fmt: skip
@click.option("-m", "--module", "as_module", is_flag=True, help="TRAIN.PY is a module's name, as of python -m.")
@torchrun_options
@launch_options("torchrun")
@watch_option
@click.argument("training_script", metavar="TRAIN.PY")
@click.argument("script_args", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def torchrun(
    console: Console,
    training_script: str,
    nnodes: int | str | None,
    nproc_per_node: str,
    as_module: bool,
    watch: bool,
    **said: Any,
) -> int:
    """Run a script on a pool, with the options of PyTorch's torchrun.

    torchrun's own options are all known. What one of them cannot mean here is said, or refused. What stands behind the
    script is the script's own.
    """
    from skyward_core.client.launch.script_plugin_provider_discovery import DEFAULT_PROVIDER
    from skyward_tui.cli.commands import run

    notes = list(ignored_option_notes(said))
    asked = {name: value for name, value in said.items() if name.replace("_", "-") not in TORCHRUN_OPTIONS}
    shape = nproc_per_node, nnodes
    for note in notes:
        console.note(note)
    if not asked["pool"] or shape != ("1", None):
        is_here = not asked["hosts"] and asked["provider"] in (None, DEFAULT_PROVIDER)
        asked |= {"nodes": shape[1], "ranks_per_node": parse_nproc(nproc_per_node, is_here=is_here)}
    asked["torchrun"] = shape[1] in (None, 1) and nproc_per_node in ("1", "gpu", "auto", "cpu")
    if as_module:
        asked["module"] = training_script
        training_script = str(module_file(training_script))
    return run.run(LaunchRequest.from_options(training_script, **asked), console, watch=watch)


@command()
@click.argument("file", metavar="TASK.YAML")
@click.option("-c", "--pool", "pool", metavar="POOL", help="The pool's name; one that is up is used as it is.")
@launch_options("launch")
@variable_options
@click.option("--no-setup", is_flag=True, help="Do not run the file's setup.")
@click.option("--detach", is_flag=True, help="Leave as soon as the job runs.")
@click.option(
    "-i",
    "--idle-minutes",
    metavar="MIN",
    type=click.FloatRange(0, min_open=True),
    help="The pool ends so long after its last use.",
)
@click.option("--down", is_flag=True, help="Tear the pool down when the job is over; with -i once it is idle.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be made and run.")
@watch_option
def launch(
    console: Console,
    file: str,
    env: Sequence[str],
    secrets: Sequence[str],
    no_setup: bool,
    detach: bool,
    idle_minutes: float | None,
    down: bool,
    dry_run: bool,
    watch: bool,
    **said: Any,
) -> int:
    """Run a job file, as SkyPilot's task YAML is, on a pool.

    On one of its own, or on one that is up.

    Files and working folder are brought to all nodes; then setup runs on all of them, then run. The pool stays up, and
    ends itself when nobody has used it for a while.
    """
    from skyward_core.client.launch import job_launch
    from skyward_tui.cli.commands import exec_launch_queue

    if detach and down and idle_minutes is None:
        raise click.UsageError("--detach leaves the job running, and --down ends its pool: give -i MIN with both")
    given, hidden = job_launch.parse_variables("--env", env), job_launch.parse_variables("--secret", secrets)
    job = job_launch.JobFile.from_yaml(Path(file), env=given, secrets=hidden)
    idle = None if idle_minutes is None else idle_minutes * 60
    request = job_launch.JobRequest(job=job, options=LaunchRequest.from_options(file, **said), idle_timeout=idle)
    ends = down and idle is None
    return exec_launch_queue.launch(
        request, console, setup=not no_setup, detach=detach, down=ends, dry_run=dry_run, watch=watch
    )
