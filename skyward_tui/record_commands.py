"""Commands that make a record of a pool, and play one."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .command_console import console_of, of_json

DEMO = Path(__file__).with_name("demo.skyrec")  # tests/demo_record makes it


@click.command()
@click.argument("run", metavar="RUN|POOL")
@click.option(
    "-o", "--output", metavar="FILE", help="The file to write; overwrites nothing.  [default: NAME.skyrec]"
)
@of_json
def record(run: str, output: str | None, as_json: bool) -> int:
    """Pack the record of a pool or a run into one file.

    "replay FILE" plays it, on any machine. Secrets that are known as such are blanked; look at it before you send it.

    RUN is a run's id or a pool's name, or as much of one as tells it from others.
    """
    with console_of(as_json) as console:
        from .commands.record import record as execute

        return execute(run, output, console)


@click.command()
@click.argument("record", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--dump", is_flag=True, help="Print what is in it, a line of JSON for each entry, and open no app."
)
def replay(record: Path, dump: bool) -> int:
    """Play a record in the app, without any machine.

    It can be paused, played faster and slower, and gone to any time of; nothing can be changed.
    """
    if dump:
        with console_of(False) as console:
            from .commands.record import dump as execute

            return execute(record, console)
    return played(record)


def played(record: Path) -> int:
    """Play a record until the person leaves; the exit status."""
    has_terminal()
    with console_of(False):
        from skyward_core.front.replay import opened

        opened(record)  # what is none is refused before the terminal is the app's
    from .opening import run
    from .replay_app import ReplayApp

    return run(ReplayApp(record))


def has_terminal() -> None:
    """See that there is a terminal for the app.

    Raises:
        UsageError: there is none.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("the app needs a terminal; skyward-tui --help lists commands that do without")
