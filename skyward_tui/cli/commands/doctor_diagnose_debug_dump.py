"""``skyward-tui doctor``, ``diagnose`` and ``debug-dump``: checks of this machine and of pools, and bug reports."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from skyward_core.client import doctor_and_bug_report
from skyward_core.model import errors
from skyward_core.model.errors import PoolError
from skyward_core.model.machines_checks_and_gpu_use import Check
from skyward_core.model.metric_definitions_series_and_export import describe_throttling
from skyward_core.model.thread_stacks import Stacks
from skyward_core.util.number_size_and_time_format import format_size
from skyward_core.views.machine_metrics import MachineMetrics, MetricHistory, describe_xid, memory_share, slowdown_bits
from skyward_core.views.pool_view import PoolView
from skyward_core.views.problem_alerts_and_stragglers import find_alerts
from skyward_core.views.stack_groups_and_profiles import as_text, stack_as_json
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.pool_and_run_lookup import live_pools, open_session
from skyward_tui.cli.shared_options_and_command_class import command
from skyward_tui.text.error_hint_text import format_detail, format_error
from skyward_tui.text.number_time_and_run_state_format import count, duration, money, preemption_text
from skyward_tui.text.queue_trial_and_comparison_rows import queue_rows, waiting_reason
from skyward_tui.text.text_width_tables_and_ascii import Columns

SMALLEST = (80, 24)


@command()
def doctor(console: Console) -> int:
    """Check Python, terminal, folders, ledger and providers."""
    return report_checks(examine(), console)


def examine() -> Iterator[Check]:
    """Yield the checks of this machine, of the terminal and of all providers."""
    return doctor_and_bug_report.examine(_check_terminal())


def _check_terminal() -> Check:
    if not sys.stdout.isatty():
        return Check("terminal", "warn", "no terminal: only the app needs one")
    size = shutil.get_terminal_size()
    name = os.environ.get("TERM", "")
    if size < SMALLEST:
        return Check("terminal", "warn", f"{size.columns}x{size.lines}; the app needs at least 80x24")
    return Check("terminal", "ok", f"{name or 'unnamed'}, {size.columns}x{size.lines}")


@command()
@click.argument("path", required=False)
def debug_dump(console: Console, path: str | None) -> None:
    """Pack log, ledger, versions and checks for a bug report.

    PATH is the zip file to write, by default a new file in the current folder. Existing files are not overwritten.
    Known secrets are masked. Check the file before you send it.
    """
    # imported late, because most commands do not need this module, which imports the code for runs
    from skyward_tui.file_export import require_absent, write_new

    target = Path(path or time.strftime("skyward-debug-%Y%m%d-%H%M%S.zip"))
    require_absent(target)
    parts = _collect_parts()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, (_, text) in parts.items():
            packed.writestr(name, text)
    write_new(target, [archive.getvalue()], private=True)
    sizes = {name: len(text.encode()) for name, (_, text) in parts.items()}
    console.print_line(f"{target} holds:")
    console.print_table([("", name, f"{sizes[name]:,} bytes", what) for name, (what, _) in parts.items()])
    console.print_line(
        "Check the file before you send it. Known secrets are masked. The file contains names of hosts, users, folders "
        "and functions, and error messages."
    )
    console.result({"path": str(target), "files": sizes})


def _collect_parts() -> dict[str, tuple[str, str]]:
    """Return the parts of the archive by file name, each with its description and text."""
    clean = doctor_and_bug_report.make_cleaner()
    checks = [{"subject": c.subject, "state": c.state, "detail": format_detail(c)} for c in examine()]
    values = {
        "versions.json": (
            "Python, packages, platform; names of variables",
            doctor_and_bug_report.versions("skyward-tui"),
        ),
        "doctor.json": ("checks of skyward-tui doctor", checks),
        "ledger.json": ("pools, runs, replacements", doctor_and_bug_report.ledger()),
    }
    parts = {name: (what, doctor_and_bug_report.as_json(value, clean)) for name, (what, value) in values.items()}
    what = "the debug log of --debug and SKYWARD_LOG"
    return parts | {name: (what, text) for name, text in doctor_and_bug_report.logs(clean).items()}


@command()
@click.argument("pool")
def diagnose(console: Console, pool: str) -> int:
    """Check links, clocks, ranks, GPUs, disks, queue, budget.

    If a run has silent ranks, shows the stacks of all its ranks. Exits with 1 if a check fails.
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


_CLOCK_FIX = "Run timedatectl on both machines, and synchronize the wrong clock: sudo timedatectl set-ntp true"
MIN_FREE = 1e9  # bytes; minimum free space on the disk with logs and results, because agents stop ranks on a full disk
MAX_CLOCK_OFFSET = 5.0  # seconds; on a slow link, frames arrive late, so that clocks seem to differ although they agree
_RANK_ALERTS = ("nan", "stall", "straggler", "restarts")  # kinds of alerts that make the check of ranks fail


def check_pool(view: PoolView, now: float) -> Iterator[Check]:
    """Yield the checks of a pool. The session must already be sampling the metrics of the pool's machines."""
    state, detail = view.shown_state, format_detail(view)
    is_changing = state in ("starting", "connecting", "stopping")
    yield Check("pool", "ok" if state == "up" else "warn" if is_changing else "fail", f"{state} {detail}".rstrip())
    metrics = view.machines or MachineMetrics()
    unready, cut, silent, full, broken, tight, clocks = (list[str]() for _ in range(7))
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
        if abs(machine.ahead) > MAX_CLOCK_OFFSET:
            side = "behind" if machine.ahead > 0 else "ahead of"
            clocks.append(f"n{index}: {duration(abs(machine.ahead))} {side} the clock of this machine. {_CLOCK_FIX}")
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
    yield from _checks("clocks", clocks, "all clocks agree with this machine's clock" if metrics.nodes else "")
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
    """Yield a failed check for each problem. Without problems, yield one passed check if its text is given."""
    yield from (Check(subject, "fail", each) for each in problems)
    if fine and not problems:
        yield Check(subject, "ok", fine)


def _gpu_problems(gpu: MetricHistory) -> list[str]:
    found = [describe_xid(gpu.xid)] if gpu.xid else []
    found += ["lost by the driver"] if gpu.lost_since is not None else []
    found += [f"{errors:,.0f} uncorrectable memory errors"] if (errors := gpu.latest.get("ecc")) else []
    bits = slowdown_bits(gpu.latest)
    return found + ([f"slowed: {describe_throttling(bits)}"] if bits else [])


_CHECK_LOOKS = {"ok": ("✓", 32), "warn": ("!", 33), "fail": ("✗", 31)}


def report_checks(found: Iterable[Check], console: Console, **more: Any) -> int:
    """Print checks, and return the exit status.

    Args:
        found: The checks.
        console: The console.
        more: Other parts of the JSON object.
    """
    columns, checks = Columns(len("! warn"), len("open files")), list[Check]()
    # each check is printed as soon as it is done, because hosts that do not answer delay the last checks
    for c in found:
        checks.append(c)
        if not console.as_json:
            glyph, color = _CHECK_LOOKS[c.state]
            console.print_line(columns.line([f"{glyph} {c.state}", c.subject, format_detail(c)]), color)
    is_ok = all(c.state != "fail" for c in checks)
    rows = [{"subject": c.subject, "state": c.state, "detail": format_detail(c)} for c in checks]
    console.result({"ok": is_ok, "checks": rows} | more)
    return errors.OK if is_ok else errors.FAILED
