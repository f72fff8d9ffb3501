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


# Pools of many nodes, and how many files their client may have open: in processes with limits of their own.

CHILD = """
import resource, sys
from skyward_core.pool.pool import raise_file_limit as make_room
soft, hard, nodes, least = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
make_room(nodes, 1, least)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def after(soft: int, hard: int, nodes: int, least: int) -> str:
    words = map(str, (soft, hard, nodes, least))
    done = subprocess.run([sys.executable, "-c", CHILD, *words], capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("soft", "hard", "nodes", "least", "is_after"),
    [
        (1024, 4096, 4, 4, 1024),  # enough
        (256, 4096, 100, 100, range(600, 800)),
        (256, 300, 100, 100, 300),  # as far as it goes
        (60, 70, 100, 30, 70),  # for as many as can be had
    ],
)
def test_the_soft_limit_is_raised_as_far_as_a_pool_asks(
    soft: int, hard: int, nodes: int, least: int, is_after: int | range
) -> None:
    now, then = map(int, after(soft, hard, nodes, least).strip("()").split(","))
    assert then == hard and (now == is_after if isinstance(is_after, int) else now in is_after)


def test_a_hard_limit_that_is_too_low_is_told_before_anything_is_made() -> None:
    said = after(64, 64, 100, 100)
    assert "100 nodes need at least" in said and "this process may have 64" in said and "ulimit -Hn" in said


SCRIPT = """
import resource, sys
import skyward_core as sky
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 64))
try:
    sky.Compute(provider=sky.Local(), nodes=100, options=sky.Options(console=False)).__enter__()
except sky.UsageError as error:
    print("refused", error)
from skyward_core.store.ledger import Ledger
print(Ledger().live_pools())
"""


def test_a_pool_of_a_hundred_nodes_looks_first(tmp_path: Path) -> None:
    environ = os.environ | {"SKYWARD_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, env=environ)
    assert done.stdout.startswith("refused 100 nodes need at least") and done.stdout.endswith("[]\n"), done.stderr
