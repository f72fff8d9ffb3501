"""What ranks of this machine run on: the interpreter of the pool's scripts, and where it finds modules.

That is ours, with all that we can import, or a project's own. The latter has our package alone before what is its own,
and what that needs behind it: nothing of what else is installed beside us.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...model.errors import PoolError
from ...model.interpreter import Interpreter
from ...model.value import Value, value
from ...store.user_files import exists
from ...tasks import import_path
from ...tasks.own_interpreter import is_own
from ..base import MINOR
from .agent_starter import ROOT


@value
class Ground(Value):
    """One pool's.

    Attributes:
        python: the interpreter's program.
        version: its first two numbers.
        own: whether it is the one that runs this.
        made: what its environment was made of, where that was made here for a script; None where it was not.
        root: the folder that has our package, for it to run.
        first: an entry before all others of the import path, or "".
        before, behind: entries before its standard library, and after all that it has itself.
    """

    python: str
    version: tuple[int, ...]
    own: bool
    made: tuple[str, ...] | None
    root: str
    first: str
    before: tuple[str, ...]
    behind: tuple[str, ...]


async def ground(config: Mapping[str, Any], said: Callable[[str], None]) -> Ground:
    """What an agent's config asks for; an environment that is not there is made.

    Args:
        said: takes lines that tell how long that goes on.

    Raises:
        PoolError: the interpreter is gone, or its environment cannot be made.
    """
    found = config.get("interpreter")
    chosen = Interpreter.from_json(found) if found else None
    if chosen is None or is_own(chosen.prefix) or _is_replaced(chosen):
        behind = (ROOT, *(config.get("path") or sys.path))
        return Ground(
            sys.executable,
            sys.version_info[:2],
            True,
            None,
            ROOT,
            "",
            tuple(config.get("path_before", ())),
            behind,
        )
    from ...node.boot import environment
    from ...tasks.environments import have  # most pools run on what runs this
    from ...tasks.own_packages import own_packages
    from ...tasks.stop import Stop

    if chosen.base:
        stop = Stop()
        try:
            await asyncio.to_thread(have, chosen, said, stop)
        finally:
            stop.ask()  # who takes the start back wants no environment
    if not exists(chosen.path):
        raise PoolError(
            f"{chosen.path} ({chosen.source}), with which the ranks of this pool run, is not there any more: make it "
            "anew, or make the pool anew"
        )
    ours = await asyncio.to_thread(own_packages)
    image = config.get("image") or {}
    local = [entry for _, entry in image.get("folders") or ()]
    made = tuple(environment.wanted_by(chosen.environment)) if chosen.base else None
    version = tuple(map(int, chosen.minor.split(".")))
    behind = tuple(filter(None, (image.get("workdir"), *local, ours.last)))
    return Ground(
        chosen.path,
        version,
        False,
        made,
        ours.first,
        ours.first,
        tuple(import_path.scripts()),
        behind,
    )


def entries(there: Ground) -> tuple[str, ...]:
    """What an environment that is made over an interpreter must have on its import path to find what that finds.

    Raises:
        PoolError: the interpreter cannot be run.
    """
    from ...tasks.packages.local_packages import local_packages

    version = ".".join(map(str, there.version))
    local = tuple(each.entry for each in local_packages({}, str(Path(there.python).parents[1]), version))
    return local if there.own else (*_own_entries(there.python), *local)


def packages_of(there: Ground) -> dict[str, str]:
    """The packages that an interpreter has by itself, as :func:`...node.boot.installed.installed_on` tells them.

    Raises:
        OSError: it cannot tell.
    """
    from ...node.boot.installed import installed_on

    if there.own:
        return installed_on(there.behind)
    packages = Path(there.python).parents[1] / "lib" / f"python{'.'.join(map(str, there.version))}"
    try:
        changed = (packages / "site-packages").stat().st_mtime_ns
    except OSError:
        changed = 0
    return _told_packages(there.python, there.root, changed)


@lru_cache(maxsize=8)
def _told_packages(python: str, root: str, _changed: int) -> dict[str, str]:
    from ...node.boot.environment import installed_with

    return installed_with(python, root)


def _own_entries(python: str) -> tuple[str, ...]:
    """What an interpreter itself has on its import path, as text."""
    import json
    import subprocess

    command = [python, "-I", "-c", "import json, sys; print(json.dumps(sys.path))"]
    done = subprocess.run(command, capture_output=True, check=False)
    try:
        return tuple(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        said = done.stderr.decode(errors="replace").strip()
        raise PoolError(f"{python} does not tell where it finds modules: {said}") from None


def _is_replaced(chosen: Interpreter) -> bool:
    """Whether nobody chose it, it is gone, and ours can do what it did: that of a tool that was installed anew. A
    Python that is part of another program has no path."""
    there = bool(chosen.path) and exists(chosen.path)
    return not chosen.chosen and not there and chosen.minor == MINOR
