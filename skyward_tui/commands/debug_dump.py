"""``skyward-tui debug-dump``: what a bug report needs, in one file, without secrets that are known as such."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from skyward_core.model import exit_status
from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.store import debug_log
from skyward_core.store.ledger import Ledger
from skyward_core.wire.redact import Redactor, each_text, is_secret_name, secret_values, without_credentials

from ..hints import detail_of
from .console import Console
from .doctor import examine
from .report import table

POOLS = 100  # of those that are over, the latest
OURS = ("SKYWARD_", "AWS_")  # what variables begin with that change what we do
_ASSIGNED = re.compile(r"(?P<name>\w+)(?P<between>['\"]?\s{0,2}[=:]\s{0,2}['\"]?)(?P<value>[^\s'\",;]+)")
_AWS_KEY = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")

Clean = Callable[[str], str]


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
    if target.exists() or target.is_symlink():
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
    clean = cleaner()
    checks = [{"subject": c.subject, "state": c.state, "detail": detail_of(c)} for c in examine()]
    parts = {
        "versions.json": ("Python, packages, platform; names of variables", _json(_versions(), clean)),
        "doctor.json": ("what skyward-tui doctor finds", _json(checks, clean)),
        "ledger.json": ("pools, runs, replacements", _json(_ledger(), clean)),
    }
    for file in debug_log.files():
        text = file.read_text(encoding="utf-8", errors="replace")
        parts[file.name] = "the log, as --debug and SKYWARD_LOG write it", clean(text)
    return parts


def cleaner() -> Clean:
    """What blanks secrets in a text: those of our environment by value, others by the names that stand before them."""
    redactor = Redactor(secret_values(os.environ))

    def blanked(match: re.Match[str]) -> str:
        return f"{match['name']}{match['between']}***" if is_secret_name(match["name"]) else match[0]

    def clean(text: str) -> str:
        text = without_credentials(redactor.text(text))
        return _AWS_KEY.sub("***", _ASSIGNED.sub(blanked, text))

    return clean


def _json(value: Any, clean: Clean) -> str:
    return json.dumps(each_text(value, clean), indent=1)


def _versions() -> dict[str, Any]:
    names = [
        "skyward-tui",
        *(re.split(r"[^\w.-]", each)[0] for each in metadata.requires("skyward-tui") or ()),
    ]
    packages: dict[str, str | None] = {}
    for name in dict.fromkeys(names):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    return {
        "python": sys.version,
        "executable": sys.executable,
        "platform": platform.platform(),
        "packages": packages,
        "variables": sorted(name for name in os.environ if name.startswith(OURS)),
    }


def _ledger() -> dict[str, Any]:
    """Its rows, or why they cannot be read."""
    try:
        ledger = Ledger()
        try:
            pools = [*ledger.live(), *ledger.over(limit=POOLS)]
            return {
                "pools": [_without_env(asdict(row)) for row in pools],
                "runs": [asdict(run) for row in pools for run in ledger.runs(row.token)],
                "replacements": [
                    asdict(each) | {"token": row.token}
                    for row in pools
                    for each in ledger.replacements(row.token)
                ],
            }
        finally:
            ledger.close()
    except SkywardError as error:
        return {"error": str(error)}


def _without_env(value: Any) -> Any:
    """A value of JSON's types with nothing but the names of variables, whichever release wrote it."""
    if isinstance(value, dict):
        return {
            key: sorted(part) if key == "env" and isinstance(part, dict) else _without_env(part)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_env(part) for part in value]
    return value
