"""The bundle: the same for the same content, and enough for a node that has nothing but Python."""

from __future__ import annotations

import compileall
import subprocess
import sys
from pathlib import Path

import pytest

from skyward_core.transport import onnode
from skyward_core.transport.bundle import Bundle, bundle

# What a node imports. The names are lists and not a walk over the package: a new module on the worker's path
# belongs here.
WORKER_SIDE = (
    "skyward_core",
    "skyward_core.function",
    "skyward_core.outcome",
    "skyward_core.payload",
    "skyward_core.wire",
    "skyward_core.agent.agent",
    "skyward_core.agent.worker",
    "skyward_core.agent.relay",
    "skyward_core.runtime.info",
    "skyward_core.runtime.output",
    "skyward_core.runtime.shard",
    "skyward_core.plugins",
    "skyward_core.transport.errands",
    "skyward_core.transport.environment",
    "skyward_core.transport.workcopy",
    "cloudpickle",
    "pynvml",
)
CLIENT_SIDE = {"pydantic", "asyncssh", "textual", "boto3", "click", "platformdirs", "torch", "numpy"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    compileall.compile_dir(Path(onnode.__file__).parents[1], quiet=1)  # as pip does where it installs
    bundle.cache_clear()
    onnode.unpack(bundle().archive, str(folder))
    return folder


def test_the_name_follows_the_content() -> None:
    bundle.cache_clear()
    first = bundle()
    bundle.cache_clear()
    second = bundle()
    assert first is not second and first.name == second.name and first.archive == second.archive
    changed = Bundle("x", (("a.py", b"1"),))
    assert changed.archive == Bundle("x", (("a.py", b"1"),)).archive != Bundle("x", (("a.py", b"2"),)).archive


def test_it_is_small() -> None:
    assert len(bundle().archive) < 1_000_000


def test_worker_side_modules_import_with_the_bundle_alone(unpacked: Path) -> None:
    script = (
        "import sys, importlib; sys.path.insert(0, sys.argv[1])\n"
        "for name in sys.argv[2:]: importlib.import_module(name)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    command = [sys.executable, "-I", "-S", "-c", script, str(unpacked), *WORKER_SIDE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not CLIENT_SIDE & set(done.stdout.split())


def test_bytecode_that_travels_is_used_and_right(unpacked: Path) -> None:
    sample = next(unpacked.rglob("wire.*.pyc"))
    script = "import sys; sys.path.insert(0, sys.argv[1]); import skyward_core.wire as w; print(w.__cached__)"
    command = [sys.executable, "-I", "-S", "-v", "-c", script, str(unpacked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert str(sample) in done.stdout
    assert (
        f"matches {unpacked}/skyward_core/wire.py" in done.stderr
        or f"code object from '{sample}'" in done.stderr
    )


@pytest.mark.parametrize(
    "start",
    [
        "from skyward_core.agent.__main__ import preload; preload()",
        "import skyward_core.agent.worker, skyward_core.runtime.info, cloudpickle",
        "import skyward_core.transport.errands",
    ],
)
def test_what_nodes_load_when_they_start_comes_compiled(start: str, unpacked: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, sys.argv[1])\n{start}\n"
        "ours = [m for n, m in sys.modules.items() if n.startswith(('skyward_core', 'cloudpickle'))]\n"
        "print(*(m.__cached__ for m in ours))"
    )
    command = [sys.executable, "-I", "-S", "-B", "-c", script, str(unpacked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert loaded
    assert [path for path in loaded if not Path(path).exists()] == []


def test_an_agent_loads_what_it_has_put_off_when_it_asks_for_it(unpacked: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from skyward_core.transport import onnode\n"
        "onnode.get_ready(sys.argv[1])\n"
        "print('skyward_core.agent.agent' in sys.modules, 'ast' in sys.modules, 'ssl' in sys.modules)\n"
        "import asyncio, inspect\n"
        "async def main(): return inspect.iscoroutinefunction(main), asyncio.coroutines.inspect.isfunction(main)\n"
        "print(*asyncio.run(main()))\n"
        "import ast, inspect, ssl\n"
        "print(inspect.__file__ == asyncio.coroutines.inspect.__file__, callable(ssl.SSLContext))"
    )
    package = "import sys; p = type(sys)('skyward_core'); p.__path__ = [sys.argv[1] + '/skyward_core']; "
    package += "sys.modules['skyward_core'] = p\n"  # as the channel's first code does
    command = [sys.executable, "-I", "-S", "-c", package + script, str(unpacked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True False False", "True True", "True True"]
