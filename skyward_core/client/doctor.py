"""Checks of this machine: Python, limits, folders, the ledger and all providers."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import sys
from collections.abc import AsyncIterator, Iterator

from skyward_core import providers
from skyward_core.model.errors import SkywardError, error_hint, error_message
from skyward_core.model.machines_and_gpu_use import Check
from skyward_core.model.provider_capability_protocols import ChecksSettings
from skyward_core.model.provider_settings_schema import declared_settings
from skyward_core.store.ledger import VERSION, Ledger
from skyward_core.store.state_folder import ensure_socket_folder, state_home

# minimum limit of open files: some hundred ranks need a socket and two log files each, and scripts open files, too
FILES_WANTED = 1024


def examine(*more: Check) -> Iterator[Check]:
    """Yield the results of all checks.

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
        yield Check("folders", "fail", error_message(error), error_hint(error))
        return
    except OSError as error:
        yield Check("folders", "fail", f"{error}. Set SKYWARD_HOME to a folder that you can write to")
        return
    yield Check("folders", "ok", f"state folder: {home}")
    try:
        ledger = Ledger()
    except SkywardError as error:
        yield Check("ledger", "fail", error_message(error), error_hint(error))
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
            yield Check(name, "fail", error_message(error), error_hint(error))
        except Exception as error:  # noqa: BLE001  a provider of another package may raise anything
            yield Check(name, "fail", f"{type(error).__name__}: {error}")


async def _next(rows: AsyncIterator[Check]) -> Check | None:
    return await anext(rows, None)


async def _rows(name: str) -> AsyncIterator[Check]:
    """Yield the results of a provider's checks, or the error in its settings."""
    found = providers.provider_class(name)
    if isinstance(found, ChecksSettings):
        async for check in found.check_all():
            yield check
    elif needed := [each.name for each in declared_settings(found) if each.required]:
        yield Check(name, "ok", f"not checked: it needs {', '.join(needed)}")
    else:
        for check in await providers.resolve_provider(found).check():
            yield check
