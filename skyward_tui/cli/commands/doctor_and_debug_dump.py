"""``skyward-tui doctor`` and ``debug-dump``: checks of an installation and its hosts, and archives for bug reports."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import click

from skyward_core.client import doctor_and_bug_report
from skyward_core.model.machines_and_gpu_use import Check
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.result_tables_failures_and_receipts import report_checks
from skyward_tui.cli.shared_options_and_command_class import command
from skyward_tui.text.error_hint_text import format_detail

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
    from skyward_tui.file_export import require_absent, write_new  # late: imports the code for runs

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
