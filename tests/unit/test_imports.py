"""What is imported where: a node's processes stay light, and a client pays only for what it uses."""

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
HEAVY = (
    "textual",
    "rich",
    "pydantic",
    "boto3",
    "botocore",
    "asyncssh",
    "platformdirs",
    "click",
    "numpy",
    "torch",
)


def loaded_by(code: str, *options: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after running this."""
    whole = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}\nimport json\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, *options, "-c", whole], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("module", "also_not"),
    [
        ("skyward_core", ("cloudpickle", "asyncio", "sqlite3", "logging", "inspect", "dataclasses")),
        (
            "skyward_core.pool.pool",
            ("cloudpickle", "skyward_core.tasks.function_pickling", "shutil", "tempfile"),
        ),
        (
            "skyward_core.node.agent.agent_lifetime",
            (
                "cloudpickle",
                "sqlite3",
                "skyward_core.tasks.function_pickling",
                "skyward_core.model.specs",
                "skyward_core.store.debug_log",
                "skyward_core.protocol.host_facts",
            ),
        ),
        ("skyward_core.node.agent.__main__", ("cloudpickle", "asyncio", "logging", "shutil")),
        (
            "skyward_core.node.worker.worker",
            (
                "asyncio",
                "sqlite3",
                "pathlib",
                "logging",
                "skyward_core.model.specs",
                "skyward_core.protocol.host_facts",
            ),
        ),
        # Whoever lists providers, or reads a script that names this one, has it; AWS is asked by few.
        ("skyward_core.providers.aws.provider", ("cryptography", "urllib.request")),
        ("skyward_core.runtime.instance_info", ("cloudpickle", "asyncio")),
        ("skyward_core.runtime.output_decorators", ("asyncio",)),
        ("skyward_core.runtime.sharding", ("asyncio",)),
        ("skyward_core.plugins", ("asyncio", "skyward_core.model.setting_descriptors")),
        ("skyward_core.plugins.plugin", ("asyncio",)),
        ("skyward_core.protocol.frame_codec", ("asyncio",)),
        ("skyward_core.model.outcomes", ("asyncio",)),
        ("skyward_core.model.errors", ("asyncio",)),
    ],
)
def test_modules_of_a_node_load_nothing_heavy(module: str, also_not: tuple[str, ...]) -> None:
    loaded = loaded_by(f"import {module}", "-I")
    assert module in loaded
    assert loaded.isdisjoint({*HEAVY, *also_not})


def test_an_agent_needs_nothing_but_the_standard_library() -> None:
    loaded_by("import skyward_core.node.agent.__main__, skyward_core.node.agent.agent_lifetime", "-I", "-S")


def test_a_worker_starts_with_nothing_but_the_standard_library() -> None:
    loaded_by("import skyward_core.node.worker.worker, skyward_core.runtime.instance_info", "-I", "-S")


def test_the_core_never_knows_the_screens() -> None:
    core = ROOT / "skyward_core"
    for path in core.rglob("*.py"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            words = line.split()
            if words[:1] in (["import"], ["from"]):
                assert not words[1].startswith(("textual", "rich", "skyward_tui")), f"{path}:{number}"


def test_a_pool_of_this_machine_needs_no_cloud_and_no_ssh() -> None:
    code = "import skyward_core as sky\nsky.Compute(provider=sky.Local(), nodes=2)"
    loaded = loaded_by(code)
    assert loaded.isdisjoint({"boto3", "botocore", "asyncssh", "textual", "rich", "numpy", "torch"})


def test_the_version_is_said_without_loading_what_says_more() -> None:
    code = (
        "from skyward_tui.cli.main import main\nsys.argv = ['skyward-tui', '--version']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass"
    )
    loaded = loaded_by(code)
    assert loaded.isdisjoint({"textual", "rich", "pydantic", "boto3", "asyncssh", "cloudpickle"})


def test_an_app_that_is_opened_without_options_waits_for_nobody_who_understands_some() -> None:
    code = "from skyward_tui.app import new_app\nnew_app()"
    assert loaded_by(code).isdisjoint({"click", "pydantic", "boto3", "asyncssh", "cloudpickle", "gettext"})


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
    loaded_by(ASKED_FOR_AT_THE_TOP, "-I", "-S")
    in_a_rank = (
        "from skyward_core.runtime import instance_info as info\ninfo.set_current(info.InstanceInfo(pool='p'))\n"
        "import skyward_core as sky\n"
        "assert sky.Compute(provider=sky.SSH(hosts='@lab')).spec.provider.hosts == ('@lab',)"
    )
    loaded_by(in_a_rank, "-I", "-S")


@pytest.mark.parametrize("part", ["node", "wire", "runtime"])
def test_nothing_of_a_nodes_own_asks_for_a_logger(part: str) -> None:
    for path in (ROOT / "skyward_core" / part).rglob("*.py"):
        words = re.findall(r"^\s*(?:import|from)\s.*$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert not [line for line in words if re.search(r"\blogg", line)], path


def test_a_client_does_not_wait_for_what_rotates_files() -> None:
    code = ASKED_FOR_AT_THE_TOP + "import skyward_core.pool.pool, skyward_core.client.session"
    assert loaded_by(code).isdisjoint({"logging.handlers", "logging.config"})


def test_a_client_does_not_wait_for_pydantic() -> None:
    code = ASKED_FOR_AT_THE_TOP + "import skyward_core.pool.pool, skyward_core.transport.ssh.ssh_transport"
    assert loaded_by(code).isdisjoint({"pydantic", "pydantic_core"})


def test_openssl_is_not_waited_for_before_the_first_paint() -> None:
    code = (
        "import sys, textual.app\n"
        "if 'hashlib' in sys.modules: sys.exit()\n"  # Textual's own, in some release
        "import skyward_tui.app.app, skyward_tui.cli.main, skyward_tui.screens.pool_list\n"
        "sys.exit('hashlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
