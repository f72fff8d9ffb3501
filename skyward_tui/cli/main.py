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
from skyward_tui.cli.shared_options_and_command_class import given_parameters, open_console, restore_help
from skyward_tui.terminal_kind_and_tmux_clipboard import is_dumb

if TYPE_CHECKING:
    from skyward_tui.app.app import SkywardApp


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

        open_recording(record)  # fails for an invalid recording before the app takes over the terminal
    from skyward_tui.app import run
    from skyward_tui.app.app import ReplayApp

    return run(in_theme(ReplayApp(record, theme or "", plain), theme))


def in_theme(app: SkywardApp, theme: str | None) -> SkywardApp:
    """Return the given app, after checking that its requested theme exists.

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
    # Collect garbage less often. Imported modules live until the process ends, and scanning them takes a fifth of a
    # short command's time.
    gc.set_threshold(50_000)
    # the parent process closed standard input; open /dev/null on its descriptor, so that no later file gets the number
    if sys.stdin is None:
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
    help="Write a debug log, which debug-dump includes.",
)


# Commands by heading in the help, then by name. Each row has the module in ``commands`` (imported only when the command
# is used), the summary, and the arguments of an example.
COMMAND_GROUPS = {
    "Run": {
        "run": ("run_torchrun_launch", "Run a script's function on every rank, and show the results.", "train.py -n 4"),
        "torchrun": ("run_torchrun_launch", "Run a script with the options of torchrun.", "--nnodes 2 train.py"),
        "launch": ("run_torchrun_launch", "Run a job file (SkyPilot task YAML) on a pool.", "task.yaml --down"),
        "exec": ("exec_launch_queue", "Run a job file, or a command, on a pool that is up.", "ddp -- nvidia-smi"),
        "rerun": ("past_runs", "Launch a run again, optionally with other arguments.", "3f2a -a lr=0.01"),
        "cancel": ("cancel_down_leftovers_prune", "Stop a run on all its ranks; the pool stays up.", "ddp --save"),
        "queue": ("exec_launch_queue", "Show the running and queued runs of a pool.", "ddp"),
        "examples": ("examples_and_shim", "List the packaged examples, or show one.", "ddp --copy"),
        "shim": ("examples_and_shim", "Let plain `python script.py` find this library as `skyward`.", "install"),
    },
    "Watch": {
        "attach": ("launched_and_attached_runs", "Watch the current run of a pool until it ends.", "ddp"),
        "logs": ("ls_logs_results_lock", "Print the output of a run's ranks, even of ended pools.", "ddp:3 --follow"),
        "metrics": ("top_and_metrics", "Show the metrics of a run's ranks and machines.", "ddp -o metrics.csv"),
        "top": ("top_and_metrics", "Show the metrics of a pool's machines every second.", "ddp"),
        "replay": ("", "Play a recording in the app, without any machine.", "ddp.skyrec"),
        "record": ("past_runs", "Save a recording of a pool or a run to one file.", "ddp -o ddp.skyrec"),
    },
    "Results": {
        "results": ("ls_logs_results_lock", "Show the outcomes of a run, and exit with its status.", "ddp -o out.csv"),
        "history": ("past_runs", "List every past run: outcome, duration, metrics, cost.", "--since 7d"),
        "note": ("past_runs", "Show or replace the note of a run.", "3f2a '#baseline lower lr'"),
        "compare": ("past_runs", "Show two runs side by side.", "3f2a 91bc"),
        "failures": ("past_runs", "List recent failures of runs and pool starts, until dismissed.", ""),
        "files": ("file_commands", "List the files that ranks wrote on their nodes.", "ddp 'out/**'"),
        "fetch": ("file_commands", "Download files that ranks wrote on their nodes.", "ddp '*.pt' --to models"),
        "checkpoints": ("file_commands", "List the checkpoints of a run and their copies.", "ddp"),
        "lock": ("ls_logs_results_lock", "Print a lock file of the packages installed for a run.", "ddp > run.lock"),
    },
    "Pools": {
        "ls": ("ls_logs_results_lock", "List the pools that are up, with their runs.", "--all"),
        "down": ("cancel_down_leftovers_prune", "Tear pools down, and show the receipts.", "ddp"),
        "prune": (
            "cancel_down_leftovers_prune", "Remove logs, results and recordings of old pools.", "--older 30d --dry-run",
        ),
    },
    "Hosts": {
        "hosts": ("hosts_trust_shell_forward", "Show who uses the GPUs of your hosts.", "lab"),
        "trust": ("hosts_trust_shell_forward", "Show the fingerprint of a host's key, and trust the key.", "gpu1"),
        "ssh": ("hosts_trust_shell_forward", "Open a shell on a node of a pool.", "ddp:3"),
        "cp": ("file_commands", "Copy files and folders to or from a node.", "data.tar ddp:data/"),
        "forward": ("hosts_trust_shell_forward", "Forward ports of a node to this machine over SSH.", "ddp 6006"),
    },
    "Cloud": {
        "offers": ("offers_capacity_costs", "List machines for rent and their prices.", "--accelerator H100:8 --spot"),
        "costs": ("offers_capacity_costs", "Show the cost of pools.", "--since 7d"),
        "capacity": ("offers_capacity_costs", "List, buy or clear capacity reservations.", "list"),
        "leftovers": (
            "cancel_down_leftovers_prune", "Find and remove leftover cloud resources of this machine.", "--all-regions",
        ),
    },
    "Debug": {
        "diagnose": ("doctor_diagnose_debug_dump", "Check links, clocks, ranks, GPUs, disks, queue, budget.", "ddp"),
        "stacks": ("debug_stacks_profile", "Show the Python stack of every rank.", "ddp"),
        "debug": ("debug_stacks_profile", "Debug a rank that waits at a breakpoint.", "ddp:3"),
        "profile": ("debug_stacks_profile", "Profile a rank with py-spy.", "ddp:3 --seconds 30"),
        "doctor": ("doctor_diagnose_debug_dump", "Check Python, terminal, folders, ledger and providers.", ""),
        "debug-dump": ("doctor_diagnose_debug_dump", "Pack log, ledger, versions and checks for a bug report.", ""),
    },
}  # fmt: skip
COMMANDS = {name: about for group in COMMAND_GROUPS.values() for name, about in group.items()}


class LazyGroup(click.Group):
    """Click group that imports its commands on first use and gives each of them ``--debug``."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        restore_help(cmd)
        name = name or cmd.name or ""
        cmd.epilog = f"Example: skyward-tui {name} {COMMANDS[name][2]}".rstrip()
        super().add_command(_debug(cmd), name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
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
        width = max(map(len, COMMANDS))
        for group, commands in COMMAND_GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(f"{name:<{width}}", summary) for name, (_, summary, _) in commands.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nTo complete words with tab, add this to ~/.bashrc (for zsh: zsh_source, in ~/.zshrc):\n"
    '  eval "$(_SKYWARD_TUI_COMPLETE=bash_source skyward-tui)"',
)
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
        for each in given_parameters(context):
            if each.expose_value:
                option = each.opts[-1]
                raise click.UsageError(
                    f"{context.invoked_subcommand} does not support {option}. Use {option} without a command"
                )
        return 0
    if demo:
        # imported late, because this module imports Textual
        from skyward_tui.widgets.screen_frame_and_replay_line import DEMO

        return played(DEMO, theme, plain)
    has_terminal()
    from skyward_tui.app import new_app, run

    return run(in_theme(new_app(read_only=read_only, theme=theme or "", plain=plain), theme))


cli.add_command(replay)
restore_help(cli)
