"""Imports and memory of node programs, open-file limits, forks, and garbage collection during imports."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from skyward_core.runtime import import_hooks_gc_pause_and_alias
from skyward_core.runtime.import_hooks_gc_pause_and_alias import pause_gc
from tests.support.processes import run_command

ROOT = Path(__file__).parents[2]


def run_with_standard_library(code: str) -> None:
    """Run code in a fresh interpreter that finds only the standard library and this project."""
    whole = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", whole], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_api_name_exists() -> None:
    import skyward_core

    for name in skyward_core.__all__:
        if name != "DistributedSampler":  # loads torch; test_distributed_sampler.py uses it
            assert getattr(skyward_core, name) is not None
    assert set(skyward_core.__all__) <= set(dir(skyward_core))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        skyward_core.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_package_stub_is_current() -> None:
    from tests.public_names import STUB, stub

    assert STUB.read_text() == stub(), "run python -m tests.public_names"


def is_running(process: Path) -> bool:
    """Check whether a process runs. An ended one may remain in the process table for a while."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="by /proc")
def test_agent_memory_is_bounded(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sky") as short:
        folder, socket = tmp_path / "node-0", f"{short}/0.sock"
        config = {
            "pool": "p", "node": 0, "nodes": 1, "folder": str(folder), "socket": socket, "idle_timeout": 600.0,
            "grace": 5.0, "path": [str(ROOT)],
        }  # fmt: skip
        begin = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        code = f"{begin}from skyward_core.node.agent.__main__ import main\nmain()"
        done = run_command([sys.executable, "-I", "-S", "-c", code], input=json.dumps(config), check=True)
        process = Path(f"/proc/{json.loads(done.stdout)['pid']}")
        try:
            resident = int((process / "status").read_text().split("VmRSS:")[1].split()[0])
            libraries = (process / "maps").read_text()
        finally:
            os.kill(int(process.name), signal.SIGTERM)
            deadline = time.monotonic() + 30
            while is_running(process) and time.monotonic() < deadline:
                time.sleep(0.01)
    assert not is_running(process)
    assert resident < 25_000, "kB"
    assert "libssl" not in libraries


ASKED_FOR_AT_THE_TOP = """
import skyward_core as sky
image = sky.Image(pip=["torch"], pip_indexes=[sky.PipIndex(url="https://example.org")], env={"A": "1"})
options, worker = sky.Options(console=False, ttl=60), sky.Worker(concurrency=2)
pool = sky.Compute(provider=sky.Local(), nodes=2, image=image, options=options, worker=worker, accelerator="A100:8")
"""


def test_names_used_by_script_modules_need_only_the_standard_library() -> None:
    """Nodes import such script modules, too."""
    run_with_standard_library(ASKED_FOR_AT_THE_TOP)
    in_a_rank = (
        "from skyward_core.runtime import instance_info_and_attempt as info\n"
        "info.set_current(info.InstanceInfo(pool='p'))\n"
        "import skyward_core as sky\n"
        "assert sky.Compute(provider=sky.SSH(hosts='@lab')).spec.provider.hosts == ('@lab',)"
    )
    run_with_standard_library(in_a_rank)


@pytest.mark.parametrize("part", ["node", "protocol", "runtime"])
def test_node_side_packages_import_no_logging(part: str) -> None:
    for path in (ROOT / "skyward_core" / part).rglob("*.py"):
        words = re.findall(r"^\s*(?:import|from)\s.*$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert not [line for line in words if re.search(r"\blogg", line)], path


@pytest.mark.parametrize(
    ("begin", "unused"),
    [
        ("import skyward_core.node.worker.worker", "skyward_core.protocol.validators hashlib inspect asyncio"),
        (
            "from skyward_core.node.deferred_imports import install_lazy_modules as begin; begin()\n"
            "from skyward_core.node.agent.__main__ import preload_modules as load; load()\n"
            "from skyward_core.node.agent.client_requests import save_source\n"  # every run on a host calls it
            "from skyward_core.node.bootstrap import host_commands",
            "asyncio.sslproto typing hashlib inspect skyward_core.node.agent.output_checkpoint_and_source_files",
        ),
    ],
)
def test_starting_node_processes_import_no_unused_modules(begin: str, unused: str) -> None:
    run_with_standard_library(
        "package = sys.modules['skyward_core'] = type(sys)('skyward_core')\n"  # as on hosts, without its __init__
        f"package.__path__ = [{str(ROOT / 'skyward_core')!r}]\n{begin}\n"
        f"found = [n for n in {unused.split()} if type(sys.modules.get(n)).__name__ == 'module']\n"
        "assert not found, found\n"
    )


# Pools of many nodes, and how many files their client may have open: in processes with limits of their own.

CHILD = """
import resource, sys
from skyward_core.pool.pool import raise_file_limit as make_room
soft, hard, nodes, least = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
make_room(nodes, 1, least)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def raised_limit(soft: int, hard: int, nodes: int, least: int) -> str:
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
def test_file_descriptor_soft_limit_is_raised_as_needed(
    soft: int, hard: int, nodes: int, least: int, is_after: int | range
) -> None:
    now, then = map(int, raised_limit(soft, hard, nodes, least).strip("()").split(","))
    assert then == hard and (now == is_after if isinstance(is_after, int) else now in is_after)


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


def test_pool_of_100_nodes_checks_file_limit_before_creation(tmp_path: Path) -> None:
    environ = os.environ | {"SKYWARD_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, env=environ)
    assert done.stdout.startswith("refused 100 nodes need at least") and done.stdout.endswith("[]\n"), done.stderr


# A script that forks while a thread of ours is importing a module: the child imports it, too.

FORKING = """
import os, sys, threading

from skyward_core.transport import background_loop as fork_after_imports
from skyward_core.transport.background_loop import submit

sys.begun, main = threading.Event(), threading.get_ident()

def waits():
    frame = sys._current_frames()[main]
    while frame and frame.f_code is not fork_after_imports.wait_for_imports.__code__:
        frame = frame.f_back
    return frame is not None

async def first_need():
    import late

sys.waits = waits
submit(first_need())
sys.begun.wait()
BEFORE
if child := os.fork():
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)
CHILD
os._exit(7)
"""

LATE = """
import sys, time

sys.begun.set()
while UNTIL:
    time.sleep(0.001)
"""


def _run(folder: Path, *, before: str, child: str, until: str) -> subprocess.CompletedProcess[str]:
    (folder / "late.py").write_text(LATE.replace("UNTIL", until))
    (folder / "forks.py").write_text(FORKING.replace("BEFORE", before).replace("CHILD", child))
    return run_command([sys.executable, "forks.py"], cwd=folder)


def test_forked_child_can_import_a_module_whose_import_was_running(tmp_path: Path) -> None:
    # The import ends once the fork waits for it: never, where no fork does.
    done = _run(tmp_path, before="fork_after_imports.IMPORT_TIMEOUT = 50", child="import late", until="not sys.waits()")
    assert done.stdout == "child ended with 7\n", done.stderr


def test_fork_waits_only_briefly_for_a_running_import(tmp_path: Path) -> None:
    done = _run(tmp_path, before="fork_after_imports.IMPORT_TIMEOUT = 0.05", child="", until="True")
    assert done.stdout == "child ended with 7\n", done.stderr


# What a rank loads that is large: no search for garbage goes through it, while it is loaded or later.


@pytest.fixture
def gc_generations() -> Iterator[list[int]]:
    """Generation of each garbage collection that has begun."""
    begun: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun.append(info["generation"])

    gc.callbacks.append(note)
    yield begun
    gc.callbacks.remove(note)
    gc.enable()


def test_pause_gc_collects_nothing_and_freezes_loaded_objects(gc_generations: list[int]) -> None:
    with pause_gc():
        gc_generations.clear()
        loaded = [[] for _ in range(100_000)]  # type: ignore[var-annotated]
        assert gc_generations == []
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(loaded)
    assert not any(each is loaded for each in gc.get_objects())


def test_failed_import_in_pause_gc_reenables_collection(gc_generations: list[int]) -> None:
    with pytest.raises(ImportError), pause_gc():
        raise ImportError("no such library")
    assert gc.isenabled()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Package with the name of a large one, which records whether garbage is collected during its import."""
    folder = tmp_path / "peft"
    folder.mkdir()
    note = "import gc\nseen = gc.isenabled()\n"
    (folder / "__init__.py").write_text(note)
    (folder / "layers.py").write_text(note + "from . import missing_part\n")
    (folder / "tuners.py").write_text(note)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    import_hooks_gc_pause_and_alias.install_gc_pause()
    import_hooks_gc_pause_and_alias.install_gc_pause()
    assert sum(isinstance(finder, import_hooks_gc_pause_and_alias._LargeFinder) for finder in sys.meta_path) == 1
    yield folder
    atexit.unregister(
        import_hooks_gc_pause_and_alias._unfreeze_at_exit
    )  # tests end without a look through all that they have loaded
    for name in [name for name in sys.modules if name.partition(".")[0] == "peft"]:
        del sys.modules[name]


def test_large_library_is_imported_with_gc_paused(library: Path) -> None:
    peft = importlib.import_module("peft")
    assert (peft.seen, gc.isenabled()) == (False, True)
    assert importlib.import_module("peft.tuners").seen is False, "what it loads later, too"
    assert type(peft.__loader__) is SourceFileLoader
    assert "exec_module" not in vars(peft.__loader__), "the loader is as it was"
    assert inspect.getsource(peft) == (library / "__init__.py").read_text()
    assert importlib.reload(peft).seen is False
    with pytest.raises(ImportError, match="missing_part"):
        importlib.import_module("peft.layers")
    assert gc.isenabled()


def test_small_library_is_imported_with_gc_enabled(library: Path) -> None:
    (library.parent / "small_one.py").write_text("import gc\nseen = gc.isenabled()\n")
    assert importlib.import_module("small_one").seen is True
    del sys.modules["small_one"]
