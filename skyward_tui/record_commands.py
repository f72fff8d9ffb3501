"""Commands that make a record of a pool, and play one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .command_console import console_of, of_json
from .terminal_kind import is_dumb

if TYPE_CHECKING:
    from .app import SkywardApp

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


def played(record: Path, theme: str | None = None, plain: bool = False) -> int:
    """Play a record until the person leaves; the exit status."""
    has_terminal()
    with console_of(False):
        from skyward_core.front.replay import opened

        opened(record)  # what is none is refused before the terminal is the app's
    from .opening import run
    from .replay_app import ReplayApp

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
