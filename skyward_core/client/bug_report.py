"""What a report of a bug needs of this machine, without secrets that are known as such."""

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

POOLS = 100  # of those that are over, the latest
OURS = ("SKYWARD_", "AWS_")  # what variables begin with that change what we do
_ASSIGNED = re.compile(r"(?P<name>\w+)(?P<between>['\"]?\s{0,2}[=:]\s{0,2}['\"]?)(?P<value>[^\s'\",;]+)")
_COUNT = re.compile(r"[\d._]{1,15}[kKMGBT]?(/s)?")  # what a training tells of its tokens
_AWS_KEY = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")

Clean = Callable[[str], str]
_log = get_logger("app")


def make_cleaner() -> Clean:
    """What blanks secrets in a text: those of our environment by value, others by the names that stand before them."""
    redactor = Redactor(secret_values(os.environ))

    def blanked(match: re.Match[str]) -> str:
        name = match["name"]
        counts = name.lower().endswith("tokens") and _COUNT.fullmatch(match["value"])
        return f"{name}{match['between']}***" if is_secret_name(name) and not counts else match[0]

    def clean(text: str) -> str:
        text = strip_credentials(redactor.redact_text(text))
        return _AWS_KEY.sub("***", _ASSIGNED.sub(blanked, text))

    return clean


def log_failure(what: str, error: BaseException) -> None:
    """Log the traceback of a failure that the program survives.

    Args:
        what: What failed.
    """
    _log.error("%s failed: %s", what, "".join(traceback.format_exception(error)))


def as_json(value: Any, clean: Clean) -> str:
    """A value of JSON's types as text, every text in it without secrets."""
    return json.dumps(map_strings(value, clean), indent=1)


def versions(distribution: str) -> dict[str, Any]:
    """Python, the platform, the packages that a distribution asks for, and names of variables."""
    names = [
        distribution,
        *(re.split(r"[^\w.-]", each)[0] for each in metadata.requires(distribution) or ()),
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


def logs(clean: Clean) -> dict[str, str]:
    """The files of the log, by name, older ones first."""
    return {file.name: clean(file.read_text(encoding="utf-8", errors="replace")) for file in debug_log.log_files()}


def ledger() -> dict[str, Any]:
    """The ledger's rows, or why they cannot be read."""
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
    """A value of JSON's types with nothing but the names of variables, whichever release wrote it."""
    if isinstance(value, dict):
        return {
            key: sorted(part) if key == "env" and isinstance(part, dict) else strip_variable_values(part)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [strip_variable_values(part) for part in value]
    return value
