"""Checks of this machine (``doctor``), and data for a bug report about it, without known secrets."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import resource
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from importlib import metadata
from typing import Any

from skyward_core import providers
from skyward_core.model.errors import SkywardError
from skyward_core.model.machines_checks_and_gpu_use import Check
from skyward_core.model.provider_capability_protocols import ChecksSettings
from skyward_core.model.provider_settings_schema import declared_settings
from skyward_core.store import debug_log
from skyward_core.store.debug_log import get_logger
from skyward_core.store.ledger import VERSION, Ledger
from skyward_core.store.state_folder import ensure_socket_folder, state_home
from skyward_core.util.redaction import (
    Redactor,
    is_secret_name,
    map_strings,
    secret_values,
    strip_credentials,
)

POOLS = 100  # number of recently ended pools whose ledger rows a bug report includes
OURS = ("SKYWARD_", "AWS_")  # prefixes of environment variables that change the behavior of this library
_ASSIGNED = re.compile(r"(?P<name>\w+)(?P<between>['\"]?\s{0,2}[=:]\s{0,2}['\"]?)(?P<value>[^\s'\",;]+)")
# Values such as 12.5k/s in "tokens: 12.5k/s", which are token counts of a training, not secrets.
_COUNT = re.compile(r"[\d._]{1,15}[kKMGBT]?(/s)?")
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
    """Return the versions of Python, the platform and a distribution's dependencies, and the names of environment
    variables that change the behavior of this library.
    """
    names = [distribution, *(re.split(r"[^\w.-]", each)[0] for each in metadata.requires(distribution) or ())]
    packages: dict[str, str | None] = {}
    for name in dict.fromkeys(names):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    python = {"python": sys.version, "executable": sys.executable, "platform": platform.platform()}
    variables = sorted(name for name in os.environ if name.startswith(OURS))
    return python | {"packages": packages, "variables": variables}


def logs(clean: Clean) -> dict[str, str]:
    """Return the contents of the debug log files by name, without secrets, oldest first."""
    return {file.name: clean(file.read_text(encoding="utf-8", errors="replace")) for file in debug_log.log_files()}


def ledger() -> dict[str, Any]:
    """Return the ledger's rows of live and recent pools and of their runs, or the error that prevents reading them."""
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


# minimum limit of open files: each of several hundred ranks needs a socket and two log files, and scripts open files,
# too
FILES_WANTED = 1024


def examine(*more: Check) -> Iterator[Check]:
    """Yield the results of all checks of ``doctor``.

    Args:
        more: Additional checks, yielded after the check of Python.
    """
    yield from (_python(), *more, _files())
    yield from _folders()
    yield from _providers()


def _python() -> Check:
    detail = (
        f"{platform.python_version()} at {sys.executable}; nodes need the same minor version as the client's script"
    )
    return Check("python", "ok", detail)


def _files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES_WANTED:
        return Check("open files", "warn", f"limit {soft} is low. Run ulimit -n {FILES_WANTED} (hard limit {hard})")
    return Check("open files", "ok", f"limit {soft}")


def _folders() -> Iterator[Check]:
    try:
        home = state_home()
        probe = home / f".doctor-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
        ensure_socket_folder(home)
    except SkywardError as error:
        yield Check.from_error("folders", error)
        return
    except OSError as error:
        yield Check("folders", "fail", f"{error}. Set SKYWARD_HOME to a folder that you can write to")
        return
    yield Check("folders", "ok", f"state folder: {home}")
    try:
        ledger = Ledger()
    except SkywardError as error:
        yield Check.from_error("ledger", error)
        return
    live = [row.name for row in ledger.live_pools()]
    ledger.close()
    if ledger.damaged_copy is not None:
        yield Check("ledger", "warn", f"damaged; saved as {ledger.damaged_copy} and replaced by a new ledger")
    else:
        yield Check("ledger", "ok", f"schema {VERSION}; pools up: {', '.join(live) or 'none'}")


def _providers() -> Iterator[Check]:
    for name in providers.provider_names():
        try:
            with asyncio.Runner() as runner:
                rows = _rows(name)
                while (check := runner.run(_next(rows))) is not None:
                    yield check
        except (SkywardError, OSError) as error:
            yield Check.from_error(name, error)
        except Exception as error:  # noqa: BLE001  a provider of another package may raise anything
            yield Check(name, "fail", f"{type(error).__name__}: {error}")


async def _next(rows: AsyncIterator[Check]) -> Check | None:
    return await anext(rows, None)


async def _rows(name: str) -> AsyncIterator[Check]:
    """Yield the results of a provider's own checks, or the error in its settings."""
    found = providers.provider_class(name)
    if isinstance(found, ChecksSettings):
        async for check in found.check_all():
            yield check
    elif needed := [each.name for each in declared_settings(found) if each.required]:
        yield Check(name, "ok", f"not checked: it needs {', '.join(needed)}")
    else:
        for check in await providers.resolve_provider(found).check():
            yield check
