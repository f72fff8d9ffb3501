"""The environment of an image on this machine: made as on hosts, in a process that ends with its client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ...model.errors import PoolError
from ...store.home import ENVIRONMENTS, home

if TYPE_CHECKING:
    from .ground import Ground

_EXTRAS = re.compile(r"^(?P<name>\s*[\w.-]+)\s*\[(?P<extras>[^\]]*)\]")
LONGEST = 1 << 20  # bytes of a line that an installer prints


async def interpreter(
    image: Mapping[str, Any], env: Mapping[str, str], cwd: str, said: Callable[[str], None], there: Ground
) -> tuple[str, str, dict[str, str] | None]:
    """The interpreter to run ranks with, how it came to that, in words, and the packages that are installed there where
    the image asks for some.

    Args:
        image: an :class:`~skyward_core.Image` as JSON.
        env: variables of the set-up commands.
        cwd: where these run.
        said: takes lines that tell how long work goes on.
        there: what ranks run on without it.

    Raises:
        PoolError: the environment cannot be made; holds the installer's last lines.
    """
    from ...node.boot import environment
    from ...node.boot.host import NVIDIA
    from ...node.boot.satisfied import lacking

    absent = await asyncio.to_thread(_absent, image.get("apt") or ())
    if absent and not (image.get("allow_apt") and os.getuid() == 0):
        raise _refused(absent)
    more = [each for each in environment.wanted_by(image) if each not in (there.made or ())]
    pip = [str(each) for each in image.get("pip") or ()]
    image = {**image, "pip": pip if any(map(os.path.exists, NVIDIA)) else without_cuda(pip)}
    wanted = environment.wanted_by(image)
    if not image.get("setup") and not absent:
        lacks = lacking if there.own else partial(environment.lacking_in, there.python, root=there.root)
        missing = await asyncio.to_thread(lacks, wanted) if more else []
        if not missing:
            return (
                there.python,
                "all packages are here" if wanted else "nothing to install",
                await asyncio.to_thread(environment.installed_with, there.python) if wanted else None,
            )
    root = home() / ENVIRONMENTS
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if made := environment.ready(image, root, there.python, there.version, there.root):
        found = await asyncio.to_thread(environment.installed_with, made) if wanted else None
        return made, "the environment is there already", found
    order = {"image": image, "root": str(root), "env": dict(env), "cwd": cwd}
    made, found = await _make(environment.own_command(there.python, "environment", there.root), order, said)
    return made, f"environment made in {root}", found if wanted else None


def _absent(packages: Sequence[str]) -> list[str]:
    from ...node.boot.environment import has_package

    return [package for package in packages if not has_package(package)]


def without_cuda(requirements: Sequence[str]) -> list[str]:
    """Requirements as a machine without an NVIDIA driver can use them: ``jax[cuda12]`` is ``jax`` there."""
    return [_EXTRAS.sub(_plain, text, count=1) for text in requirements]


def _plain(found: re.Match[str]) -> str:
    extras = [each.strip() for each in found["extras"].split(",")]
    left = ",".join(each for each in extras if "cuda" not in each.lower())
    return found["name"] + (f"[{left}]" if left else "")


def _refused(packages: Sequence[str]) -> PoolError:
    return PoolError(
        f"Image(apt=...): {', '.join(packages)} would be installed for all of this machine, not for a pool. Install it "
        "by hand, or let a pool of root's do so with Options(allow_apt=True)"
    )


async def _make(
    command: list[str], wanted: dict[str, Any], said: Callable[[str], None]
) -> tuple[str, dict[str, str]]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LONGEST,
        start_new_session=True,  # a ctrl-c in the terminal is for the client alone
    )
    made = ""
    try:
        # Variables may be secrets: they come by standard input.
        errors = asyncio.ensure_future(_rest(process.stderr))
        answer = await _converse(process, wanted, said)
        await process.wait()
        if made := str(answer.get("python") or ""):
            return made, dict(answer.get("installed") or {})
        why = (
            answer.get("error") or (await errors).decode(errors="replace").strip()[-2000:] or _ended(process)
        )
        raise PoolError(f"The environment of the image cannot be made on this machine: {why}")
    finally:
        if (
            not made
        ):  # what it has started may live on where it was killed, and write into the next attempt's folder
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _ended(process: asyncio.subprocess.Process) -> str:
    code = process.returncode or 0
    by = signal.Signals(-code).name if -code in set(signal.Signals) else str(code)
    return f"the process that makes it was ended by {by}" if code < 0 else f"it ended with exit code {code}"


async def _converse(
    process: asyncio.subprocess.Process, wanted: dict[str, Any], said: Callable[[str], None]
) -> dict[str, Any]:
    """What the process says last."""
    with suppress(BrokenPipeError, ConnectionResetError):  # it has ended: why, it tells otherwise
        process.stdin.write(json.dumps(wanted).encode())  # type: ignore[union-attr]
        await process.stdin.drain()  # type: ignore[union-attr]
        process.stdin.close()  # type: ignore[union-attr]
    answer: dict[str, Any] = {}
    while line := await _line(process.stdout):
        try:
            told = json.loads(line)
        except ValueError:
            continue  # a start-up file of the interpreter's may print what it likes
        if type(told) is not dict:
            continue
        if "line" in told:
            said(str(told["line"]))
        else:
            answer = told
    return answer


async def _line(stream: asyncio.StreamReader | None) -> bytes:
    """The next line, b"" at the end; one that is too long to be an answer is passed over."""
    while stream is not None:
        with suppress(ValueError):
            return await stream.readline()
    return b""


async def _rest(stream: asyncio.StreamReader | None) -> bytes:
    return await stream.read() if stream is not None else b""
