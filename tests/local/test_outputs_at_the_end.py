"""What ranks write, where their pool ends: brought home before its machines go, or named; whoever ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.launch.launch_plan import LaunchPlan
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.model.errors import PoolError
from skyward_core.pool.agent_link import Link
from skyward_core.tasks.client_interpreter import own_interpreter
from skyward_core.transport.background_loop import submit
from skyward_core.transport.file_and_result_downloads import PARTS, IncomingOutput
from tests.support.cli import call
from tests.support.loopback_hosts import Hosts
from tests.support.pool_logs import settled
from tests.support.waiting import wait_until
from tests.support.written_outputs import hosts as hosts
from tests.support.written_outputs import project as project
from tests.support.written_outputs import through_ssh as through_ssh
from tests.support.written_outputs import write

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")


class Rented:
    """The hosts as machines that end with their pool."""

    name, about, machine = "rented", "hosts for a while", "rented host"

    def __init__(self, inner: sky.SSH) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in ("hosts", "default_nodes"):
            raise AttributeError(name)
        return getattr(self._inner, name)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize(("most", "said"), [("1 MB", None), (0, 10_000_000), (0, None), ("1 MB", 0)], ids=str)
def test_what_goes_with_its_machine_is_fetched_or_named(
    hosts: Hosts, project: Path, tmp_path: Path, most: int | str, said: int | None
) -> None:
    """As the pool's options have it, or whoever ends it says."""

    @sky.function
    def checkpoint_at_the_end() -> None:
        write.fn({"end/small": 500_000, "end/large": 3_000_000})

    alone = tmp_path / "alone"  # files that were written just before a pool may count as its own
    alone.mkdir()
    options = sky.Options(console=False, grace=2.0, keep_outputs=most)
    provider: Callable[..., Any] = Rented
    with sky.Compute(
        provider=provider(hosts.provider(1)), nodes=1, image=sky.Image(workdir=alone), options=options
    ) as compute:
        checkpoint_at_the_end() >> compute
        key = compute.pool.row.key
        left = submit(compute.pool.context.outputs.unfetched()).result()
        assert {file.path: file.size for file in left.others} == {
            "end/small": 500_000,
            "end/large": 3_000_000,
        }
        assert left.goes and left.exceeds_limit and left.room == (1_000_000 if most else 0)
        # Where this machine's clock was ahead when the pool was made, and is right by now.
        compute.pool.context.row = replace(compute.pool.context.row, created_at=time.time() + 86_400)
        news: list[str] = []
        compute.pool.news.subscribe(lambda event: news.append(getattr(event, "detail", "")), None)
        submit(compute.pool.down(keep_outputs=said)).result()
    assert any("downloading output files" in each for each in news) == bool(most if said is None else said)
    assert compute.receipt is not None
    came = sorted(path.name for path in (project / "outputs" / key).rglob("*") if path.name != ".gitignore")
    if said:
        assert came == ["end", "large", "small"] and not compute.receipt.lost
        return
    (lost,) = compute.receipt.lost
    if most and said is None:
        assert came == ["end", "small"] and lost.startswith("1 file, 3 MB, on node 0 ")
    else:
        assert came == [] and lost.startswith("2 files, 3.5 MB, on node 0 ") and "end/small (500 kB)" in lost
    assert f"lost: {lost}" in str(compute.receipt)
    plan = LaunchPlan(
        request=LaunchRequest(script="x.py"),
        interpreter=own_interpreter(),
        function=None,  # type: ignore[arg-type]
        values={},
        pool=compute.spec,
        plugins=(),
    )
    assert f"the newest {most or '0 bytes'}, as no outputs are named" in plan.file_loss_warning
    assert not replace(plan, request=replace(plan.request, keep=True)).file_loss_warning


def take_as_a_file(folder: Path) -> None:
    folder.write_text("a file in a folder's place")


def take_as_a_stranger(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.parent.chmod(0o1777)
    os.chown(folder, 65534, 65534)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("take", [take_as_a_file, pytest.param(take_as_a_stranger, marks=AS_ROOT)])
def test_what_cannot_be_brought_here_is_named(
    hosts: Hosts, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: Callable[[Path], None]
) -> None:
    work, here = tmp_path / "work", tmp_path / "here"
    for folder in (work, here):
        folder.mkdir()
    take(here / "outputs")
    monkeypatch.chdir(here)
    provider: Callable[..., Any] = Rented
    with sky.Compute(
        provider=provider(hosts.provider(1)),
        nodes=1,
        image=sky.Image(workdir=work, outputs=["*.pt"]),
        options=sky.Options(console=False, grace=2.0),
    ) as compute:
        write({"a.pt": 5, "b.txt": 7}) >> compute
    assert compute.receipt is not None
    (lost,) = compute.receipt.lost
    assert lost.startswith("2 files, 12 bytes, on node 0 ") and "a.pt (5 bytes)" in lost
    assert any("could not be downloaded" in note for note in compute.receipt.notes)


@sky.function
def saves_when_it_is_stopped(begun: str) -> None:

    Path(begun).touch()
    try:
        signal.pause()
    finally:
        Path("late").mkdir()
        Path("late/last.pt").write_text("what took hours")


@pytest.mark.proof("1 s of a processor")
def test_what_ranks_write_when_another_client_stops_them_comes_to_that_one(
    hosts: Hosts, project: Path, world: Path, tmp_path: Path
) -> None:
    begun, elsewhere = tmp_path / "begun", tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = os.environ | {"SKYWARD_HOME": str(world)}
    ends_it = "import skyward_core as sky; print(*sky.attach('torn').down().notes)"
    with (
        sky.Compute(
            name="torn",
            provider=hosts.provider(1),
            nodes=1,
            image=sky.Image(workdir=project, outputs=["late/**"]),
            options=sky.Options(console=False, grace=20.0),
        ) as compute,
        ThreadPoolExecutor(1) as beside,
    ):
        running = beside.submit(lambda: saves_when_it_is_stopped(str(begun)) >> compute)
        wait_until(begun.exists)
        done = subprocess.run(
            [sys.executable, "-c", ends_it],
            env=env,
            cwd=elsewhere,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        with pytest.raises(sky.PoolGone):
            running.result()
    (came,) = elsewhere.glob("outputs/*/late/last.pt")
    assert came.read_text() == "what took hours"
    assert "late/last.pt" not in done.stdout, "what has come is not named as left there"


def test_a_fetch_ends_with_the_pool_that_another_client_ends(
    hosts: Hosts, project: Path, tmp_path: Path, through_ssh: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def half(link: Link, path: str, incoming: IncomingOutput) -> None:
        incoming.write(b"" if incoming.at else b"half")
        through_ssh.append(incoming.at)
        while link.up:
            await asyncio.sleep(0.01)
        raise ConnectionError("the link went down")

    with (
        sky.Compute(
            name="ended",
            provider=hosts.provider(1),
            nodes=1,
            image=sky.Image(workdir=project),
            options=sky.Options(console=False, grace=1.0),
        ) as compute,
        sky.attach("ended") as other,
        ThreadPoolExecutor(1) as beside,
    ):
        write({f"ended/{name}": 9 for name in "abcdefg"}) >> compute
        settled(compute)
        monkeypatch.setattr(Link, "fetch_output", half)
        coming = beside.submit(other.fetch, "ended/**", to=tmp_path)
        wait_until(lambda: through_ssh)
        assert compute.pool is not None and submit(compute.pool.down()).result().ok
        with pytest.raises(PoolError, match=r"pool ended: ended/a, .*ended/e and 2 more of node 0: .* was ended at"):
            coming.result(50)
    assert len(through_ssh) == 1 and not (tmp_path / PARTS).exists()


def test_on_this_machine_there_is_nothing_to_bring(world: Path, tmp_path: Path) -> None:
    def run(words: tuple[str, str], status: int) -> str:
        env = os.environ | {"SKYWARD_HOME": str(world)}
        done = call(words, env)
        assert done.returncode == status, done.stderr
        return done.stderr

    with sky.Compute(provider=sky.Local(), options=sky.Options(console=False, grace=1.0)) as compute:
        assert compute.files() == [] and compute.fetch("**", to=tmp_path) == []
        name = compute.pool.name
        told = run(("files", name), 0)
        assert "runs on this machine: its ranks write directly to " in told and "no such" not in told
    assert compute.receipt is not None and not compute.receipt.notes
    told = run(("fetch", name), 2)
    assert "ran on this machine: its ranks write directly to " in told
