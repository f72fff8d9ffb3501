"""``skyward-tui debug-dump``: what a bug report needs, in one file, without secrets that are known as such."""

from __future__ import annotations

import io
import os
import time
import zipfile
from pathlib import Path

from skyward_core.front import bug_report
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError

from ..hints import detail_of
from .console import Console
from .doctor import examine
from .report import table


def debug_dump(path: str | None, console: Console) -> int:
    """Write the file, and say what is in it.

    Args:
        path: where; a name with the time in it in the current folder when None.

    Raises:
        UsageError: something is there already.
        OSError: it cannot be written.
    """
    target = Path(path or time.strftime("skyward-debug-%Y%m%d-%H%M%S.zip"))
    _refuse_if_there(target)
    parts = _parts()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, (_, text) in parts.items():
            packed.writestr(name, text)
    _write(target, archive.getvalue())
    sizes = {name: len(text.encode()) for name, (_, text) in parts.items()}
    console.say(f"{target} holds:")
    for line in table([(name, f"{sizes[name]:,} bytes", what) for name, (what, _) in parts.items()]):
        console.say(f"  {line}")
    console.say(
        "Look at it before you send it. Secrets that are known as such are blanked; names of hosts, users, folders and "
        "functions, and messages of errors, are in it."
    )
    console.result({"path": str(target), "files": sizes})
    return exit_status.OK


def _refuse_if_there(target: Path) -> None:
    if os.path.lexists(target):
        raise UsageError(f"{target} is there already and is left as it is; name another file")


def _write(target: Path, data: bytes) -> None:
    try:
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        _refuse_if_there(target)
        raise
    try:
        with open(file, "wb") as sink:
            sink.write(data)
    except OSError:
        target.unlink(missing_ok=True)  # half a file helps nobody
        raise


def _parts() -> dict[str, tuple[str, str]]:
    """What goes in: name -> what that is, and its text."""
    clean = bug_report.cleaner()
    checks = [{"subject": c.subject, "state": c.state, "detail": detail_of(c)} for c in examine()]
    told = {
        "versions.json": (
            "Python, packages, platform; names of variables",
            bug_report.versions("skyward-tui"),
        ),
        "doctor.json": ("what skyward-tui doctor finds", checks),
        "ledger.json": ("pools, runs, replacements", bug_report.ledger()),
    }
    parts = {name: (what, bug_report.as_json(value, clean)) for name, (what, value) in told.items()}
    what = "the log, as --debug and SKYWARD_LOG write it"
    return parts | {name: (what, text) for name, text in bug_report.logs(clean).items()}
