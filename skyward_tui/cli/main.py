"""The click group and its commands."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from skyward_tui.cli.output_stream import StandardStream
from skyward_tui.cli.shared_options import (
    TORCHRUN_OPTIONS,
    NodesOption,
    RanksOption,
    ScriptCommand,
    accelerator_option,
    ignored_option_notes,
    json_option,
    market_options,
    module_file,
    open_console,
    package_options,
    parse_nnodes,
    parse_nproc,
    place_options,
    pool_options,
    rank_options,
    torchrun_options,
    variable_options,
    watch_option,
)
from skyward_tui.terminal_info import is_dumb

if TYPE_CHECKING:
    from skyward_tui.app.app import SkywardApp


@click.command()
@click.argument("file", metavar="TASK.YAML")
@click.option("-c", "--pool", "pool", metavar="POOL", help="The pool's name; one that is up is used as it is.")
@place_options
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
@click.option("--budget", metavar="$", type=click.FloatRange(0, min_open=True), help="What the pool may cost.")
@click.option("--wait-for-capacity", metavar="TIME", help="Try for so long where there are no machines, such as 2h.")
@click.option(
    "--plugin",
    "plugins",
    metavar="NAME",
    multiple=True,
    help="A plugin of the pool, such as mpi; repeatable.",
)
@click.option(
    "--plugin-set",
    "plugin_settings",
    metavar="PLUGIN.NAME=VALUE",
    multiple=True,
    help="A parameter of a plugin, such as torch.backend=gloo; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be made and run.")
@watch_option
@json_option
def launch(
    file: str,
    env: tuple[str, ...],
    secrets: tuple[str, ...],
    no_setup: bool,
    detach: bool,
    idle_minutes: float | None,
    down: bool,
    dry_run: bool,
    watch: bool,
    as_json: bool,
    **said: Any,
) -> int:
    """Run a job file, as SkyPilot's task YAML is, on a pool.

    On one of its own, or on one that is up.

    Files and working folder are brought to all nodes; then setup runs on all of them, then run. The pool stays up, and
    ends itself when nobody has used it for a while.
    """
    with open_console(as_json) as console:
        from skyward_core.client.launch.job_launch import JobFile, make_job_request, parse_variables
        from skyward_tui.cli.commands.jobs import launch as execute

        if detach and down and idle_minutes is None:
            raise click.UsageError("--detach leaves the job running, and --down ends its pool: give -i MIN with both")
        job = JobFile.from_yaml(
            Path(file), env=parse_variables("--env", env), secrets=parse_variables("--secret", secrets)
        )
        idle = None if idle_minutes is None else idle_minutes * 60
        request = make_job_request(job, idle_timeout=idle, **said)
        ends = down and idle is None
        return execute(request, console, setup=not no_setup, detach=detach, down=ends, dry_run=dry_run, watch=watch)


DEMO = Path(__file__).parents[1].joinpath("demo.skyrec")  # tests/demo_record makes it


@click.command()
@click.argument("record", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dump", is_flag=True, help="Print what is in it, a line of JSON for each entry, and open no app.")
def replay(record: Path, dump: bool) -> int:
    """Play a record in the app, without any machine.

    It can be paused, played faster and slower, and gone to any time of; nothing can be changed.
    """
    if dump:
        with open_console(False) as console:
            from skyward_tui.cli.commands.record import dump as execute

            return execute(record, console)
    return played(record)


def played(record: Path, theme: str | None = None, plain: bool = False) -> int:
    """Play a record until the person leaves; the exit status."""
    has_terminal()
    with open_console(False):
        from skyward_core.client.replay_session import open_recording

        open_recording(record)  # what is none is refused before the terminal is the app's
    from skyward_tui.app.replay_app import ReplayApp
    from skyward_tui.app.splash_screen import run

    return run(in_theme(ReplayApp(record, theme or "", plain), theme))


def in_theme(app: SkywardApp, theme: str | None) -> SkywardApp:
    """The app, where it has the theme that is asked for.

    Raises:
        UsageError: it has none of that name.
    """
    if theme is not None and theme not in app.available_themes:
        raise click.UsageError(f"there is no theme {theme!r}: {', '.join(sorted(app.available_themes))}")
    return app


def has_terminal() -> None:
    """See that there is a terminal for the app.

    Raises:
        UsageError: there is none, or none on which a cursor can be moved.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("the app needs a terminal; skyward-tui --help lists commands that do without")
    if is_dumb():
        raise click.UsageError(
            f"the app needs a terminal that can move its cursor, and TERM says {os.environ['TERM']}; where it can, set "
            "TERM=xterm-256color; skyward-tui --help lists commands that do without"
        )


def main() -> NoReturn:
    """Run the command and end with its exit status (``docs/exit-codes.md``)."""
    # What a command imports is here to stay. To look for garbage among it, again and again and once more at the end, is
    # a fifth of what a short command does.
    gc.set_threshold(50_000)
    if sys.stdin is None:  # the parent process closed it; no file that is opened later may get its number
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  for the process's life
    out, err = StandardStream("stdout"), StandardStream("stderr")
    try:
        status = cli.main(prog_name="skyward-tui", standalone_mode=False)
    except click.ClickException as error:
        error.show(file=err)
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        status = 130
    finally:
        out.restore()
        err.restore()
    gc.freeze()
    sys.exit(status if isinstance(status, int) and status else int(out.has_lost_output))


def _ask_for_log(context: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked:
        os.environ["SKYWARD_LOG"] = "debug"


_debug = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_ask_for_log,
    help="Write a log of all that is done; debug-dump packs it.",
)


# The module in ``commands`` and the summary of each command that is imported only when it is used.
COMMANDS = {
    "attach": ("run", "Watch what runs on a pool, until it ends."),
    "cancel": ("down", "Stop a run on all its ranks; the pool stays up."),
    "capacity": ("offers", "Machines that are bought ahead, or held for an account."),
    "compare": ("history", "Show two runs side by side."),
    "costs": ("offers", "Add up what pools have cost."),
    "cp": ("copy", "Copy files and folders to a node, or from it."),
    "debug": ("debug", "Debug a rank that waits at a breakpoint."),
    "debug-dump": ("doctor", "Pack log, ledger, versions and checks for a bug report."),
    "doctor": ("doctor", "Check Python, terminal, folders, ledger and providers."),
    "down": ("down", "Tear pools down, and show the receipts."),
    "examples": ("examples", "List the packaged examples, or show one."),
    "exec": ("jobs", "Run a job file, or a command, on a pool that is up."),
    "failures": ("history", "List failures of late that nobody has dismissed."),
    "fetch": ("pools_and_logs", "Bring files here that ranks wrote on their nodes."),
    "files": ("pools_and_logs", "List the files that ranks wrote on their nodes."),
    "forward": ("hosts", "Bring ports of a node to this machine, by ssh."),
    "history": ("history", "List every past run: outcome, duration, cost."),
    "hosts": ("hosts", "Show who uses the GPUs of your hosts."),
    "lock": ("pools_and_logs", "Print the lock of what was installed for a run."),
    "logs": ("pools_and_logs", "Print what a run's ranks printed, also when the pool is gone."),
    "ls": ("pools_and_logs", "List the pools that are up, with their runs."),
    "metrics": ("metrics", "Show what a run's ranks logged and its machines did."),
    "offers": ("offers", "List the machines that could be rented, and their prices."),
    "profile": ("debug", "Show where a rank spends its time, by py-spy."),
    "prune": ("down", "Remove logs, results and records of pools that are long over."),
    "queue": ("jobs", "Show which runs have a pool's nodes, and which wait."),
    "record": ("record", "Pack the record of a pool or a run into one file."),
    "rerun": ("history", "Launch a run again, as it was, or with other arguments."),
    "results": ("pools_and_logs", "Show the outcomes of a run, and end with its exit status."),
    "shim": ("shim", "Let plain `python script.py` find this library as `skyward`."),
    "ssh": ("hosts", "Open a shell on a node of a pool."),
    "stacks": ("debug", "Show where every rank is: its Python stack."),
    "sweep": ("leftovers", "Find what was rented from here and is left, and end it."),
    "top": ("metrics", "Show what a pool's machines do, every second."),
    "trust": ("hosts", "Show the fingerprint of a host's key, and accept the key."),
}


class LazyGroup(click.Group):
    """Commands that are imported when they are used, and that all take ``--debug``, as the group does."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(_debug(cmd), name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            found = vars(import_module(f"skyward_tui.cli.commands.{COMMANDS[cmd_name][0]}")).values()
            self.add_command(next(each for each in found if isinstance(each, click.Command) and each.name == cmd_name))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str(formatter.width) for name, command in self.commands.items()}
        rows = own | {name: summary for name, (_, summary) in COMMANDS.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows.items()))


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@_debug
@click.option("--read-only", is_flag=True, help="Of the app: look at pools, and refuse what would change anything.")
@click.option("--demo", is_flag=True, help="Of the app: play a record of 32 ranks, without any machine.")
@click.option("--theme", metavar="NAME", help="Of the app: its colours, this time; NO_COLOR or not.")
@click.option("--ascii", "plain", is_flag=True, help="Of the app: paint nothing but plain ASCII.")
@click.version_option(package_name="skyward-tui", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, read_only: bool, demo: bool, theme: str | None, plain: bool) -> int:
    """Run a Python function on many machines at once, watch every rank live, take it all down again.

    Without a command, the app opens.
    """
    if context.invoked_subcommand is not None:
        for option, given in {
            "--read-only": read_only,
            "--demo": demo,
            "--theme": theme is not None,
            "--ascii": plain,
        }.items():
            if given:
                raise click.UsageError(f"{option} is the app's: {context.invoked_subcommand} does not know it")
        return 0
    if demo:
        return played(DEMO, theme, plain)
    has_terminal()
    from skyward_tui.app.splash_screen import new_app, run

    return run(in_theme(new_app(read_only=read_only, theme=theme or "", plain=plain), theme))


@cli.command(cls=ScriptCommand, options_metavar="[OPTIONS]")
@click.argument("target", metavar="SCRIPT[:FUNCTION]")
@click.option("-a", "--arg", "arguments", metavar="NAME=VALUE", multiple=True, help="An argument; repeatable.")
@click.option(
    "--sweep", is_flag=True,
    help="Run each combination of arguments that are lists: -a lr=0.1,0.01 -a seed=1..5.",
)  # fmt: skip
@click.option("--gang", is_flag=True, help="Of a sweep: each combination on every rank, one after the other.")
@click.option(
    "--gang-nodes", metavar="N", type=click.IntRange(1),
    help="Of a sweep: each combination on every rank of N nodes, as many side by side as fit.",
)  # fmt: skip
@click.option(
    "--gang-ranks", metavar="N", type=click.IntRange(1),
    help="The same, said in ranks: each combination on the nodes that have N of them.",
)  # fmt: skip
@place_options
@click.option(
    "-n", "--nodes", metavar="N|MIN:MAX", type=NodesOption(),
    help="Machines; of a range as many as can be had.  [default: 1, or all hosts]",
)  # fmt: skip
@click.option("--ranks-per-node", metavar="N|gpu", type=RanksOption(), help="Processes on each machine.  [default: 1]")
@accelerator_option
@market_options
@rank_options
@click.option("-m", "--module", "as_module", is_flag=True, help="SCRIPT is a module's name, run whole as by python -m.")
@click.option("--python", metavar="PATH", help="Load the script with this Python, not with its project's.")
@package_options
@click.option("--one", is_flag=True, help="Run on one node only.")
@click.option(
    "--torchrun", is_flag=True,
    help="Of a whole script: have it find torchrun's variables where there is one rank, too.",
)  # fmt: skip
@pool_options
@click.option("--detach", is_flag=True, help="Leave as soon as the function runs; implies --keep.")
@click.option("--timeout", metavar="S", type=click.FloatRange(0, min_open=True), help="Seconds a rank may take.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be made and run, and what it would cost.")
@watch_option
@json_option
@click.pass_context
def run(
    context: click.Context,
    /,
    target: str,
    as_module: bool,
    as_json: bool,
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
    with open_console(as_json) as console:
        from skyward_core.client.launch.launch_request import LaunchRequest
        from skyward_tui.cli.commands.run import run as execute
        from skyward_tui.cli.commands.run import run_command
        from skyward_tui.cli.shared_options import (
            SCRIPT_ARGUMENTS,
            function_arguments,
            script_arguments,
            script_commands,
        )
        from skyward_tui.launch_form.form import expand_example

        if as_module:
            said["module"], target = target, str(module_file(target))
            context.meta[SCRIPT_ARGUMENTS] = context.meta[SCRIPT_ARGUMENTS] or []
        target = expand_example(target)
        if not as_module and (commands := script_commands(target)):
            return run_command(context, target, commands, console)
        said["script_args"] = own = script_arguments(context, target)
        if own is None:
            options = [name for each in context.command.params for name in each.opts if name.startswith("--")]
            said["arguments"] = [*said["arguments"], *function_arguments(target, context.args, options)]
        return execute(LaunchRequest.from_options(target, **said), console, dry_run=dry_run, watch=watch)


@cli.command(context_settings={"allow_interspersed_args": False})
@click.option("--nnodes", metavar="N", envvar="PET_NNODES", help="Machines.  [default: 1, or all hosts]")
@click.option(
    "--nproc-per-node", "--nproc_per_node", metavar="N|gpu", default="1", envvar="PET_NPROC_PER_NODE",
    help="Processes on each machine.  [default: 1]",
)  # fmt: skip
@click.option("-m", "--module", "as_module", is_flag=True, help="TRAIN.PY is a module's name, as of python -m.")
@torchrun_options
@place_options
@accelerator_option
@market_options
@rank_options
@click.option("--python", metavar="PATH", help="Run the script with this Python, not with its project's.")
@package_options
@pool_options
@click.option("--detach", is_flag=True, help="Leave as soon as the script runs; implies --keep.")
@watch_option
@json_option
@click.argument("training_script", metavar="TRAIN.PY")
@click.argument("script_args", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def torchrun(
    training_script: str,
    nnodes: str | None,
    nproc_per_node: str,
    as_module: bool,
    watch: bool,
    as_json: bool,
    **said: Any,
) -> int:
    """Run a script on a pool, with the options of PyTorch's torchrun.

    torchrun's own options are all known. What one of them cannot mean here is said, or refused. What stands behind the
    script is the script's own.
    """
    notes = list(ignored_option_notes(said))
    asked = {name: value for name, value in said.items() if name.replace("_", "-") not in TORCHRUN_OPTIONS}
    shape = nproc_per_node, parse_nnodes(nnodes)
    with open_console(as_json) as console:
        from skyward_core.client.launch.discovery import DEFAULT_PROVIDER
        from skyward_core.client.launch.launch_request import LaunchRequest
        from skyward_tui.cli.commands.run import run as execute

        for note in notes:
            console.note(note)
        if not asked["pool"] or shape != ("1", None):
            is_here = not asked["hosts"] and asked["provider"] in (None, DEFAULT_PROVIDER)
            asked |= {"nodes": shape[1], "ranks_per_node": parse_nproc(nproc_per_node, is_here=is_here)}
        asked["torchrun"] = shape[1] in (None, 1) and nproc_per_node in ("1", "gpu", "auto", "cpu")
        if as_module:
            asked["module"] = training_script
            training_script = str(module_file(training_script))
        return execute(LaunchRequest.from_options(training_script, **asked), console, watch=watch)


cli.add_command(launch)
cli.add_command(replay)
