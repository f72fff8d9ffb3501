"""The click group and its commands."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from skyward_tui.cli.output_stream import StandardStream
from skyward_tui.cli.shared_options import (
    TORCHRUN_OPTIONS,
    NodeSelection,
    NodesOption,
    RanksOption,
    ScriptCommand,
    accelerator_option,
    ignored_option_notes,
    json_option,
    market_options,
    module_file,
    offer_options,
    open_console,
    package_options,
    parse_nnodes,
    parse_nproc,
    place_options,
    pool_options,
    rank_options,
    settings_option,
    torchrun_options,
    variable_options,
    watch_option,
)
from skyward_tui.terminal_info import is_dumb

if TYPE_CHECKING:
    from skyward_tui.app.app import SkywardApp


@click.command(context_settings={"allow_interspersed_args": True})
@click.argument("run", metavar="RUN")
@click.argument("script_args", metavar="[-- ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-a", "--arg", "arguments", metavar="NAME=VALUE", multiple=True, help="Another argument; repeatable.")
@click.option("--pool", metavar="NAME", help="Run on this pool, which is up, and not on its own.")
@click.option("--missing", is_flag=True, help="Of a sweep over arguments: run what has no result yet.")
@variable_options
@click.option("--detach", is_flag=True, help="Leave as soon as the function runs; implies --keep.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be made and run, and what it would cost.")
@watch_option
@json_option
def rerun(
    run: str,
    script_args: tuple[str, ...],
    arguments: tuple[str, ...],
    pool: str | None,
    missing: bool,
    env: tuple[str, ...],
    secrets: tuple[str, ...],
    detach: bool,
    dry_run: bool,
    watch: bool,
    as_json: bool,
) -> int:
    """Launch a run again, as it was, or with other arguments.

    On its pool where that is up, else on a new one made as that one was. What has changed of the script and its git
    commit since is told. A job runs whole, whichever of its steps is named; values of secrets are not kept, and come
    from --secret, this shell, or the terminal.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.history import rerun as execute

        said: dict[str, Any] = {}
        if env or secrets:
            from skyward_core.client.launch.job_launch import parse_variables

            said = {"env": parse_variables("--env", env), "secrets": parse_variables("--secret", secrets)}
        return execute(
            run, arguments, script_args, pool, console,
            missing=missing, detach=detach, dry_run=dry_run, watch=watch, **said,
        )  # fmt: skip


@click.command()
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--failed", is_flag=True, help="Only what failed or was lost.")
@click.option("--since", metavar="TIME", help='How far back: "12h", "7d", "4w".  [default: all]')
@click.option("--in-logs", is_flag=True, help="Look for the words in what runs printed and gave, too.")
@click.option("--all", "everything", is_flag=True, help="Also what is older than the newest hundred.")
@json_option
def history(
    words: tuple[str, ...], failed: bool, since: str | None, in_logs: bool, everything: bool, as_json: bool
) -> int:
    """List every past run: outcome, duration, cost.

    Each WORD has to be in it: in its id, its pool, its function, its script, its arguments, its outcome or its error.
    Pools that had no run are listed, too. With --in-logs, words that are in none of these may stand together in a line
    that a rank printed, in a result, or in what a rank failed by, as far as that is kept on this machine; the newest
    runs come first, and after 30 seconds it tells what it has, unless --all is given.
    """
    if in_logs and not words:
        raise click.UsageError("--in-logs looks for words: give one")
    with open_console(as_json) as console:
        import time

        from skyward_core.model.argument_checks import duration
        from skyward_tui.cli.commands.history import history as execute

        try:
            began = 0.0 if since is None else max(0.0, time.time() - duration(since))
        except ValueError as error:
            raise click.BadParameter(f"it {error}", param_hint="--since") from error
        return execute(words, console, failed=failed, since=began, everything=everything, in_logs=in_logs)


@click.command()
@click.argument("left", metavar="RUN")
@click.argument("right", metavar="RUN")
@json_option
def compare(left: str, right: str, as_json: bool) -> int:
    """Show two runs side by side.

    What they were launched with, how they went, what they logged and what they gave; what differs is marked.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.history import compare as execute

        return execute(left, right, console)


@click.command()
@click.option("--dismiss", metavar="RUN", multiple=True, help="Tell of this one no more; repeatable.")
@click.option("--dismiss-all", is_flag=True, help="Tell of none of these any more.")
@json_option
def failures(dismiss: tuple[str, ...], dismiss_all: bool, as_json: bool) -> int:
    """List failures of late that nobody has dismissed.

    Of all pools, of the last 30 days.
    """
    if dismiss and dismiss_all:
        raise click.UsageError("name the failures to dismiss, or give --dismiss-all")
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.history import failures as execute

        return execute(console, dismiss=dismiss, dismiss_all=dismiss_all)


@click.command()
@click.argument("run", metavar="RUN|POOL")
@click.option("--signal", is_flag=True, help="Ask ranks that cannot be read by a signal.")
@click.option("--threads", is_flag=True, help="Show all threads, not only those that run the function.")
@json_option
def stacks(run: str, signal: bool, threads: bool, as_json: bool) -> int:
    """Show where every rank is: its Python stack.

    Equal stacks are shown once, with their ranks, and above them who is inside which collective and who is not.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.debug import stacks as execute

        return execute(run, console, signal=signal, threads=threads)


@click.command()
@click.argument("rank", metavar="RUN:RANK")
@click.option("--seconds", type=click.FloatRange(1, 600), default=10, show_default=True, help="For how long.")
@click.option("--to", metavar="DIR", help="Where the files come to.  [default: the current folder]")
@json_option
def profile(rank: str, seconds: float, to: str | None, as_json: bool) -> int:
    """Show where a rank spends its time, by py-spy.

    The hottest lines, a file for speedscope.app, and a flame graph. The rank is not stopped.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.debug import profile as execute

        return execute(rank, seconds, to, console)


@click.command()
@click.argument("rank", metavar="RUN[:RANK]")
def debug(rank: str) -> int:
    """Debug a rank that waits at a breakpoint.

    Its pdb has this terminal, until you leave it with q or Ctrl-D: the rank goes on then.
    """
    with open_console(False) as console:
        from skyward_tui.cli.commands.debug import debug as execute

        return execute(rank, console)


@click.command()
@click.argument("pool")
@click.option("--once", is_flag=True, help="One table, and no more.")
@json_option
def top(pool: str, once: bool, as_json: bool) -> int:
    """Show what a pool's machines do, every second."""
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.metrics import top as execute

        return execute(pool, once, console)


@click.command()
@click.argument("run")
@click.option("--prometheus", is_flag=True, help="The newest, in Prometheus' text format.")
@click.option("-o", "--output", metavar="FILE", help="Write all: .csv, .json or .parquet.")
@json_option
def metrics(run: str, prometheus: bool, output: str | None, as_json: bool) -> int:
    """Show what a run's ranks logged and its machines did."""
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.metrics import metrics as execute

        return execute(run, prometheus, output, console)


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


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@variable_options
@click.option(
    "--nodes",
    metavar="N|LIST",
    type=NodeSelection(),
    help="Run a command on so many nodes, or on these (0,2); it waits until they are free.",
)
@click.option("--detach", is_flag=True, help="Leave as soon as it runs.")
@watch_option
@json_option
@click.argument("pool")
@click.argument("words", metavar="TASK.YAML | [--] COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(
    pool: str,
    words: tuple[str, ...],
    env: tuple[str, ...],
    secrets: tuple[str, ...],
    nodes: int | tuple[int, ...] | None,
    detach: bool,
    watch: bool,
    as_json: bool,
) -> int:
    """Run a job file, or a command, on a pool that is up.

    Of a file its working folder is brought anew, and its run is run; its setup is not. A command runs on every rank:
    exec POOL nvidia-smi -L. Its exit status is that of the first rank that failed.
    """
    with open_console(as_json) as console:
        from skyward_core.client.launch.job_launch import parse_variables, resolve_variables
        from skyward_tui.cli.commands.jobs import execute

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
            raise click.UsageError(
                f"options of exec stand before the pool: exec {' '.join(words[1:])} {pool} {words[0]}"
            )
        given, hidden = parse_variables("--env", env), parse_variables("--secret", secrets)
        if is_file:
            if nodes is not None:
                raise click.UsageError(f"{words[0]} says on how many nodes it runs, by num_nodes: leave out --nodes")
            from skyward_core.client.launch.job_launch import JobFile

            job = JobFile.from_yaml(Path(words[0]), env=given, secrets=hidden)
            return execute(pool, (), console, job=job, env={}, secrets={}, detach=detach, watch=watch)
        values = resolve_variables("--env", given), resolve_variables("--secret", hidden)
        said: dict[str, Any] = {"env": values[0], "secrets": values[1]}
        return execute(pool, words, console, **said, detach=detach, watch=watch, nodes=nodes)


@click.command()
@click.argument("pool")
@json_option
def queue(pool: str, as_json: bool) -> int:
    """Show which runs have a pool's nodes, and which wait.

    Of those that wait it says why. First come, first served: a run that waits is before all that came after it.
    "cancel RUN" takes one out.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.jobs import queue as execute

        return execute(pool, console)


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@json_option
def cp(source: str, target: str, as_json: bool) -> int:
    """Copy files and folders to a node, or from it.

    One of SRC and DST is POOL:PATH, or POOL:RANK:PATH for the node of that rank; PATH is from the login's home.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.copy import copy as execute

        return execute(source, target, console)


@click.command()
@click.argument("target", metavar="POOL[:RANK]")
@click.argument("ports", metavar="[LOCAL:]PORT...", nargs=-1, required=True)
def forward(target: str, ports: tuple[str, ...]) -> int:
    """Bring ports of a node to this machine, by ssh.

    A tensorboard or a notebook on the head is then at http://127.0.0.1:PORT, for this machine alone, until ctrl-c.
    """
    with open_console(False) as console:
        from skyward_tui.cli.commands.hosts import forward as execute

        return execute(target, ports, console)


@click.command()
@offer_options
@json_option
def offers(as_json: bool, **asked: Any) -> int:
    """List the machines that could be rented, and their prices.

    Nothing is made. Without --accelerator those with any accelerator are listed, and with --vcpus, --memory or --arch
    those without one. A price is that of an hour of a machine with its disk and its public address. Ends with 1 where
    nothing fits.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.offers import offers as execute

        return execute(console, **asked)


@click.group()
def capacity() -> None:
    """Machines that are bought ahead, or held for an account."""


@capacity.command("buy")
@click.argument("offering")
@click.option("--price", metavar="$", type=float, help="What it costs, as offers --block says it.")
@settings_option
@json_option
def buy(offering: str, price: float | None, settings: tuple[str, ...], as_json: bool) -> int:
    """Buy what offers --block has listed, by its id.

    It is paid at once, and not given back. At a terminal the price is asked for; elsewhere --price has to say it.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.offers import buy as execute

        return execute(offering, price, settings, console)


@capacity.command("clear")
@click.argument("offering")
@click.option("-y", "--yes", is_flag=True, help="Without a word at the terminal.")
@json_option
def clear(offering: str, yes: bool, as_json: bool) -> int:
    """Let an offering be bought again whose purchase nobody heard of.

    The account is asked first: what it shows, or cannot tell, is not cleared.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.offers import clear as execute

        return execute(offering, yes, console)


@capacity.command("ls")
@click.option("--provider", metavar="NAME", default="aws", show_default=True, help="Whose account.")
@settings_option
@json_option
def held(provider: str, settings: tuple[str, ...], as_json: bool) -> int:
    """List what is held for the account, and what was bought from here.

    Ends with 3 where nobody knows whether something was bought.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.offers import list_offerings as execute

        return execute(provider, settings, console)


@click.command()
@click.option("--since", metavar="TIME", default="30d", show_default=True, help='How far back: "12h", "30d", "4w".')
@click.option("--by", type=click.Choice(["pool", "function", "day"]), default="pool", show_default=True)
@json_option
def costs(since: str, by: str, as_json: bool) -> int:
    """Add up what pools have cost.

    Machines are counted from when they were made to when they began to end, replaced ones too, at the prices that were
    known when they were made. What the provider bills is what counts.
    """
    with open_console(as_json) as console:
        from skyward_core.model.argument_checks import duration
        from skyward_tui.cli.commands.offers import costs as execute

        try:
            seconds = duration(since)
        except ValueError as error:
            raise click.BadParameter(f"it {error}", param_hint="--since") from error
        return execute(console, seconds=seconds, by=by)


@click.command()
@click.option("--provider", metavar="NAME", help="Look through its account only, such as aws.")
@settings_option
@click.option("--all-regions", is_flag=True, help="Look in all regions, not only where pools have been.")
@click.option("--ledger", "ledgers", metavar="ID", multiple=True, help="Also what this other ledger made; repeatable.")
@click.option("-y", "--yes", is_flag=True, help="End what is left without asking.")
@json_option
def sweep(
    provider: str | None,
    settings: tuple[str, ...],
    all_regions: bool,
    ledgers: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> int:
    """Find what was rented from here and is left, and end it.

    Cloud accounts are looked through, whatever the ledger says. What is left belongs to pools that are over, or that
    no ledger here has. Nothing is ended without --yes, or a yes at the terminal. What has no tag of ours, and what
    other ledgers made, is never touched.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.leftovers import sweep as execute

        return execute(provider, settings, all_regions, ledgers, yes, console)


@click.command()
@click.argument("names", metavar="[GROUP|HOST]...", nargs=-1)
@json_option
def hosts(names: tuple[str, ...], as_json: bool) -> int:
    """Show who uses the GPUs of your hosts.

    Of each GPU: whether it is free, or by whose process and with how much memory it is used. Without names those of all
    groups of skyward.toml are shown. Nothing is left on the hosts. Ends with 1 where one does not answer.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.hosts import hosts as execute

        return execute(names, console)


DEMO = Path(__file__).parents[1].joinpath("demo.skyrec")  # tests/demo_record makes it


@click.command()
@click.argument("run", metavar="RUN|POOL")
@click.option("-o", "--output", metavar="FILE", help="The file to write; overwrites nothing.  [default: NAME.skyrec]")
@json_option
def record(run: str, output: str | None, as_json: bool) -> int:
    """Pack the record of a pool or a run into one file.

    "replay FILE" plays it, on any machine. Secrets that are known as such are blanked; look at it before you send it.

    RUN is a run's id or a pool's name, or as much of one as tells it from others.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.record import record as execute

        return execute(run, output, console)


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


of_python = click.option(
    "--python",
    metavar="PATH",
    help="The environment's interpreter; by default the one that scripts here get.",
)


@click.group()
def shim() -> None:
    """Let plain `python script.py` find this library as `skyward`.

    Scripts that skyward-tui runs need none of it.
    """


@shim.command()
@of_python
@json_option
def install(python: str | None, as_json: bool) -> int:
    """Write the alias module into an environment; refused where another `skyward` is installed."""
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.shim import install as execute

        return execute(python, console)


@shim.command()
@of_python
@json_option
def remove(python: str | None, as_json: bool) -> int:
    """Take the alias module away."""
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.shim import remove as execute

        return execute(python, console)


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


class _Commands(click.Group):
    """Commands that all take ``--debug``, as the group does."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(_debug(cmd), name)


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
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


@cli.command()
@click.option("--all", "everything", is_flag=True, help="Also the pools that are over.")
@json_option
def ls(everything: bool, as_json: bool) -> int:
    """List the pools that are up, with their runs."""
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.pools_and_logs import list_pools as execute

        return execute(everything, console)


@cli.command()
@click.argument("run")
@click.option("--rank", metavar="R", type=click.IntRange(min=0), help="This rank only, without prefixes.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is still printed until the run ends.")
@click.option("--collapse", is_flag=True, help="Equal lines of ranks as one, with who said it.")
@json_option
def logs(run: str, rank: int | None, follow: bool, collapse: bool, as_json: bool) -> int:
    """Print what a run's ranks printed, also when the pool is gone.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.

    What they wrote to standard output is written to standard output. What they wrote to standard error is written
    to standard error.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.pools_and_logs import logs as execute

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
@json_option
def results(run: str, sort: str | None, diff: str | None, output: str | None, as_json: bool) -> int:
    """Show the outcomes of a run, and end with its exit status.

    Ranks whose numbers or arrays are not what most ranks have are named.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.pools_and_logs import results as execute

        return execute(run, console, sort, diff, output)


@cli.command()
@click.argument("run")
@click.option("--node", metavar="N", type=click.IntRange(min=0), help="Of this node, not of the first.")
@json_option
def lock(run: str, node: int | None, as_json: bool) -> int:
    """Print the lock of what was installed for a run.

    "run --lock FILE" installs it again.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.pools_and_logs import lock as execute

        return execute(run, node, console)


@cli.command()
@click.argument("run", metavar="RUN|POOL")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@json_option
def files(run: str, patterns: tuple[str, ...], as_json: bool) -> int:
    """List the files that ranks wrote on their nodes.

    Of a run, or of all of a pool's time. PATTERN is a path below the working folder, or such as "out/**" or "*.pt".
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.pools_and_logs import files as execute

        return execute(run, patterns, console)


@cli.command()
@click.argument("run", metavar="RUN|POOL")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--to", metavar="DIR", help="Where they come to.  [default: outputs/RUN, or outputs/POOL]")
@json_option
def fetch(run: str, patterns: tuple[str, ...], to: str | None, as_json: bool) -> int:
    """Bring files here that ranks wrote on their nodes.

    Each comes once, whole, and over nothing that did not come from there; what was cut off is gone on with.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.pools_and_logs import fetch as execute

        return execute(run, patterns, to, console)


@cli.command()
@click.argument("pool")
@watch_option
@json_option
def attach(pool: str, watch: bool, as_json: bool) -> int:
    """Watch what runs on a pool, until it ends."""
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.run import attach as execute

        return execute(pool, console, watch=watch)


@cli.command()
@click.argument("run")
@json_option
def cancel(run: str, as_json: bool) -> int:
    """Stop a run on all its ranks; the pool stays up."""
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.down import cancel as execute

        return execute(run, console)


@cli.command()
@click.argument("pools", metavar="POOL...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All pools that are up.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--discard", is_flag=True, help="Give up results that nobody has fetched.")
@click.option("--now", is_flag=True, help="End rented machines at once, with all that is on them.")
@json_option
def down(pools: tuple[str, ...], everything: bool, yes: bool, discard: bool, now: bool, as_json: bool) -> int:
    """Tear pools down, and show the receipts.

    Results that nobody has fetched are brought here first, also those that a pool left which has ended before. Ends
    with 3 where something may still be running.
    """
    if bool(pools) == everything:
        raise click.UsageError("name the pools to tear down, or give --all")
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.down import down as execute

        return execute(pools, everything, yes, discard, console, now=now)


@cli.command()
@click.argument("host")
@click.option("--known-hosts", metavar="FILE", help="The file to look in and write to, in place of the usual.")
@click.option("-y", "--yes", is_flag=True, help="Accept the key without asking.")
@json_option
def trust(host: str, known_hosts: str | None, yes: bool, as_json: bool) -> int:
    """Show the fingerprint of a host's key, and accept the key.

    One that differs from a key that is known is refused.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.hosts import trust as execute

        return execute(host, known_hosts, yes, console)


@cli.command()
@click.argument("pool")
@click.argument("node", type=click.IntRange(min=0), default=0)
@click.option("--include", is_flag=True, help="Put the pools' names into ~/.ssh/config, for plain ssh.")
def ssh(pool: str, node: int, include: bool) -> int:
    """Open a shell on a node of a pool."""
    with open_console(False) as console:
        from skyward_tui.cli.commands.hosts import shell as execute

        return execute(pool, node, include, console)


@cli.command()
@click.argument("name", required=False)
@click.option("--copy", is_flag=True, help="Copy it into the current folder; overwrites nothing.")
@json_option
def examples(name: str | None, copy: bool, as_json: bool) -> int:
    """List the packaged examples, or show one.

    "run example:NAME" runs it.
    """
    if copy and name is None:
        raise click.UsageError("name the example to copy")
    with open_console(as_json) as console:
        from skyward_tui.cli.commands import examples as commands

        return commands.listing(console) if name is None else commands.show(name, copy, console)


@cli.command()
@click.option("--older", metavar="TIME", default="90d", show_default=True, help="Pools that ended so long ago.")
@click.option("--most", metavar="SIZE", default="20 GB", show_default=True, help="And the oldest beyond this size.")
@click.option("-n", "--dry-run", is_flag=True, help="Only tell what would go.")
@json_option
def prune(older: str, most: str, dry_run: bool, as_json: bool) -> int:
    """Remove logs, results and records of pools that are long over.

    What hosts keep that nobody has fetched stays. The same happens by itself once a day.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.down import prune as execute

        return execute(older, most, dry_run, console)


@cli.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check Python, terminal, folders, ledger and providers."""
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.doctor import doctor as execute

        return execute(console)


@cli.command("debug-dump")
@click.argument("path", required=False)
@json_option
def debug_dump(path: str | None, as_json: bool) -> int:
    """Pack log, ledger, versions and checks for a bug report.

    PATH is the zip file to write, by default a new one in the current folder; overwrites nothing. Secrets that are
    known as such are blanked; look at it before you send it.
    """
    with open_console(as_json) as console:
        from skyward_tui.cli.commands.doctor import debug_dump as execute

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
