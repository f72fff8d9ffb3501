"""The ``skyward-tui`` command: its click group and the table of its commands."""

from __future__ import annotations

import gc
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from skyward_tui.cli.fault_tolerant_stdio import StandardStream
from skyward_tui.cli.shared_options_and_command_class import open_console, restore_help
from skyward_tui.terminal_kind_and_tmux_clipboard import is_dumb

if TYPE_CHECKING:
    from skyward_tui.app.app import SkywardApp


DEMO = Path(__file__).parents[1].joinpath("demo.skyrec")  # created by tests/demo_record


@click.command()
@click.argument("record", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dump", is_flag=True, help="Print the entries as lines of JSON instead of opening the app.")
def replay(record: Path, dump: bool) -> int:
    """Play a recording in the app, without any machine.

    Pause the replay, change its speed, or jump to any time. A replay changes nothing.
    """
    if dump:
        with open_console(False) as console:
            from skyward_tui.cli.commands.past_runs import dump as execute

            return execute(record, console)
    return played(record)


def played(record: Path, theme: str | None = None, plain: bool = False) -> int:
    """Play a recording until the user quits, and return the exit status."""
    has_terminal()
    with open_console(False):
        from skyward_core.client.replay_session import open_recording

        open_recording(record)  # rejects an invalid file before the app takes over the terminal
    from skyward_tui.app import run
    from skyward_tui.app.replay_app import ReplayApp

    return run(in_theme(ReplayApp(record, theme or "", plain), theme))


def in_theme(app: SkywardApp, theme: str | None) -> SkywardApp:
    """Return the app after checking that it has the theme.

    Raises:
        UsageError: If the app has no theme of that name.
    """
    if theme is not None and theme not in app.available_themes:
        raise click.UsageError(f"unknown theme {theme!r}. Use one of: {', '.join(sorted(app.available_themes))}")
    return app


def has_terminal() -> None:
    """Check that there is a terminal for the app.

    Raises:
        UsageError: If there is no terminal, or the terminal cannot move its cursor.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("the app needs a terminal. skyward-tui --help lists commands that work without one")
    if is_dumb():
        raise click.UsageError(
            f"the app needs a terminal that can move its cursor, but TERM is {os.environ['TERM']}. Set "
            "TERM=xterm-256color if the terminal supports it. skyward-tui --help lists commands that work without one"
        )


def main() -> NoReturn:
    """Run the command and end with its exit status (``docs/reference/exit-codes.md``)."""
    # Imported modules live until the process ends. Scanning them during garbage collections takes a fifth of a short
    # command's time.
    gc.set_threshold(50_000)
    if sys.stdin is None:  # the parent process closed it; occupy its descriptor, so that no later file gets the number
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
    help="Write a debug log (see debug-dump).",
)


# By name of a command: its module in ``commands``, imported only when the command is used, and its summary.
COMMANDS = {
    "attach": ("launched_and_attached_runs", "Watch the current run of a pool until it ends."),
    "cancel": ("cancel_down_prune", "Stop a run on all its ranks; the pool stays up."),
    "capacity": ("offers_capacity_costs", "List, buy or clear capacity reservations."),
    "checkpoints": ("file_commands", "List the checkpoints of a run, and where their copies are."),
    "compare": ("past_runs", "Show two runs side by side."),
    "costs": ("offers_capacity_costs", "Show the cost of pools."),
    "cp": ("file_commands", "Copy files and folders to or from a node."),
    "debug": ("debug_stacks_profile", "Debug a rank that waits at a breakpoint."),
    "debug-dump": ("doctor_and_debug_dump", "Pack log, ledger, versions and checks for a bug report."),
    "doctor": ("doctor_and_debug_dump", "Check Python, terminal, folders, ledger and providers."),
    "down": ("cancel_down_prune", "Tear pools down, and show the receipts."),
    "examples": ("examples_and_shim", "List the packaged examples, or show one."),
    "exec": ("exec_launch_queue", "Run a job file, or a command, on a pool that is up."),
    "failures": ("past_runs", "List recent failures of runs and pool starts, until dismissed."),
    "fetch": ("file_commands", "Download files that ranks wrote on their nodes."),
    "files": ("file_commands", "List the files that ranks wrote on their nodes."),
    "forward": ("hosts_trust_shell_forward", "Forward ports of a node to this machine over SSH."),
    "history": ("past_runs", "List every past run: outcome, duration, metrics, cost."),
    "hosts": ("hosts_trust_shell_forward", "Show who uses the GPUs of your hosts."),
    "launch": ("run_torchrun_launch", "Run a job file (SkyPilot task YAML) on a pool."),
    "leftovers": ("leftovers", "Find and remove leftover cloud resources of this machine."),
    "lock": ("ls_logs_results_lock", "Print a lock file of the packages installed for a run."),
    "logs": ("ls_logs_results_lock", "Print the output of a run's ranks, even after the pool has ended."),
    "ls": ("ls_logs_results_lock", "List the pools that are up, with their runs."),
    "metrics": ("top_and_metrics", "Show the metrics of a run's ranks and machines."),
    "offers": ("offers_capacity_costs", "List machines for rent and their prices."),
    "profile": ("debug_stacks_profile", "Profile a rank with py-spy."),
    "prune": ("cancel_down_prune", "Remove logs, results and recordings of old pools."),
    "queue": ("exec_launch_queue", "Show the running and queued runs of a pool."),
    "record": ("past_runs", "Save a recording of a pool or a run to one file."),
    "rerun": ("past_runs", "Launch a run again, optionally with other arguments."),
    "results": ("ls_logs_results_lock", "Show the outcomes of a run, and exit with its status."),
    "run": ("run_torchrun_launch", "Run a script's function on every rank, and show the results."),
    "shim": ("examples_and_shim", "Let plain `python script.py` find this library as `skyward`."),
    "ssh": ("hosts_trust_shell_forward", "Open a shell on a node of a pool."),
    "stacks": ("debug_stacks_profile", "Show the Python stack of every rank."),
    "top": ("top_and_metrics", "Show the metrics of a pool's machines every second."),
    "torchrun": ("run_torchrun_launch", "Run a script on a pool, with the options of PyTorch's torchrun."),
    "trust": ("hosts_trust_shell_forward", "Show the fingerprint of a host's key, and trust the key."),
}


OLDER_COMMANDS = {"sweep": "leftovers"}


class LazyGroup(click.Group):
    """Click group that imports its commands on first use and gives each of them ``--debug``."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        restore_help(cmd)
        super().add_command(_debug(cmd), name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in OLDER_COMMANDS:
            click.echo(f"`{cmd_name}` was renamed. Use `{OLDER_COMMANDS[cmd_name]}`.", err=True)
            cmd_name = OLDER_COMMANDS[cmd_name]
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            found = vars(import_module(f"skyward_tui.cli.commands.{COMMANDS[cmd_name][0]}")).values()
            self.add_command(next(each for each in found if isinstance(each, click.Command) and each.name == cmd_name))
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            close = get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str(formatter.width) for name, command in self.commands.items()}
        rows = own | {name: summary for name, (_, summary) in COMMANDS.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows.items()))


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@_debug
@click.option("--read-only", is_flag=True, help="App only: reject every action that would change anything.")
@click.option("--demo", is_flag=True, help="App only: replay a recorded run of 32 ranks, without any machine.")
@click.option("--theme", metavar="NAME", help="App only: use this theme for the session, even with NO_COLOR set.")
@click.option("--ascii", "plain", is_flag=True, help="App only: draw with plain ASCII.")
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
                    f"{context.invoked_subcommand} does not support {option}. Use {option} without a command"
                )
        return 0
    if demo:
        return played(DEMO, theme, plain)
    has_terminal()
    from skyward_tui.app import new_app, run

    return run(in_theme(new_app(read_only=read_only, theme=theme or "", plain=plain), theme))


cli.add_command(replay)
restore_help(cli)
