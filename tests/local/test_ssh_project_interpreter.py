"""A project's Python over SSH: its inline metadata is had there, another version than ours is refused in words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward_core.front.scripts import build_task, interpreter_of
from skyward_core.front.session import Session
from skyward_core.model.errors import UsageError
from skyward_core.model.interpreter import Interpreter
from skyward_core.model.spec import Options, PoolSpec
from tests.support.one_host import provider
from tests.support.pythons import another_python
from tests.support.sshd import Host
from tests.support.wheels import served, tiny_wheels

SCRIPT = """# /// script
# dependencies = ["skytiny==1.0"]
# [tool.uv]
# find-links = ["{links}"]
# no-index = true
# ///
import sys
import skyward_core as sky

@sky.function
def f():
    import skytiny
    return [skytiny.VERSION, sys.executable]
"""


@pytest.fixture
def links(tmp_path: Path) -> Iterator[str]:
    """The address of a page that leads to the wheels of skytiny."""
    tiny_wheels(tmp_path / "wheels", "1.0", "2.0")

    with served(tmp_path / "wheels") as address:
        yield address


@pytest.fixture
def script(tmp_path: Path, links: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    path = folder / "train.py"
    path.write_text(SCRIPT.format(links=links))
    return path


def spec(host: Host, known: Path, interpreter: Interpreter) -> PoolSpec:
    return PoolSpec(
        name="p", provider=provider(host, known), interpreter=interpreter, options=Options(console=False)
    )


async def test_hosts_have_what_a_script_asks_for(host: Host, known: Path, script: Path) -> None:
    chosen = interpreter_of(script)
    task = await asyncio.to_thread(build_task, script, "f", {})
    session = Session()
    try:
        await asyncio.wrap_future(session.create(spec(host, known, chosen)))
        run = await asyncio.wrap_future(session.launch("p", task))
        view = await asyncio.wrap_future(session.wait("p", run.id))
        assert view.state == "done", view
        summary = view.outcomes()[0].summary
        assert summary is not None
        package, program = summary.json
        assert package == "1.0" and program != chosen.path and str(host.home) in program
        await asyncio.wrap_future(session.down("p"))
    finally:
        await asyncio.to_thread(session.detach)


async def test_a_project_of_another_version_is_refused_before_anything_is_connected_to(
    host: Host, known: Path, script: Path
) -> None:
    chosen = interpreter_of(script, another_python().path)
    session = Session()
    try:
        with pytest.raises(UsageError, match=r"\(--python\)\. Functions travel as bytecode"):
            await asyncio.wrap_future(session.create(spec(host, known, chosen)))
        assert session.ledger.live() == session.ledger.over(limit=-1) == []
    finally:
        await asyncio.to_thread(session.detach)
    assert host.logins == 0
