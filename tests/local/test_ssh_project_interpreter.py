"""A project's Python over SSH: what its inline metadata asks for is had there, by a Python of its own version."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyward_core.client.launch.launch_catalog import build_task, choose_interpreter
from skyward_core.client.session import Session
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.model.specs import Image, Options, PoolSpec
from skyward_core.providers.ssh.provider import SSH
from skyward_core.store.pool_folder import read_lock
from tests.support.one_host import provider
from tests.support.processes import exists
from tests.support.pythons import another_python
from tests.support.sshd import Host
from tests.support.waiting import wait_until
from tests.support.wheels import served, tiny_wheels

SCRIPT = """# /// script
# requires-python = "=={minor}.*"
# dependencies = ["skytiny==1.0"]
# [tool.uv]
# find-links = ["{links}"]
# no-index = true
# ///
import sys
import skyward_core as sky

class Found:
    def __init__(self, version):
        self.version = version

@sky.function
def f():
    import skytiny
    return [skytiny.VERSION, sys.executable, "%d.%d" % sys.version_info[:2]]

@sky.function
def own():
    return Found("1")

@sky.function
def fails():
    raise ValueError("no")

@sky.function
def yields():
    yield from range(3)
"""
OURS = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def links(tmp_path: Path) -> Iterator[str]:
    """The address of a page that leads to the wheels of skytiny."""
    tiny_wheels(tmp_path / "wheels", "1.0", "2.0")

    with served(tmp_path / "wheels") as address:
        yield address


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def script(project: Path, links: str, minor: str = OURS) -> Path:
    path = project / "train.py"
    path.write_text(SCRIPT.format(links=links, minor=minor))
    return path


def spec(provider: SSH, chosen: Interpreter, **more: Any) -> PoolSpec:
    return PoolSpec(name="p", provider=provider, interpreter=chosen, options=Options(console=False), **more)


class Up:
    """A pool for a script, and what comes of its functions."""

    def __init__(self, path: Path, chosen: Interpreter) -> None:
        self.session, self.path, self.chosen = Session(), path, chosen

    async def run(self, function: str) -> Any:
        """How a run of a function ends."""
        task = await asyncio.to_thread(build_task, self.path, function, {}, interpreter=self.chosen)
        run = await asyncio.wrap_future(self.session.launch("p", task))
        return await asyncio.wrap_future(self.session.wait("p", run.id))

    async def told(self) -> Any:
        """What ``f`` tells."""
        view = await self.run("f")
        assert view.state == "done", view
        return view.outcomes()[0].summary.json


@asynccontextmanager
async def up(path: Path, chosen: Interpreter, wanted: PoolSpec) -> AsyncIterator[Up]:
    pool = Up(path, chosen)
    try:
        await asyncio.wrap_future(pool.session.create(wanted))
        yield pool
        assert (await asyncio.wrap_future(pool.session.tear_down("p"))).ok
    finally:
        await asyncio.to_thread(pool.session.detach)


def other_minor() -> str:
    return ".".join(another_python().version.split(".")[:2])


def asked_for(host: Host) -> set[str]:
    """The versions of Python that a host was asked to run."""
    found = (re.search(r" skyward (\d+\.\d+) \d+,", command) for command in host.commands)
    return {each[1] for each in found if each}


@pytest.mark.proof("1 s of a processor")
async def test_hosts_have_what_a_script_asks_for(host: Host, known: Path, project: Path, links: str) -> None:
    path = script(project, links)
    chosen = choose_interpreter(path)
    async with up(path, chosen, spec(provider(host, known), chosen)) as pool:
        package, program, minor = await pool.told()
        assert (package, minor) == ("1.0", OURS)
        assert program != chosen.path and str(host.home) in program


@pytest.mark.proof("2 s of a processor")
async def test_a_project_of_another_version_has_that_version_there(
    host: Host, known: Path, project: Path, links: str
) -> None:
    minor = other_minor()
    path = script(project, links, minor)
    chosen = choose_interpreter(path)
    assert chosen.minor == minor != OURS
    async with up(path, chosen, spec(provider(host, known), chosen)) as pool:
        package, program, there = await pool.told()
        assert (package, there) == ("1.0", minor) and str(host.home) in program
        found = await pool.run("own")
        assert found.state == "done" and "Found" in found.outcomes()[0].summary.text
        failed = await pool.run("fails")
        assert failed.state == "failed" and failed.outcomes()[0].error.type == "ValueError"
        assert (await pool.run("yields")).state == "done"
        (lock,) = read_lock(pool.session.ledger.live_pools()[0].key).values()
        assert f"with Python {minor};" in lock and "skytiny==1.0" in lock.splitlines()

        # Another client comes, and starts another agent: with that version, whichever it has itself.
        (agent,) = host.home.glob(".cache/skyward/pools/*/agent.json")
        pid = json.loads(agent.read_text())["pid"]
        await asyncio.to_thread(pool.session.detach)
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: not exists(pid))
        pool.session = Session()
        await asyncio.wrap_future(pool.session.attach("p"))
        assert await pool.told() == [package, program, there]
    assert asked_for(host) == {minor}


@pytest.mark.proof("1 s of a processor")
async def test_a_host_without_that_version_is_named(host: Host, known: Path, project: Path, tmp_path: Path) -> None:
    minor, other = other_minor(), Host(tmp_path / "other")
    path = project / "plain.py"
    path.write_text("import skyward_core as sky\n@sky.function\ndef f(): return 1\n")
    chosen = choose_interpreter(path, another_python().path)
    await other.start()
    try:
        with known.open("a") as file:
            file.write(f"\n{other.known_line()}")
        other.authorized.write_bytes(host.authorized.read_bytes())
        other.rewrite = lambda command: command.replace(minor, "3.99").replace(minor.replace(".", ","), "3,99")
        both = replace(provider(host, known), hosts=[f"127.0.0.1:{each.port}" for each in (host, other)])
        missing = rf"127\.0\.0\.1 has no Python {minor} \(it has"
        said = rf"{missing} .* the script is loaded with: install python{minor} (or uv|there)"
        with pytest.raises(PoolError, match=said):
            async with up(path, chosen, spec(both, chosen, nodes=2)):
                pass
        assert not (other.home / ".cache/skyward").exists()
    finally:
        await other.stop()


async def test_an_image_for_another_python_than_the_script_s_is_refused_before_anything_is_connected_to(
    host: Host, known: Path, project: Path, links: str
) -> None:
    path = script(project, links, other_minor())
    chosen = choose_interpreter(path)
    with pytest.raises(UsageError, match=r"loads the script, .*inline metadata of train\.py.*remove python"):
        async with up(path, chosen, spec(provider(host, known), chosen, image=Image(python=OURS))):
            pass
    assert host.logins == 0
