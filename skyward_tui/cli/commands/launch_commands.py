"""Options and help of ``skyward-tui run``, ``torchrun`` and ``launch``.

The modules that do the work are imported only when a command runs.
"""

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
    command_options,
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
@click.option(
    "-m", "--module", "as_module", is_flag=True, help="Treat SCRIPT as a module name, and run it like python -m."
)
@click.option("--dry-run", is_flag=True, help="Show the plan and its cost without creating or running anything.")
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

    Pass arguments of the function after the script: run train.py --epochs 5. A script without a function, or with --
    after its name, runs as a whole, as with python: run train.py -- --epochs 5. A script with commands of sky.app runs
    as with python -m skyward_core, on the machines that it names.

    The pool is created for the run and torn down afterwards. ctrl-c asks whether to detach, cancel or tear down.
    Without a terminal, ctrl-c and SIGTERM cancel the run. A second signal tears the pool down.
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
        options = command_options(context.command)
        said["arguments"] = [*said["arguments"], *function_arguments(target, context.args, options)]
    return work.run(LaunchRequest.from_options(target, **said), console, dry_run=dry_run, watch=watch)


@command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--nnodes",
    metavar="N",
    type=NodesOption(),
    envvar="PET_NNODES",
    help="Number of machines.  [default: 1, or all hosts]",
)
@click.option(
    "--nproc-per-node", "--nproc_per_node", metavar="N|gpu", default="1", envvar="PET_NPROC_PER_NODE",
    help="Number of ranks on each machine.  [default: 1]",
)  # fmt: skip
@click.option("-m", "--module", "as_module", is_flag=True, help="Treat TRAIN.PY as a module name, like python -m.")
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

    All options of torchrun are accepted. Options without a meaning here are reported or rejected. Words after the
    script are the script's own arguments.
    """
    from skyward_core.client.launch.plugin_and_provider_catalog import DEFAULT_PROVIDER
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
@click.option(
    "-c", "--pool", "pool", metavar="POOL", help="Name of the pool. A running pool of this name is used as it is."
)
@launch_options("launch")
@variable_options
@click.option("--no-setup", is_flag=True, help="Skip the setup commands of the job file.")
@click.option("--detach", is_flag=True, help="Exit as soon as the job runs.")
@click.option(
    "-i",
    "--idle-minutes",
    metavar="MIN",
    type=click.FloatRange(0, min_open=True),
    help="Shut the pool down after MIN idle minutes.",
)
@click.option("--down", is_flag=True, help="Tear the pool down after the job, or with -i after the idle time.")
@click.option("--dry-run", is_flag=True, help="Show the plan without creating or running anything.")
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
    """Run a job file (SkyPilot task YAML) on a pool.

    The job runs on a new pool, or on a running pool named by --pool.

    The files and the working folder are uploaded to all nodes. Then setup runs on all nodes, then run. The pool stays
    up, and shuts down after its idle time.
    """
    from skyward_core.client.launch import job_launch
    from skyward_tui.cli.commands import exec_launch_queue

    if detach and down and idle_minutes is None:
        raise click.UsageError("--detach cannot be combined with --down, which ends the running job. Add -i MIN")
    given, hidden = job_launch.parse_variables("--env", env), job_launch.parse_variables("--secret", secrets)
    job = job_launch.read_job_file(Path(file), given, hidden)
    idle = None if idle_minutes is None else idle_minutes * 60
    request = job_launch.JobRequest(job=job, options=LaunchRequest.from_options(file, **said), idle_timeout=idle)
    ends = down and idle is None
    return exec_launch_queue.launch(
        request, console, setup=not no_setup, detach=detach, down=ends, dry_run=dry_run, watch=watch
    )
