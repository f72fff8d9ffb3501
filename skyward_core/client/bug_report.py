"""Data for a bug report about this machine, without known secrets."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from importlib import metadata
from typing import Any

from skyward_core.model.errors import SkywardError
from skyward_core.store import debug_log
from skyward_core.store.debug_log import get_logger
from skyward_core.store.ledger import Ledger
from skyward_core.util.redaction import (
    Redactor,
    is_secret_name,
    map_strings,
    secret_values,
    strip_credentials,
)

POOLS = 100  # number of pools to include, of those that ended last
OURS = ("SKYWARD_", "AWS_")  # prefixes of variables that change the behavior of this library
_ASSIGNED = re.compile(r"(?P<name>\w+)(?P<between>['\"]?\s{0,2}[=:]\s{0,2}['\"]?)(?P<value>[^\s'\",;]+)")
_COUNT = re.compile(r"[\d._]{1,15}[kKMGBT]?(/s)?")  # token counts of a training, which are not secrets
_AWS_KEY = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")

Clean = Callable[[str], str]
_log = get_logger("app")


def make_cleaner() -> Clean:
    """Return a function that redacts secrets in text: values of the environment's secret variables, and values that
    follow a name such as "password".
    """
    redactor = Redactor(secret_values(os.environ))

    def redact(match: re.Match[str]) -> str:
        name = match["name"]
        counts = name.lower().endswith("tokens") and _COUNT.fullmatch(match["value"])
        return f"{name}{match['between']}***" if is_secret_name(name) and not counts else match[0]

    def clean(text: str) -> str:
        text = strip_credentials(redactor.redact_text(text))
        return _AWS_KEY.sub("***", _ASSIGNED.sub(redact, text))

    return clean


def log_failure(what: str, error: BaseException) -> None:
    """Log the traceback of a failure that the program survives.

    Args:
        what: Operation that failed.
    """
    _log.error("%s failed: %s", what, "".join(traceback.format_exception(error)))


def as_json(value: Any, clean: Clean) -> str:
    """Return a value as JSON text, after cleaning each string in it."""
    return json.dumps(map_strings(value, clean), indent=1)


def versions(distribution: str) -> dict[str, Any]:
    """Return the versions of Python, the platform and a distribution's dependencies, and the names of set variables
    that matter.
    """
    names = [distribution, *(re.split(r"[^\w.-]", each)[0] for each in metadata.requires(distribution) or ())]
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


def logs(clean: Clean) -> dict[str, str]:
    """Return the cleaned log files by name, oldest first."""
    return {file.name: clean(file.read_text(encoding="utf-8", errors="replace")) for file in debug_log.log_files()}


def ledger() -> dict[str, Any]:
    """Return the rows of the ledger, or the error that prevents reading it."""
    try:
        with closing(Ledger()) as opened:
            pools = [*opened.live_pools(), *opened.ended_pools(limit=POOLS)]
            return {
                "pools": [strip_variable_values(asdict(row)) for row in pools],
                "runs": [asdict(run) for row in pools for run in opened.runs(row.token)],
                "replacements": [
                    asdict(each) | {"token": row.token} for row in pools for each in opened.replacements(row.token)
                ],
            }
    except SkywardError as error:
        return {"error": str(error)}


def strip_variable_values(value: Any) -> Any:
    """Return a JSON value with environment variables reduced to their names. Older formats are supported."""
    if isinstance(value, dict):
        return {
            key: sorted(part) if key == "env" and isinstance(part, dict) else strip_variable_values(part)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [strip_variable_values(part) for part in value]
    return value
