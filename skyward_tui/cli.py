"""The ``skyward-tui`` command: names, options, help. What a command needs is imported when it runs."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any, NoReturn

import click

from .again_commands import compare, failures, history, rerun
from .command_console import console_of, of_json
from .inside_commands import debug, metrics, profile, stacks, top
from .job_commands import cp, exec_, forward, launch, queue
from .market_commands import capacity, costs, hosts, offers, sweep
from .number_options import NodesOption, RanksOption
from .record_commands import DEMO, has_terminal, in_theme, played, record, replay
from .script_words import ScriptCommand
from .shared_options import (
    of_accelerator,
    of_market,
    of_packages,
    of_place,
    of_pool,
    of_ranks,
    of_watch,
)
from .shim_commands import shim
from .standard_stream import StandardStream
from .torchrun_options import OTHERS, file_of, judged, nodes_of, others, ranks_of


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
    sys.exit(status if isinstance(status, int) and status else int(out.is_missed))


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


class _Commands(click.Group):
    """Commands that all take ``--debug``, as the group does."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(_debug(cmd), name)


@click.group(
    cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@_debug
@click.option(
    "--read-only", is_flag=True, help="Of the app: look at pools, and refuse what would change anything."
)
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
                raise click.UsageError(
                    f"{option} is the app's: {context.invoked_subcommand} does not know it"
                )
        return 0
    if demo:
        return played(DEMO, theme, plain)
    has_terminal()
    from .opening import new_app, run

    return run(in_theme(new_app(read_only=read_only, theme=theme or "", plain=plain), theme))


@cli.command(cls=ScriptCommand, options_metavar="[OPTIONS]")
@click.argument("target", metavar="SCRIPT[:FUNCTION]")
@click.option(
    "-a", "--arg", "arguments", metavar="NAME=VALUE", multiple=True, help="An argument; repeatable."
)
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
    help="The same, said in ranks: each combination on the nodes that have N of them, or on N ranks of a node.",
)  # fmt: skip
@of_place
@click.option(
    "-n", "--nodes", metavar="N|MIN:MAX", type=NodesOption(),
    help="Machines; of a range as many as can be had.  [default: 1, or all hosts]",
)  # fmt: skip
@click.option(
    "--ranks-per-node", metavar="N|gpu", type=RanksOption(), help="Processes on each machine.  [default: 1]"
)
@of_accelerator
@of_market
@of_ranks
@click.option(
    "-m", "--module", "as_module", is_flag=True, help="SCRIPT is a module's name, run whole as by python -m."
)
@click.option("--python", metavar="PATH", help="Load the script with this Python, not with its project's.")
@of_packages
@click.option("--one", is_flag=True, help="Run on one node only.")
@click.option(
    "--torchrun", is_flag=True,
    help="Of a whole script: have it find torchrun's variables where there is one rank, too.",
)  # fmt: skip
@of_pool
@click.option("--detach", is_flag=True, help="Leave as soon as the function runs; implies --keep.")
@click.option(
    "--timeout", metavar="S", type=click.FloatRange(0, min_open=True), help="Seconds a rank may take."
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be made and run, and what it would cost.")
@of_watch
@of_json
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
    with console_of(as_json) as console:
        from skyward_core.front.launch_request import LaunchRequest

        from .commands.run import run as execute
        from .commands.script_command import run_command
        from .packaged import located
        from .script_words import OWN_WORDS, arguments_of, commands_named, own_words

        if as_module:
            said["module"], target = target, str(file_of(target))
            context.meta[OWN_WORDS] = context.meta[OWN_WORDS] or []
        target = located(target)
        if not as_module and (commands := commands_named(target)):
            return run_command(context, target, commands, console)
        said["script_args"] = own = own_words(context, target)
        if own is None:
            options = [name for each in context.command.params for name in each.opts if name.startswith("--")]
            said["arguments"] = [*said["arguments"], *arguments_of(target, context.args, options)]
        return execute(LaunchRequest.from_options(target, **said), console, dry_run=dry_run, watch=watch)


@cli.command(context_settings={"allow_interspersed_args": False})
@click.option("--nnodes", metavar="N", envvar="PET_NNODES", help="Machines.  [default: 1, or all hosts]")
@click.option(
    "--nproc-per-node", "--nproc_per_node", metavar="N|gpu", default="1", envvar="PET_NPROC_PER_NODE",
    help="Processes on each machine.  [default: 1]",
)  # fmt: skip
@click.option(
    "-m", "--module", "as_module", is_flag=True, help="TRAIN.PY is a module's name, as of python -m."
)
@others
@of_place
@of_accelerator
@of_market
@of_ranks
@click.option("--python", metavar="PATH", help="Run the script with this Python, not with its project's.")
@of_packages
@of_pool
@click.option("--detach", is_flag=True, help="Leave as soon as the script runs; implies --keep.")
@of_watch
@of_json
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
    notes = list(judged(said))
    asked = {name: value for name, value in said.items() if name.replace("_", "-") not in OTHERS}
    shape = nproc_per_node, nodes_of(nnodes)
    with console_of(as_json) as console:
        from skyward_core.front.launch_request import LaunchRequest
        from skyward_core.front.providers import DEFAULT

        from .commands.run import run as execute

        for note in notes:
            console.note(note)
        if not asked["pool"] or shape != ("1", None):
            is_here = not asked["hosts"] and asked["provider"] in (None, DEFAULT)
            asked |= {"nodes": shape[1], "ranks_per_node": ranks_of(nproc_per_node, is_here=is_here)}
        asked["torchrun"] = shape[1] in (None, 1) and nproc_per_node in ("1", "gpu", "auto", "cpu")
        if as_module:
            asked["module"] = training_script
            training_script = str(file_of(training_script))
        return execute(LaunchRequest.from_options(training_script, **asked), console, watch=watch)


@cli.command()
@click.option("--all", "everything", is_flag=True, help="Also the pools that are over.")
@of_json
def ls(everything: bool, as_json: bool) -> int:
    """List the pools that are up, with their runs."""
    with console_of(as_json) as console:
        from .commands.look import ls as execute

        return execute(everything, console)


@cli.command()
@click.argument("run")
@click.option("--rank", metavar="R", type=click.IntRange(min=0), help="This rank only, without prefixes.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is still printed until the run ends.")
@click.option("--collapse", is_flag=True, help="Equal lines of ranks as one, with who said it.")
@of_json
def logs(run: str, rank: int | None, follow: bool, collapse: bool, as_json: bool) -> int:
    """Print what a run's ranks printed, also when the pool is gone.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.

    What they wrote to standard output is written to standard output. What they wrote to standard error is written
    to standard error.
    """
    with console_of(as_json) as console:
        from .commands.look import logs as execute

        return execute(run, rank, follow, collapse, console)


@cli.command()
@click.argument("run")
@click.option(
    "--sort",
    metavar="COLUMN",
    help="Of a sweep over arguments: sort by this; -COLUMN for the greatest first.",
)
@click.option("--diff", metavar="R,R", help="Only in what two ranks' results, or tasks', differ.")
@click.option("-o", "--output", metavar="FILE", help="Write them: .csv, .json, .parquet or .pickle.")
@of_json
def results(run: str, sort: str | None, diff: str | None, output: str | None, as_json: bool) -> int:
    """Show the outcomes of a run, and end with its exit status.

    Ranks whose numbers or arrays are not what most ranks have are named.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.
    """
    with console_of(as_json) as console:
        from .commands.look import results as execute

        return execute(run, console, sort, diff, output)


@cli.command()
@click.argument("run")
@click.option("--node", metavar="N", type=click.IntRange(min=0), help="Of this node, not of the first.")
@of_json
def lock(run: str, node: int | None, as_json: bool) -> int:
    """Print the lock of what was installed for a run.

    "run --lock FILE" installs it again.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.
    """
    with console_of(as_json) as console:
        from .commands.look import lock as execute

        return execute(run, node, console)


@cli.command()
@click.argument("run", metavar="RUN|POOL")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@of_json
def files(run: str, patterns: tuple[str, ...], as_json: bool) -> int:
    """List the files that ranks wrote on their nodes.

    Of a run, or of all of a pool's time. PATTERN is a path below the working folder, or such as "out/**" or "*.pt".
    """
    with console_of(as_json) as console:
        from .commands.files import files as execute

        return execute(run, patterns, console)


@cli.command()
@click.argument("run", metavar="RUN|POOL")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--to", metavar="DIR", help="Where they come to.  [default: outputs/RUN, or outputs/POOL]")
@of_json
def fetch(run: str, patterns: tuple[str, ...], to: str | None, as_json: bool) -> int:
    """Bring files here that ranks wrote on their nodes.

    Each comes once, whole, and over nothing that did not come from there; what was cut off is gone on with.
    """
    with console_of(as_json) as console:
        from .commands.files import fetch as execute

        return execute(run, patterns, to, console)


@cli.command()
@click.argument("pool")
@of_watch
@of_json
def attach(pool: str, watch: bool, as_json: bool) -> int:
    """Watch what runs on a pool, until it ends."""
    with console_of(as_json) as console:
        from .commands.run import attach as execute

        return execute(pool, console, watch=watch)


@cli.command()
@click.argument("run")
@of_json
def cancel(run: str, as_json: bool) -> int:
    """Stop a run on all its ranks; the pool stays up."""
    with console_of(as_json) as console:
        from .commands.manage import cancel as execute

        return execute(run, console)


@cli.command()
@click.argument("pools", metavar="POOL...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All pools that are up.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--discard", is_flag=True, help="Give up results that nobody has fetched.")
@click.option("--now", is_flag=True, help="End rented machines at once, with all that is on them.")
@of_json
def down(pools: tuple[str, ...], everything: bool, yes: bool, discard: bool, now: bool, as_json: bool) -> int:
    """Tear pools down, and show the receipts.

    Results that nobody has fetched are brought here first, also those that a pool left which has ended before. Ends
    with 3 where something may still be running.
    """
    if bool(pools) == everything:
        raise click.UsageError("name the pools to tear down, or give --all")
    with console_of(as_json) as console:
        from .commands.manage import down as execute

        return execute(pools, everything, yes, discard, console, now=now)


@cli.command()
@click.argument("host")
@click.option(
    "--known-hosts", metavar="FILE", help="The file to look in and write to, in place of the usual."
)
@click.option("-y", "--yes", is_flag=True, help="Accept the key without asking.")
@of_json
def trust(host: str, known_hosts: str | None, yes: bool, as_json: bool) -> int:
    """Show the fingerprint of a host's key, and accept the key.

    One that differs from a key that is known is refused.
    """
    with console_of(as_json) as console:
        from .commands.hosts import trust as execute

        return execute(host, known_hosts, yes, console)


@cli.command()
@click.argument("pool")
@click.argument("node", type=click.IntRange(min=0), default=0)
@click.option("--include", is_flag=True, help="Put the pools' names into ~/.ssh/config, for plain ssh.")
def ssh(pool: str, node: int, include: bool) -> int:
    """Open a shell on a node of a pool."""
    with console_of(False) as console:
        from .commands.hosts import shell as execute

        return execute(pool, node, include, console)


@cli.command()
@click.argument("name", required=False)
@click.option("--copy", is_flag=True, help="Copy it into the current folder; overwrites nothing.")
@of_json
def examples(name: str | None, copy: bool, as_json: bool) -> int:
    """List the packaged examples, or show one.

    "run example:NAME" runs it.
    """
    if copy and name is None:
        raise click.UsageError("name the example to copy")
    with console_of(as_json) as console:
        from .commands import examples as commands

        return commands.listing(console) if name is None else commands.show(name, copy, console)


@cli.command()
@click.option(
    "--older", metavar="TIME", default="90d", show_default=True, help="Pools that ended so long ago."
)
@click.option(
    "--most", metavar="SIZE", default="20 GB", show_default=True, help="And the oldest beyond this size."
)
@click.option("-n", "--dry-run", is_flag=True, help="Only tell what would go.")
@of_json
def prune(older: str, most: str, dry_run: bool, as_json: bool) -> int:
    """Remove logs, results and records of pools that are long over.

    What hosts keep that nobody has fetched stays. The same happens by itself once a day.
    """
    with console_of(as_json) as console:
        from .commands.manage import prune as execute

        return execute(older, most, dry_run, console)


@cli.command()
@of_json
def doctor(as_json: bool) -> int:
    """Check Python, terminal, folders, ledger and providers."""
    with console_of(as_json) as console:
        from .commands.doctor import doctor as execute

        return execute(console)


@cli.command("debug-dump")
@click.argument("path", required=False)
@of_json
def debug_dump(path: str | None, as_json: bool) -> int:
    """Pack log, ledger, versions and checks for a bug report.

    PATH is the zip file to write, by default a new one in the current folder; overwrites nothing. Secrets that are
    known as such are blanked; look at it before you send it.
    """
    with console_of(as_json) as console:
        from .commands.debug_dump import debug_dump as execute

        return execute(path, console)


for _command in (
    launch,
    exec_,
    cp,
    forward,
    queue,
    compare,
    debug,
    failures,
    history,
    rerun,
    record,
    replay,
    offers,
    capacity,
    costs,
    hosts,
    sweep,
    stacks,
    profile,
    top,
    metrics,
    shim,
):
    cli.add_command(_command)
