"""Interpreters and packages of projects, for scripts and their ranks, local and over SSH."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import skyward_core as sky
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_plan import make_plan, script_python
from skyward_core.client.launch.plugin_and_provider_catalog import choose_interpreter, missing_frameworks
from skyward_core.client.session import Session
from skyward_core.model.errors import PoolError, ScriptError, ScriptFailed, SpecError, UsageError
from skyward_core.model.specs import Image, Interpreter, Options, PoolSpec
from skyward_core.node.bootstrap.image_environment import MADE_FILE
from skyward_core.plugins.plugin import Plugin
from skyward_core.providers.ssh.provider import SSH
from skyward_core.store.pool_folder import read_lock
from skyward_core.tasks.pickled_calls_and_blobs import Task
from skyward_core.tasks.script_interpreter_and_environment import library_path_entries, query_python
from skyward_core.views.pool_view import PoolView
from tests.support.cli import Cli, call
from tests.support.loaded_calls import build_task
from tests.support.one_host import provider
from tests.support.processes import descendants, exists
from tests.support.pythons import another_python, make_environment, other_pythons
from tests.support.sessions import new_session
from tests.support.sshd import Host
from tests.support.waiting import wait_until
from tests.support.wheels import from_folder, served, tiny_wheels, wheel

SEEN = """
import sys
from importlib.util import find_spec
from pathlib import Path
import skyward as sky
import skytiny

class Config:
    step = 2

@sky.function
def f(where: Path = Path("/x"), config: Config = Config()):
    print("said by", sky.instance_info().rank)
    hidden = [name for name in ("textual", "pydantic", "asyncssh", "tests", "skyward_tui") if find_spec(name)]
    return ["%d.%d.%d" % sys.version_info[:3], sys.executable, skytiny.VERSION, hidden, str(where), config.step]

@sky.function
def fails():
    raise skytiny.Own("no")

@sky.function
def yields():
    yield from range(3)
"""
OWN_ERROR = "class Own(Exception): pass\n"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages") / "wheels"
    tiny_wheels(folder, "1.0", "2.0")
    return folder


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> dict[str, Path]:
    """Environment with skytiny 1.0 for each other Python."""
    made = {}
    for minor, known in other_pythons().items():
        folder = tmp_path_factory.mktemp("environment") / ".venv"
        made[minor] = make_environment(known.path, folder, wheels / "skytiny-1.0-py3-none-any.whl")
        (module,) = folder.glob("lib/python3*/site-packages/skytiny.py")
        module.write_text(module.read_text() + OWN_ERROR)
    return made


@pytest.fixture
def project(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "train-it"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    (folder / "train.py").write_text(SEEN)
    monkeypatch.chdir(folder)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return folder


def owned(project: Path, environments: dict[str, Path]) -> Path:
    """Give the project an environment of another Python, and return its interpreter."""
    minor = ".".join(another_python().version.split(".")[:2])
    (project / ".venv").symlink_to(environments[minor].parents[1])
    return project / ".venv" / "bin" / "python"


def loaded(script: Path, **how: Any) -> Task:
    """Return a call of ``f``, loaded with the interpreter that a launch chooses."""
    return build_task(script, "f", {}, interpreter=choose_interpreter(script, ask=query_python), **how)


class Up:
    """Pool of one node for a script, and the results of the script's functions."""

    def __init__(self, session: Session, script: Path, interpreter: Interpreter) -> None:
        self.session, self.script, self.interpreter = session, script, interpreter
        self.key = ""

    def run(self, function: str, **values: Any) -> Any:
        task = build_task(self.script, function, values, interpreter=self.interpreter)
        run = self.session.launch("p", task).result()
        return self.session.wait("p", run.id).result()

    def result(self, function: str = "f", **values: Any) -> Any:
        view = self.run(function, **values)
        assert view.state == "done", view
        return json.loads(json.dumps(view.outcomes()[0].summary.json))


@contextmanager
def up(script: Path, interpreter: Interpreter, **spec: Any) -> Iterator[Up]:
    pool = Up(Session(), script, interpreter)
    try:
        options = Options(console=False)
        pool_spec = PoolSpec(name="p", provider=sky.Local(), interpreter=interpreter, options=options, **spec)
        pool.key = pool.session.create(pool_spec).result().key
        yield pool
        pool.session.tear_down("p").result()
    finally:
        pool.session.detach()


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("minor", ["3.11", "3.12", "3.13"])
def test_script_and_ranks_use_the_python_of_the_project(
    project: Path, environments: dict[str, Path], minor: str
) -> None:
    if minor not in environments:
        pytest.skip(f"there is no other Python {minor} here")
    (project / ".venv").symlink_to(environments[minor].parents[1])
    chosen = choose_interpreter(project / "train.py")
    assert chosen.source == ".venv of project train-it" and chosen.minor == minor
    with up(project / "train.py", chosen) as pool:
        version, program, package, hidden, where, step = pool.result(where=Path("/a b"))
        assert (version, program) == (chosen.version, f"{project}/.venv/bin/python")
        assert (package, hidden, where, step) == ("1.0", [], "/a b", 2)
        failed = pool.run("fails")
        assert failed.state == "failed" and failed.outcomes()[0].error.type.endswith("Own")
        assert pool.run("yields").state == "done"
    (lock,) = read_lock(pool.key).values()
    first, *lines = lock.splitlines()
    assert "skytiny==1.0" in lines and not any(line.startswith("pytest==") for line in lines)
    assert first == f"# nothing was installed for pool p: its ranks had {chosen}, with these packages"


@pytest.mark.proof("2 s of a processor")
def test_image_packages_override_project_packages(
    project: Path, environments: dict[str, Path], wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned(project, environments)
    for name, value in tiny_variables(wheels).items():
        monkeypatch.setenv(name, value)
    chosen = choose_interpreter(project / "train.py")
    with up(project / "train.py", chosen, image=Image(pip=["skytiny"])) as pool:
        assert pool.result()[1:4] == [f"{project}/.venv/bin/python", "1.0", []]
    with up(project / "train.py", chosen, image=Image(pip=["skytiny==2.0"])) as pool:
        version, program, package, hidden, *_ = pool.result()
    assert (version, package, hidden) == (chosen.version, "2.0", [])
    assert Path(program).is_relative_to(os.environ["SKYWARD_HOME"])


def tiny_variables(wheels: Path) -> dict[str, str]:
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "UV_OFFLINE": "1", "UV_FIND_LINKS": str(wheels)}


@pytest.mark.proof("1 s of a processor")
def test_another_client_starts_agents_with_the_interpreter_of_the_pool(
    project: Path, environments: dict[str, Path]
) -> None:
    program = owned(project, environments)
    chosen = choose_interpreter(project / "train.py")
    with up(project / "train.py", chosen) as pool:
        (row,) = pool.session.ledger.live_pools()
        folder = Path(pool.session.ledger.machines(row.token)[0].extra["folder"])
        pool.session.detach()
        agent = json.loads((folder / "agent.json").read_text())["pid"]
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{agent}").exists())
        pool.session = Session()
        pool.session.attach("p").result()
        assert pool.result()[1] == str(program)


@pytest.fixture
def inline(project: Path, wheels: Path) -> Path:
    """Script with inline metadata for another Python than ours, with packages from a folder beside it."""
    minor = ".".join(another_python().version.split(".")[:2])
    (project / "wheels").symlink_to(wheels)
    block = (
        f'# /// script\n# requires-python = "=={minor}.*"\n# dependencies = ["skytiny==1.0"]\n'
        '# [tool.uv]\n# find-links = ["wheels"]\n# no-index = true\n# ///\n'
    )
    script = project / "inline.py"
    script.write_text(block + SEEN)
    return script


def test_script_with_inline_metadata_gets_its_own_environment(inline: Path, home: Path) -> None:
    chosen = choose_interpreter(inline)
    messages: list[str] = []
    task = loaded(inline, report=messages.append)
    assert task.interpreter == chosen
    assert messages[:2] == [
        f"interpreter: {chosen}",
        f"creating the environment of the inline metadata of inline.py with Python {chosen.version}",
    ]
    assert any("skytiny" in line for line in messages[2:])
    again: list[str] = []
    loaded(inline, report=again.append)
    assert again == messages[:1]
    with up(inline, chosen) as pool:
        assert pool.result()[:4] == [chosen.version, chosen.path, "1.0", []]
    made = Path(chosen.path).parents[1]
    assert made.parent == home / "environments" and (made / ".made").read_text() == chosen.path


def test_inline_environment_that_cannot_be_created_is_reported(inline: Path) -> None:
    inline.write_text(inline.read_text().replace("skytiny==1.0", "skytiny==9.9"))
    with pytest.raises(PoolError, match=r"(?s)environment of the inline metadata of inline.py cannot .*skytiny==9.9"):
        loaded(inline)


@pytest.mark.proof("1 s of a processor")
def test_client_killed_while_creating_an_environment_leaves_no_installer(
    inline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_HTTP_TIMEOUT", "PIP_DEFAULT_TIMEOUT"):
        monkeypatch.setenv(name, "600")  # it gives up by itself no sooner
    whole = inline.read_text()
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(60)
        port = index.getsockname()[1]
        links = f'find-links = ["http://127.0.0.1:{port}/"]'
        inline.write_text(whole.replace('find-links = ["wheels"]', links).replace("skytiny==1.0", "skytiny==1.0.0"))
        chosen = choose_interpreter(inline)
        with Cli(tmp_path).begin("run", f"{inline}:f") as client:
            link, _ = index.accept()  # an installer asks, and is never answered
            started = descendants(client.pid)
            client.kill()
        assert started
        wait_until(lambda: not any(map(exists, started)), what="the installer's end")
        link.close()
    assert not (Path(chosen.prefix) / MADE_FILE).exists()
    inline.write_text(inline.read_text().replace(links, 'find-links = ["wheels"]'))
    task = loaded(inline)
    assert task.interpreter is not None and (Path(task.interpreter.prefix) / MADE_FILE).exists()


@pytest.mark.proof("1 s of a processor")
def test_missing_package_error_names_the_interpreter_to_install_for(
    project: Path, environments: dict[str, Path], inline: Path
) -> None:
    program = owned(project, environments)
    script = project / "torchy.py"
    script.write_text("import skyward_core as sky\nimport torch\n@sky.function\ndef f(): return 1\n")
    assert missing_frameworks(script) == ["torch"]
    with pytest.raises(ScriptFailed, match=f"torch is not installed for {program}. Install it: "):
        loaded(script)
    inline.write_text(inline.read_text() + "import torch\n")
    with pytest.raises(ScriptFailed, match="add torch to the dependencies in the script's inline metadata"):
        loaded(inline)


def test_script_that_creates_its_own_pool_needs_no_project_packages(
    project: Path, environments: dict[str, Path]
) -> None:
    owned(project, environments)
    (project / "skyward.toml").write_text('[hosts]\nlab = ["gpu1"]\n')
    pool = (
        'image = sky.Image(pip=["torch"])\n'
        'with sky.Compute(provider=sky.SSH("@lab"), image=image, plugins=[sky.plugins.torch()]) as compute:\n'
        "    print(f() @ compute)\n"
    )
    script = project / "whole.py"
    script.write_text("import skyward_core as sky\n@sky.function\ndef f(): return 1\n" + pool)
    assert loaded(script).name == "f"


def test_too_old_cloudpickle_of_an_interpreter_is_named(project: Path, environments: dict[str, Path]) -> None:
    program = make_environment(another_python().path, project / ".venv")
    (packages,) = (project / ".venv").glob("lib/python3*/site-packages")
    (packages / "cloudpickle.py").write_text("__version__ = '2.2.1'\n")
    (project / "train.py").write_text("import skyward_core as sky\n@sky.function\ndef f(): return 1\n")
    with pytest.raises(ScriptError, match=f"{program} has cloudpickle 2.2.1, but version 3 or later is required"):
        loaded(project / "train.py")


def test_library_path_for_other_interpreters_is_minimal_and_restored(home: Path) -> None:
    ours = library_path_entries()
    assert os.listdir(ours.first) == ["skyward_core"]  # noqa: PTH208
    assert {*os.listdir(ours.last)} <= {"cloudpickle", "pynvml.py"}  # noqa: PTH208
    module = Path(ours.first, "skyward_core", "__init__.py")
    module.unlink()
    Path(ours.first).parent.joinpath(".made").unlink()  # as a power cut may leave it
    assert library_path_entries() == ours and module.exists()


def test_loader_requests_can_be_read_by_every_python_version() -> None:
    """Python 3.13 pickles paths by a module that other versions lack."""
    for known in [*other_pythons().values(), None]:
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path, PurePosixPath; "
            "from skyward_core.tasks.script_loader_parent import pickle_request as request_of; "
            "sys.stdout.buffer.write(request_of([Path('/a'), {'b': PurePosixPath('c')}]))"
        )
        root = str(Path(sky.__file__).parents[1])
        python = known.path if known else sys.executable
        done = subprocess.run([python, "-c", code, root], capture_output=True, check=True)
        assert b"_local" not in done.stdout
        assert pickle.loads(done.stdout)[0] == Path("/a")


def command(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run ``skyward-tui run`` in the working folder."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return call(["run", script, "--nodes", "2", *args], env)


@pytest.mark.proof("2 s of a processor")
def test_python_option_selects_the_interpreter_of_ranks(project: Path, environments: dict[str, Path]) -> None:
    (project / ".venv").mkdir()  # broken, and not looked at
    other = another_python()
    program = environments[".".join(other.version.split(".")[:2])]
    done = command("train.py:f", "--python", str(program))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"['{other.version}', '{program}', '1.0', []") == 2
    done = command("train.py:f", "--python", str(project))
    assert done.returncode == 2 and f"--python {project} is a folder. Name an interpreter" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")
def test_project_environment_of_another_user_is_not_run(project: Path, tmp_path: Path) -> None:
    (project / ".venv" / "bin").mkdir(parents=True)
    theirs = project / ".venv" / "bin" / "python"
    theirs.write_text(f'#!/bin/sh\ntouch {tmp_path}/was-run\nexec {sys.executable} "$@"\n')
    theirs.chmod(0o755)
    os.chown(project / ".venv", 65534, 65534)
    (project / "plain.py").write_text("import skyward_core as sky\n@sky.function\ndef f(): return 'here'\n")
    done = command("plain.py")
    assert done.returncode == 0 and "'here'" in done.stdout, done.stderr
    assert f"{project}/.venv was skipped: {project}/.venv belongs to another user" in done.stderr
    assert not (tmp_path / "was-run").exists()


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
    """Address of a page with links to the wheels of skytiny."""
    tiny_wheels(tmp_path / "wheels", "1.0", "2.0")

    with served(tmp_path / "wheels") as address:
        yield address


@pytest.fixture
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def script(project_folder: Path, links: str, minor: str = OURS) -> Path:
    path = project_folder / "train.py"
    path.write_text(SCRIPT.format(links=links, minor=minor))
    return path


def spec(provider: SSH, chosen: Interpreter, **more: Any) -> PoolSpec:
    return PoolSpec(name="p", provider=provider, interpreter=chosen, options=Options(console=False), **more)


class RemotePool:
    """Remote pool for a script, and the results of the script's functions."""

    def __init__(self, path: Path, chosen: Interpreter) -> None:
        self.session, self.path, self.chosen = Session(), path, chosen

    async def run(self, function: str) -> Any:
        """Run a function and return the ended run."""
        task = await asyncio.to_thread(build_task, self.path, function, {}, interpreter=self.chosen)
        run = await asyncio.wrap_future(self.session.launch("p", task))
        return await asyncio.wrap_future(self.session.wait("p", run.id))

    async def result_of_f(self) -> Any:
        """Return the result of ``f``."""
        view = await self.run("f")
        assert view.state == "done", view
        return view.outcomes()[0].summary.json


@asynccontextmanager
async def remote_pool(path: Path, chosen: Interpreter, pool_spec: PoolSpec) -> AsyncIterator[RemotePool]:
    pool = RemotePool(path, chosen)
    try:
        await asyncio.wrap_future(pool.session.create(pool_spec))
        yield pool
        assert (await asyncio.wrap_future(pool.session.tear_down("p"))).ok
    finally:
        await asyncio.to_thread(pool.session.detach)


def other_minor() -> str:
    return ".".join(another_python().version.split(".")[:2])


def asked_for(host: Host) -> set[str]:
    """Return the Python versions that a host was asked to run."""
    found = (re.search(r" skyward (\d+\.\d+) \d+,", command) for command in host.commands)
    return {each[1] for each in found if each}


@pytest.mark.proof("2 s of a processor")
async def test_ssh_hosts_use_the_python_version_of_the_project(
    host: Host, known_hosts_file: Path, project_folder: Path, links: str
) -> None:
    minor = other_minor()
    path = script(project_folder, links, minor)
    chosen = choose_interpreter(path)
    assert chosen.minor == minor != OURS
    async with remote_pool(path, chosen, spec(provider(host, known_hosts_file), chosen)) as pool:
        package, program, there = await pool.result_of_f()
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
        assert await pool.result_of_f() == [package, program, there]
    assert asked_for(host) == {minor}


async def test_image_python_other_than_the_script_is_rejected_before_connecting(
    host: Host, known_hosts_file: Path, project_folder: Path, links: str
) -> None:
    path = script(project_folder, links, other_minor())
    chosen = choose_interpreter(path)
    with pytest.raises(UsageError, match=r"loads the script, .*inline metadata of train\.py.*remove python"):
        async with remote_pool(path, chosen, spec(provider(host, known_hosts_file), chosen, image=Image(python=OURS))):
            pass
    assert host.logins == 0


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
def locked_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Project with a lock of skytiny 1.0, although 2.0 exists. The newest skyneeds requires 2.0."""
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


def compute(locked_project: Path, **options: Any) -> Any:
    image = sky.Image(workdir=locked_project, **options)
    return sky.Compute(name="p", provider=sky.Local(), image=image, options=QUIET)


def kept_lock(locked_project: Path) -> str:
    """Return the output of the command ``lock`` for the latest run."""
    return call(["lock", "p"], os.environ, locked_project).stdout


def run_script(locked_project: Path, lock: str) -> Any:
    """Return the result of a script whose imports only the lock provides, without a chosen interpreter."""
    (locked_project / "needy.py").write_text(
        "import skyneeds, skytiny\nimport skyward_core as sky\n\n\n"
        "@sky.function\ndef f():\n    print('it runs')\n    return [skytiny.VERSION, skyneeds.VERSION]\n"
    )
    plan = make_plan(LaunchRequest(script=str(locked_project / "needy.py"), pool="p", lock=str(locked_project / lock)))
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
    (made,) = {Path(plan.interpreter.prefix)} & set((locked_project.parent / "sky" / "environments").iterdir())
    assert view.state == "done" and (made / ".made").exists(), view
    summary = view.outcomes()[0].summary
    assert summary is not None
    return summary.json


def test_ranks_have_locked_packages_and_a_lock_of_them_is_saved(locked_project: Path) -> None:
    with compute(locked_project, lock="uv.lock", pip=["skyneeds"]) as pool:
        assert versions() >> pool == ["1.0", "3.0"]
    first, *lines = kept_lock(locked_project).splitlines()
    assert "pool p with Python" in first
    assert lines[0] == "skyneeds==3.0" and lines[1].startswith("skytiny==1.0 --hash=sha256:")
    (locked_project / "run.lock").write_text(kept_lock(locked_project))
    assert run_script(locked_project, "run.lock") == ["1.0", "3.0"]
    assert kept_lock(locked_project).splitlines()[1:] == lines
    text = (locked_project / "run.lock").read_text()
    (locked_project / "run.lock").write_text(text.replace(lines[1][-64:], "0" * 64))
    with pytest.raises(sky.PoolError, match=r"(?s)Cannot create the image's environment on this machine.*skytiny"):
        compute(locked_project, lock="run.lock").__enter__()


def test_already_satisfied_requirements_are_not_installed(locked_project: Path) -> None:
    import cloudpickle

    (locked_project / "requirements.txt").write_text("cloudpickle>=1\n")
    (locked_project / "exact.lock").write_text(f"cloudpickle=={cloudpickle.__version__}\n")
    for image in ({"requirements": "requirements.txt"}, {"lock": "exact.lock"}):
        with compute(locked_project, **image):
            pass
    assert not list((locked_project.parent / "sky" / "environments").glob("env-*"))


def test_lock_of_a_pool_without_packages_lists_what_ranks_had(locked_project: Path) -> None:
    import cloudpickle

    with compute(locked_project) as pool:
        assert system() >> pool == sys.platform
    first, *lines = kept_lock(locked_project).splitlines()
    assert first.startswith("# nothing was installed for pool p: its ranks had Python")
    assert f"cloudpickle=={cloudpickle.__version__}" in lines


LIBRARY_SCRIPT = """import sys
import skyward_core as sky

@sky.function
def f():
    import mylib, skytiny
    return [skytiny.VERSION, mylib.WHERE, sys.executable, mylib.__file__]
"""


def local_library(locked_project: Path) -> None:
    """Package beside the locked_project, which the project's environment imports from its folder."""
    library = locked_project.parent / "mylib"
    (library / "src").mkdir(parents=True)
    (library / "src" / "mylib.py").write_text("WHERE = 'beside the project'\n")
    make_environment(sys.executable, locked_project / ".venv")
    (packages,) = (locked_project / ".venv").glob("lib/python3*/site-packages")
    (packages / "mylib.pth").write_text(f"{library}/src\n")
    info = packages / "mylib-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("mylib.pth,,\n")
    (info / "direct_url.json").write_text(json.dumps({"url": library.as_uri(), "dir_info": {"editable": True}}))


@pytest.mark.proof("1 s of a processor")
async def test_ssh_hosts_get_requirements_and_local_packages(
    locked_project: Path, host: Host, known_hosts_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "UV_FIND_LINKS", "UV_OFFLINE"):
        monkeypatch.delenv(name)
    local_library(locked_project)
    (locked_project / "train.py").write_text(LIBRARY_SCRIPT)
    monkeypatch.chdir(locked_project)
    with served(locked_project.parent / "wheels") as links:
        (locked_project / "requirements.txt").write_text(f"--no-index\n--find-links {links}\nskytiny<2\n")
        hosts = {"hosts": f"127.0.0.1:{host.port}"}
        request = LaunchRequest(
            script="train.py", pool="p", provider="ssh", settings=hosts, requirements="requirements.txt"
        )
        plan = make_plan(request)
        assert str(plan.packages) == f"1 of {locked_project}/requirements.txt"
        assert [each.folder for each in plan.uploaded_packages] == [str(locked_project.parent / "mylib")]
        assert plan.spec is not None
        where = provider(host, known_hosts_file)
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
        lines = kept_lock(locked_project).splitlines()
        assert lines[1:] == [f"--find-links {links}", "--no-index", "skytiny==1.0"]


async def test_invalid_package_files_are_rejected_before_connecting(
    locked_project: Path, host: Host, known_hosts_file: Path
) -> None:
    (locked_project / "requirements.txt").write_text("-f ../wheels\nskytiny\n")
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"lock": "no.lock"}, SpecError, "lock: file no.lock does not exist in"),
        ({"requirements": "requirements.txt"}, sky.UsageError, "a folder of this machine"),
    ]
    session = Session()
    try:
        for image, error, why in cases:
            spec = PoolSpec(
                name="p", provider=provider(host, known_hosts_file), image=sky.Image(workdir=locked_project, **image)
            )
            with pytest.raises(error, match=why):
                await asyncio.wrap_future(session.create(spec))
        assert session.ledger.live_pools() == []
    finally:
        await asyncio.to_thread(session.detach)
    assert host.logins == 0


class BringsTiny(Plugin):
    """Plugin that requires a package."""

    name: ClassVar[str] = "tiny"

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        return replace(image, pip=(*image.pip, "skytiny==1.0"))


@pytest.mark.proof("1 s of a processor")
def test_plugin_packages_load_the_script_and_are_in_its_ranks(
    project: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_core.tasks.missing_packages.FRAMEWORKS", ("skytiny",))
    for name, value in from_folder(wheels).items():
        monkeypatch.setenv(name, value)
    script = project / "needs.py"
    script.write_text(
        "import skytiny\nimport skyward_core as sky\n\n@sky.function\ndef f():\n    return skytiny.VERSION\n"
    )
    spec = PoolSpec(name="p", provider=sky.Local(), plugins=[BringsTiny()])
    chosen, _ = script_python(script, None, spec)
    assert chosen.source == "plugins of the pool: tiny"
    with up(script, chosen) as pool:
        assert pool.result() == "1.0"
