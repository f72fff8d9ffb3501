"""An installer on a host that hangs and says nothing: whoever gives up the start ends it there, with all it started."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import pytest

from skyward_core.client.session import Session
from skyward_core.model.errors import Cancelled, PoolError
from skyward_core.model.specs import Image, Options, PoolSpec
from skyward_core.transport.background_loop import background_loop
from skyward_core.views.pool_view import PoolView
from tests.support.one_host import provider
from tests.support.processes import exists
from tests.support.sshd import Host
from tests.support.waiting import until

LIMIT = 12_345.0  # seconds that a start may take; here it is over as soon as the installer hangs

# A child in a session of its own is what build tools like to have.
INSTALLER = """#!/bin/sh
sleep 600 &
echo $! > {pids}.making
setsid sleep 601 &
echo $! >> {pids}.making
echo $$ >> {pids}.making
mv {pids}.making {pids}
wait
"""


@pytest.fixture
def pids(host: Host, tmp_path: Path) -> Iterator[Path]:
    """What the installer of the host writes its processes to, once it hangs."""
    file, folder = tmp_path / "pids", tmp_path / "installers"
    folder.mkdir()
    (folder / "uv").write_text(INSTALLER.format(pids=file))
    (folder / "uv").chmod(0o755)
    host.noise = f"PATH={folder}:$PATH"
    yield file
    for pid in map(int, file.read_text().split() if file.exists() else ()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("how", ["torn down", "too late", "left"])
async def test_it_ends_with_the_start(
    host: Host, known: Path, pids: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    limits: list[asyncio.Timeout] = []
    whole = asyncio.timeout

    def timeout(delay: float | None) -> asyncio.Timeout:
        if delay != LIMIT:
            return whole(delay)
        limits.append(whole(None))
        return limits[0]

    monkeypatch.setattr(asyncio, "timeout", timeout)
    session = Session()
    spec = PoolSpec(
        name="p",
        provider=provider(host, known),
        image=Image(pip=("not-to-be-had-anywhere==1.0",)),
        options=Options(console=False, start_timeout=LIMIT),
    )
    begun: Future[PoolView] = Future()
    coming = asyncio.wrap_future(session.create(spec, begun=begun))
    await until(lambda: pids.exists() or coming.done(), "the installer")
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 3 and all(map(exists, started))
    if how == "torn down":  # as ctrl-c does, and the teardown in the app
        assert (await asyncio.wrap_future(session.tear_down(begun.result().key))).ok
        with pytest.raises(Cancelled):
            await coming
    elif how == "too late":
        background_loop().call_soon_threadsafe(limits[0].reschedule, 0.0)
        with pytest.raises(PoolError, match=r"did not start within 12345 s: node 0 installed \(checking"):
            await coming
    else:
        await asyncio.to_thread(session.detach)
        with pytest.raises(Cancelled):
            await coming
    await until(lambda: not any(map(exists, started)), "the installer's end")
    if how != "left":
        await asyncio.to_thread(session.detach)
    assert not list(host.home.glob(".cache/skyward/environments/*/.made"))
