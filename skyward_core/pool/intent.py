"""The intent to have a pool: a row in the ledger, before anything of it exists."""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from ..model.capabilities import RunsHere, Warns
from ..model.errors import PoolExistsError
from ..model.interpreter import Interpreter
from ..model.spec import Image, PoolSpec
from ..model.value import Value, value
from ..providers import from_json
from ..providers.base import Provider
from ..store.ledger import Ledger
from ..store.working_folder import named
from ..tasks.own_interpreter import own
from ..transport.base import check_python, image_elsewhere
from ..wire.redact import each_text, for_keeping
from .nodes.reconcile import close_if_gone, in_words
from .nodes.startup import whole_image

if TYPE_CHECKING:
    from ..store.ledger_rows import PoolRow
    from ..tasks.packages.packages import Packages


@value
class Intent(Value):
    """What was written, and what only its writer knows.

    Attributes:
        row: the pool's, in the ledger.
        image: what its nodes' environments hold, the plugins' part included.
        interpreter: of its scripts.
        packages: what a project's file says that the image names.
        notice: what a person should know of it, or "".
    """

    row: PoolRow
    image: Image
    interpreter: Interpreter
    packages: Packages | None = None
    notice: str = ""


async def write(spec: PoolSpec, ledger: Ledger, cwd: str) -> Intent:
    """Write down that a pool is wanted; nothing of it exists yet.

    Args:
        cwd: the working folder, where the image names none.

    Raises:
        PoolExistsError: a pool of that name is up.
        UsageError, PluginError: a plugin, or the script's interpreter, cannot be used so; or the image's working folder
            is not there.
    """
    token = secrets.token_hex(8)
    provider: Provider = spec.provider
    image = whole_image(spec)
    if image.workdir:
        image = replace(image, workdir=named(image.workdir))
    python = spec.interpreter or own()
    folder = str(image.workdir or cwd)
    packages = await _packages(image, folder, python)
    whole = packages.added_to(image.describe()) if packages else image.describe()
    check_python(whole, python.describe())
    if not isinstance(provider, RunsHere):
        image_elsewhere(whole, python.describe())  # before anything is rented
    written = replace(spec, image=image, interpreter=python).describe() | {"cwd": folder}
    if packages:
        written["image"] = each_text(whole, for_keeping(os.environ | image.env))
    warnings = await provider.warnings(spec) if isinstance(provider, Warns) else ()
    try:
        row = ledger.intend(token, spec.name, provider.to_json(), written)
    except PoolExistsError:
        # It may have ended by itself, by its lease for one, with nobody there to write it down.
        other = ledger.find(spec.name)
        closed = other and await close_if_gone(other, from_json(other.provider), ledger)
        if not closed:
            raise
        row = ledger.intend(token, spec.name, provider.to_json(), written)
        warnings = (f"of the pool that had this name before: {in_words(closed)}", *warnings)
    return Intent(row, image, python, packages, "; ".join(warnings))


async def _packages(image: Image, folder: str, python: Interpreter) -> Packages | None:
    """What a project's file says that the image names."""
    if not image.packages_by:
        return None
    from ..tasks.packages.asked import asked  # most pools have none

    return await asyncio.to_thread(asked, image, folder, python.version)
