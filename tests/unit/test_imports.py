"""What the programs of a node may import. The time that imports take is measured by the benchmark `startup`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_with_standard_library(code: str) -> None:
    """Run code in a fresh interpreter that finds the standard library and this project alone."""
    whole = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", whole], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_agent_needs_nothing_but_the_standard_library() -> None:
    run_with_standard_library("import skyward_core.node.agent.__main__, skyward_core.node.agent.agent_lifetime")


def test_a_worker_starts_with_nothing_but_the_standard_library() -> None:
    run_with_standard_library("import skyward_core.node.worker.worker, skyward_core.runtime.instance_info")


def test_every_name_of_the_api_is_there() -> None:
    import skyward_core

    for name in skyward_core.__all__:
        if name != "DistributedSampler" or find_spec("torch"):  # a subclass of torch's own
            assert getattr(skyward_core, name) is not None
    assert set(skyward_core.__all__) <= set(dir(skyward_core))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        skyward_core.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_the_stub_of_the_package_is_current() -> None:
    from tests.public_names import STUB, stub

    assert STUB.read_text() == stub(), "run python -m tests.public_names"


def lives(process: Path) -> bool:
    """Whether it runs still; one that has ended may stay in the table for a while."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="by /proc")
def test_an_agent_stays_small(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sky") as short:
        folder, socket = tmp_path / "node-0", f"{short}/0.sock"
        config = {
            "pool": "p",
            "node": 0,
            "nodes": 1,
            "folder": str(folder),
            "socket": socket,
            "idle_timeout": 600.0,
            "grace": 5.0,
            "path": [str(ROOT)],
        }
        begin = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        code = f"{begin}from skyward_core.node.agent.__main__ import main\nmain()"
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code],
            input=json.dumps(config),
            capture_output=True,
            text=True,
            check=True,
        )
        process = Path(f"/proc/{json.loads(done.stdout)['pid']}")
        try:
            resident = int((process / "status").read_text().split("VmRSS:")[1].split()[0])
            libraries = (process / "maps").read_text()
        finally:
            os.kill(int(process.name), signal.SIGTERM)
            deadline = time.monotonic() + 30
            while lives(process) and time.monotonic() < deadline:
                time.sleep(0.01)
    assert not lives(process)
    assert resident < 25_000, "kB"
    assert "libssl" not in libraries


ASKED_FOR_AT_THE_TOP = """
import skyward_core as sky
image = sky.Image(pip=["torch"], pip_indexes=[sky.PipIndex(url="https://example.org")], env={"A": "1"})
options, worker = sky.Options(console=False, ttl=60), sky.Worker(concurrency=2)
pool = sky.Compute(provider=sky.Local(), nodes=2, image=image, options=options, worker=worker, accelerator="A100:8")
"""


def test_what_a_scripts_module_asks_for_needs_nothing_but_the_standard_library() -> None:
    """Nodes import such modules, too."""
    run_with_standard_library(ASKED_FOR_AT_THE_TOP)
    in_a_rank = (
        "from skyward_core.runtime import instance_info as info\ninfo.set_current(info.InstanceInfo(pool='p'))\n"
        "import skyward_core as sky\n"
        "assert sky.Compute(provider=sky.SSH(hosts='@lab')).spec.provider.hosts == ('@lab',)"
    )
    run_with_standard_library(in_a_rank)


@pytest.mark.parametrize("part", ["node", "protocol", "runtime"])
def test_nothing_of_a_nodes_own_asks_for_a_logger(part: str) -> None:
    for path in (ROOT / "skyward_core" / part).rglob("*.py"):
        words = re.findall(r"^\s*(?:import|from)\s.*$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert not [line for line in words if re.search(r"\blogg", line)], path
