"""``skyward-tui debug``, ``diagnose``, ``stacks`` and ``profile``: debugger, checks, stacks and profiles of ranks."""

from __future__ import annotations

import codecs
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import click

from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.machines_and_gpu_use import Check
from skyward_core.model.metric_definitions_series_and_export import describe_throttling
from skyward_core.model.thread_stacks import Stacks
from skyward_core.util.format_bytes import format_size
from skyward_core.util.terminal_safe_text import sanitize_paragraph
from skyward_core.views.machine_metrics import MachineMetrics, MetricHistory, describe_xid, memory_share, slowdown_bits
from skyward_core.views.pool_view import PoolView
from skyward_core.views.problem_alerts_and_stragglers import find_alerts
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
from skyward_tui.cli.pool_and_run_lookup import live_pools, live_run, open_session, split_rank
from skyward_tui.cli.result_tables_failures_and_receipts import report_checks
from skyward_tui.cli.shared_options_and_command_class import Duration, command
from skyward_tui.file_export import profile_files, save_all
from skyward_tui.text.error_hint_text import format_detail, format_error
from skyward_tui.text.number_time_and_run_state_format import count, duration, money, preemption_text
from skyward_tui.text.queue_trial_and_comparison_rows import queue_rows, waiting_reason

POLL_SECONDS = 0.05  # seconds between two checks for keyboard input; short enough to feel immediate
# after the end of the input, this many empty replies in a row mean that the debugger has printed everything
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
        """Attach to a rank, by default the first rank that waits. Return its number and its debugger's output."""
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
@click.argument("pool")
def diagnose(console: Console, pool: str) -> int:
    """Check a pool: links, ranks, GPUs, disks, queue, budget.

    Of a run with silent ranks, the stacks of all ranks are shown. Exits with 1 if a check fails.
    """
    with open_session(console) as session:
        (row,) = live_pools(session, (pool,))
        try:
            view = session.start_sampling(row.key).result()
        except PoolError as error:
            return report_checks([Check("pool", "fail", format_error(error))], console)
        now, stacks = time.time(), dict[str, Stacks]()
        checks = list(check_pool(view, now))
        for run in view.begun_runs():
            if any(alert.kind == "stall" for alert in find_alerts(view, run, now)):
                try:
                    stacks[run.id] = session.stacks(row.key, run.id).result()
                except PoolError as error:
                    checks.append(Check("stacks", "warn", f"run {run.id}: {format_error(error)}"))
    status = report_checks(checks, console, stacks={run: stack_as_json(each) for run, each in stacks.items()})
    for run_id, each in stacks.items() if not console.as_json else ():
        for line in (f"\nstacks of run {run_id}", *as_text(each)):
            console.print_line(line)
    return status


MIN_FREE = 1e9  # bytes of the disk with logs and results; agents stop ranks on a full disk
_RANK_ALERTS = ("nan", "stall", "straggler", "restarts")  # kinds of alerts about ranks


def check_pool(view: PoolView, now: float) -> Iterator[Check]:
    """Yield the checks of a pool whose machines are measured."""
    state, detail = view.shown_state, format_detail(view)
    is_changing = state in ("starting", "connecting", "stopping")
    yield Check("pool", "ok" if state == "up" else "warn" if is_changing else "fail", f"{state} {detail}".rstrip())
    metrics = view.machines or MachineMetrics()
    unready, cut, silent, full, broken, tight = (list[str]() for _ in range(6))
    for node in view.nodes:
        if node.phase != "ready":
            unready.append(f"n{node.index}: {node.phase} for {duration(now - node.since)} {node.detail}".rstrip())
        if node.notice:
            unready.append(f"n{node.index}: {preemption_text(node, now)}")
        if node.link_up is False:
            lost = duration(now - node.link_since)
            cut.append(f"n{node.index}: no connection for {lost} {node.link_detail}".rstrip())
    rooms = []
    for index, machine in metrics.nodes.items():
        host = machine.host
        if not machine.is_fresh(now):
            silent.append(f"n{index}: no measurements for {duration(now - (host.latest_at or view.created_at))}")
        if (room := host.latest.get("spool_free")) is not None:
            rooms.append(room)
            full += [f"n{index}: {format_size(int(room))} free"] if room < MIN_FREE else []
        if host.full_since is not None:
            tight.append(f"n{index}: {100 * memory_share(host.latest):.0f} % used")
        found = [(gpu, ", ".join(_gpu_problems(track))) for gpu, track in enumerate(machine.gpus)]
        broken += [f"n{index} GPU {gpu}: {problems}" for gpu, problems in found if problems]
    gpus = sum(len(machine.gpus) for machine in metrics.nodes.values())
    yield from _checks("nodes", unready, f"{view.nodes_ready}/{view.node_count} ready")
    yield from _checks("links", cut, "all nodes are connected")
    yield from _checks("agents", silent, "all agents send measurements")
    yield from _checks("disks", full, f"at least {format_size(int(min(rooms)))} free" if rooms else "")
    yield from _checks("memory", tight, "no machine's memory is nearly full")
    yield from _checks("GPUs", broken, f"{count(gpus, 'GPU')} without errors" if gpus else "")
    runs = view.begun_runs()
    alerts = [(run, each) for run in runs for each in find_alerts(view, run, now) if each.kind in _RANK_ALERTS]
    texts = [f"run {run.id}: {each.who}: {each.words} ({duration(now - each.since)})" for run, each in alerts]
    yield from _checks(
        "ranks", texts, f"{count(len(runs), 'running run')} without problems" if runs else "no run is active"
    )
    if waiting := [row for row in queue_rows(view) if row.waits]:
        yield Check("queue", "warn", "; ".join(f"run {row.run} {waiting_reason(row, now)}" for row in waiting))
    if view.price_hourly or view.budget is not None:
        spent = f"spent {money(view.spent(now))}" + (f" of {money(view.budget)}" if view.budget is not None else "")
        is_near = view.budget_state == "near"
        yield Check("budget", "ok" if view.budget_state == "within" else "warn" if is_near else "fail", spent)


def _checks(subject: str, problems: Sequence[str], fine: str = "") -> Iterator[Check]:
    """Yield a failed check for each problem; without problems, a passed check, unless its text is empty."""
    yield from (Check(subject, "fail", each) for each in problems)
    if fine and not problems:
        yield Check(subject, "ok", fine)


def _gpu_problems(gpu: MetricHistory) -> list[str]:
    found = [describe_xid(gpu.xid)] if gpu.xid else []
    found += ["lost by the driver"] if gpu.lost_since is not None else []
    found += [f"{errors:,.0f} uncorrectable memory errors"] if (errors := gpu.latest.get("ecc")) else []
    bits = slowdown_bits(gpu.latest)
    return found + ([f"slowed: {describe_throttling(bits)}"] if bits else [])


@command()
@click.argument("run", metavar="[RUN|POOL]", default="")
@click.option("--signal", is_flag=True, help="Get stacks by signal from ranks that py-spy cannot read.")
@click.option("--threads", is_flag=True, help="Show all threads, not only those that run the function.")
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
