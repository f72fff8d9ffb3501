"""Ranks have what a project's files say, here and over SSH, and what was installed can be installed again."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.launch.launch_plan import make_plan
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.client.session import Session
from skyward_core.model.errors import SpecError
from skyward_core.model.specs import PoolSpec
from skyward_core.views.pool_view import PoolView
from tests.support.cli import call
from tests.support.one_host import provider
from tests.support.pythons import make_environment
from tests.support.sessions import new_session
from tests.support.sshd import Host
from tests.support.wheels import served, tiny_wheels, wheel

QUIET = sky.Options(console=False)


@sky.function
def versions() -> list[str]:
    import skyneeds  # type: ignore[import-not-found]
    import skytiny  # type: ignore[import-not-found]

    return [skytiny.VERSION, skyneeds.VERSION]


@sky.function
def system() -> str:
    return sys.platform


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a lock of skytiny 1.0, while 2.0 is there, too; the newest skyneeds takes no other."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    for name in ("SSH_AUTH_SOCK", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    wheels = tmp_path / "wheels"
    for name, value in tiny_wheels(wheels, "1.0", "2.0").items():
        monkeypatch.setenv(name, value)
    wheel(wheels, "skyneeds", "3.0", "skytiny")
    wheel(wheels, "skyneeds", "4.0", "skytiny>=2")
    folder = tmp_path / "project"
    folder.mkdir()
    digest = hashlib.sha256((wheels / "skytiny-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    (folder / "uv.lock").write_text(UV_LOCK.format(digest))
    return folder


UV_LOCK = """version = 1
revision = 5
requires-python = ">=3.11"
[[package]]
name = "train"
source = {{ virtual = "." }}
dependencies = [{{ name = "skytiny" }}]
[[package]]
name = "skytiny"
version = "1.0"
source = {{ registry = "https://pypi.org/simple" }}
wheels = [{{ url = "https://x/skytiny-1.0-py3-none-any.whl", hash = "sha256:{}" }}]
"""


def compute(project: Path, **wanted: Any) -> Any:
    image = sky.Image(workdir=project, **wanted)
    return sky.Compute(name="p", provider=sky.Local(), image=image, options=QUIET)


def kept_lock(project: Path) -> str:
    """What the command prints of the latest run."""
    return call(["lock", "p"], os.environ, project).stdout


def run_script(project: Path, lock: str) -> Any:
    """What a script gives whose imports only the lock has: nobody chose an interpreter for it."""
    (project / "needy.py").write_text(
        "import skyneeds, skytiny\nimport skyward_core as sky\n\n\n"
        "@sky.function\ndef f():\n    print('it runs')\n    return [skytiny.VERSION, skyneeds.VERSION]\n"
    )
    plan = make_plan(LaunchRequest(script=str(project / "needy.py"), pool="p", lock=str(project / lock)))
    assert plan.interpreter.source == lock and plan.spec is not None
    with new_session() as session:
        (task,) = plan.load_tasks()
        begun: Future[PoolView] = Future()
        printed: list[bytes] = []
        begun.add_done_callback(
            lambda pool: session.subscribe(pool.result().key, None, lambda *piece: printed.append(piece[3]))
        )
        session.create(plan.spec, begun=begun).result()
        key = begun.result().key
        view = session.wait(key, session.launch(key, task).result().id).result()
        assert b"".join(printed) == b"it runs\n", "who heard of the pool as it began has all of it"
        session.tear_down("p").result()
    (made,) = {Path(plan.interpreter.prefix)} & set((project.parent / "sky" / "environments").iterdir())
    assert view.state == "done" and (made / ".made").exists(), view
    summary = view.outcomes()[0].summary
    assert summary is not None
    return summary.json


def test_a_lock_is_what_ranks_have_and_what_was_installed_is_one(project: Path) -> None:
    with compute(project, lock="uv.lock", pip=["skyneeds"]) as pool:
        assert versions() >> pool == ["1.0", "3.0"]
    first, *lines = kept_lock(project).splitlines()
    assert "pool p with Python" in first
    assert lines[0] == "skyneeds==3.0" and lines[1].startswith("skytiny==1.0 --hash=sha256:")
    (project / "run.lock").write_text(kept_lock(project))
    assert run_script(project, "run.lock") == ["1.0", "3.0"]
    assert kept_lock(project).splitlines()[1:] == lines
    text = (project / "run.lock").read_text()
    (project / "run.lock").write_text(text.replace(lines[1][-64:], "0" * 64))
    with pytest.raises(sky.PoolError, match=r"(?s)Cannot create the image's environment on this machine.*skytiny"):
        compute(project, lock="run.lock").__enter__()


def test_what_is_there_in_the_versions_that_are_asked_for_is_not_installed(project: Path) -> None:
    import cloudpickle

    (project / "requirements.txt").write_text("cloudpickle>=1\n")
    (project / "exact.lock").write_text(f"cloudpickle=={cloudpickle.__version__}\n")
    for image in ({"requirements": "requirements.txt"}, {"lock": "exact.lock"}):
        with compute(project, **image):
            pass
    assert not list((project.parent / "sky" / "environments").glob("env-*"))


def test_where_nobody_asks_for_packages_the_lock_tells_what_ranks_had(project: Path) -> None:
    import cloudpickle

    with compute(project) as pool:
        assert system() >> pool == sys.platform
    first, *lines = kept_lock(project).splitlines()
    assert first.startswith("# nothing was installed for pool p: its ranks had Python")
    assert f"cloudpickle=={cloudpickle.__version__}" in lines


SCRIPT = """import sys
import skyward_core as sky

@sky.function
def f():
    import mylib, skytiny
    return [skytiny.VERSION, mylib.WHERE, sys.executable, mylib.__file__]
"""


def local_library(project: Path) -> None:
    """A package beside the project, which the project's environment finds where it lies."""
    library = project.parent / "mylib"
    (library / "src").mkdir(parents=True)
    (library / "src" / "mylib.py").write_text("WHERE = 'beside the project'\n")
    make_environment(sys.executable, project / ".venv")
    (packages,) = (project / ".venv").glob("lib/python3*/site-packages")
    (packages / "mylib.pth").write_text(f"{library}/src\n")
    info = packages / "mylib-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("mylib.pth,,\n")
    (info / "direct_url.json").write_text(json.dumps({"url": library.as_uri(), "dir_info": {"editable": True}}))


@pytest.mark.proof("1 s of a processor")
async def test_hosts_have_them_and_the_packages_that_lie_here(
    project: Path, host: Host, known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "UV_FIND_LINKS", "UV_OFFLINE"):
        monkeypatch.delenv(name)
    local_library(project)
    (project / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(project)
    with served(project.parent / "wheels") as links:
        (project / "requirements.txt").write_text(f"--no-index\n--find-links {links}\nskytiny<2\n")
        hosts = {"hosts": f"127.0.0.1:{host.port}"}
        request = LaunchRequest(
            script="train.py", pool="p", provider="ssh", settings=hosts, requirements="requirements.txt"
        )
        plan = make_plan(request)
        assert str(plan.packages) == f"1 of {project}/requirements.txt"
        assert [each.folder for each in plan.uploaded_packages] == [str(project.parent / "mylib")]
        assert plan.spec is not None
        where = provider(host, known)
        session = Session()
        try:
            (task,) = await asyncio.to_thread(plan.load_tasks)
            spec = replace(plan.spec, provider=where, options=QUIET)
            await asyncio.wrap_future(session.create(spec))
            run = await asyncio.wrap_future(session.launch("p", task))
            view = await asyncio.wrap_future(session.wait("p", run.id))
            assert view.state == "done", view
            summary = view.outcomes()[0].summary
            assert summary is not None
            version, library, program, file = summary.json
            assert (version, library) == ("1.0", "beside the project")
            assert str(host.home) in program and str(host.home) in file
            await asyncio.wrap_future(session.tear_down("p"))
        finally:
            await asyncio.to_thread(session.detach)
        lines = kept_lock(project).splitlines()
        assert lines[1:] == [f"--find-links {links}", "--no-index", "skytiny==1.0"]


async def test_what_a_project_says_wrong_is_refused_before_anything_is_connected_to(
    project: Path, host: Host, known: Path
) -> None:
    (project / "requirements.txt").write_text("-f ../wheels\nskytiny\n")
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"lock": "no.lock"}, SpecError, "lock: file no.lock does not exist in"),
        ({"requirements": "requirements.txt"}, sky.UsageError, "a folder of this machine"),
    ]
    session = Session()
    try:
        for image, error, why in cases:
            spec = PoolSpec(
                name="p",
                provider=provider(host, known),
                image=sky.Image(workdir=project, **image),
            )
            with pytest.raises(error, match=why):
                await asyncio.wrap_future(session.create(spec))
        assert session.ledger.live_pools() == []
    finally:
        await asyncio.to_thread(session.detach)
    assert host.logins == 0
