"""``skyward-tui debug``, ``stacks`` and ``profile``: debugger, stacks and profiles of ranks."""

from __future__ import annotations

import codecs
import os
import select
import sys
from pathlib import Path
from uuid import uuid4

import click

from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.thread_stacks import Stacks
from skyward_core.util.terminal_safe_text import sanitize_paragraph
from skyward_core.views.stack_groups_and_profiles import (
    SIGNAL,
    as_json,
    as_text,
    format_ranges,
    merge_stacks,
    parse_profile,
    profile_table,
    stack_as_json,
)
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.pool_and_run_lookup import live_run, open_session, split_rank
from skyward_tui.cli.shared_options_and_command_class import Duration, command
from skyward_tui.file_export import profile_files, save_all

POLL_SECONDS = 0.05  # seconds between two checks for keyboard input; short enough that the debugger responds at once
# number of empty replies in a row, after the end of the user's input, that mean that the debugger has printed
# everything
MAX_EMPTY_REPLIES = 3


@command(has_json=False)
@click.argument("rank", metavar="RUN[:RANK]")
def debug(console: Console, rank: str) -> int:
    """Debug a rank that waits at a breakpoint.

    Connects this terminal to the rank's pdb. Leave with q or Ctrl-D: the rank then continues.
    """
    name, number = split_rank(rank)
    with open_session(console) as session:
        pool, _ = live_run(session, name, for_rank=True)
        debugger = _DebugSession(session, pool.key)
        waiting, output = debugger.attach(number)
        console.note(f"debugging rank {waiting}; Ctrl-D continues to its next breakpoint, q turns breakpoints off")
        try:
            debugger.run(output)
        except KeyboardInterrupt:
            debugger.resume_rank()
        console.note(f"\nrank {waiting} continues")
    return errors.OK


class _DebugSession:
    def __init__(self, session: Session, pool: str) -> None:
        self._session, self._pool, self._debugger = session, pool, uuid4().hex
        self._rank = 0
        self._text = codecs.getincrementaldecoder("utf-8")("replace")

    def attach(self, rank: int | None) -> tuple[int, bytes]:
        """Attach to a rank, by default the first one at a breakpoint. Return the rank and the debugger's output."""
        number = 0 if rank is None else rank
        while True:
            try:
                output, _ = self._session.debug(self._pool, number, self._debugger).result()
            except PoolError as error:
                if rank is not None:
                    raise
                last = error
            except UsageError:
                if rank is not None or not number:
                    raise
                raise PoolError(f"no rank waits at a breakpoint; rank {number - 1}: {last}") from None
            else:
                self._rank = number
                return number, output
            number += 1

    def run(self, output: bytes) -> None:
        """Relay input and output between terminal and debugger until the debugger ends."""
        self._print(output)
        pending, quiet, typing = None, 0, True
        while typing or quiet < MAX_EMPTY_REPLIES:
            if pending is None:
                pending = self._session.debug(self._pool, self._rank, self._debugger)
            if typing and select.select([0], [], [], POLL_SECONDS)[0]:
                typed = os.read(0, 1 << 16)
                typing = bool(typed)
                quiet = 0
                self._send(typed)
            if typing and not pending.done():
                continue
            output, over = pending.result()
            pending = None
            self._print(output)
            if over:
                return
            quiet = 0 if output else quiet + 1

    def _send(self, typed: bytes) -> None:
        text = typed.decode(errors="replace")
        self._session.debug(self._pool, self._rank, self._debugger, text=text, eof=not typed).result()

    def resume_rank(self) -> None:
        """Let the rank continue after the breakpoint."""
        self._send(b"")

    def _print(self, output: bytes) -> None:
        sys.stdout.write(sanitize_paragraph(self._text.decode(output)))
        sys.stdout.flush()


@command()
@click.argument("run", metavar="[RUN|POOL]", default="")
@click.option("--signal", is_flag=True, help="Get stacks by signal from ranks that py-spy cannot read.")
@click.option("--threads", is_flag=True, help="Show all threads of a rank, not only threads that run the function.")
def stacks(console: Console, run: str, signal: bool, threads: bool) -> int:
    """Show the Python stack of every rank.

    By default, the ranks are those of the only running run. Equal stacks are shown once, with their ranks. The first
    lines name the ranks inside and outside of a collective.
    """
    with open_session(console) as session:
        pool, run = live_run(session, run)
        found = session.stacks(pool.key, run, signal=signal).result()
        if (ranks := found.askable) and not signal and _ask_signal(found, console):
            found = merge_stacks(found, session.stacks(pool.key, run, ranks, signal=True).result())
        folder = str(pool.spec.get("cwd") or "")
    console.result(stack_as_json(found))
    if not console.as_json:
        for line in as_text(found, (folder,), threads=threads):
            console.print_line(line)
    return errors.FAILED if found.unknown else errors.OK


def _ask_signal(found: Stacks, console: Console) -> bool:
    """Ask the user for permission to send a signal to ranks."""
    ranks = found.askable
    reason = next(each.why for each in found.ranks if each.rank in ranks)
    named = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {format_ranges(ranks)}"
    console.note(f"{named} cannot be read: {reason}.\n{SIGNAL}.")
    if not console.is_terminal:
        console.note("Pass --signal to allow this.")
        return False
    return console.ask("Send the signal? (yes)").strip().lower() == "yes"


@command()
@click.argument("rank", metavar="RUN:RANK")
@click.option("--seconds", type=Duration(1, 600), default=10, show_default=True, help="Duration of the profile.")
@click.option("--to", metavar="DIR", help="Write the files to DIR.  [default: the current folder]")
def profile(console: Console, rank: str, seconds: float, to: str | None) -> int:
    """Profile a rank with py-spy.

    Shows the hottest lines, and writes a file for speedscope.app. The rank keeps running.
    """
    name, number = split_rank(rank)
    if number is None:
        raise UsageError(f"{rank!r} names no rank. Write RUN:RANK or POOL:RANK, such as {rank.partition(':')[0]}:0")
    folder = Path(to or ".")
    with open_session(console) as session:
        pool, run = live_run(session, name, for_rank=True)
        console.note(f"profiling rank {number} for {seconds:g} s")
        seen = parse_profile(session.profile(pool.key, number, seconds).result())
    called = f"{pool.name}-{run}-r{number}" if run else f"{pool.name}-r{number}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = save_all(folder, {name: [text] for name, text in profile_files(seen, called).items()})
    console.result(as_json(seen) | {"files": [str(path) for path in paths]})
    if seen.samples and not console.as_json:
        console.print_table(profile_table(seen))
    if not seen.samples:
        console.note("the rank was idle in every sample; skyward-tui stacks shows where it waits")
    console.note(f"written: {', '.join(map(str, paths))}")
    return errors.OK
