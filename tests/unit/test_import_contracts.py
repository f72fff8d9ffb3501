"""Import contracts of pyproject.toml: each fails on a forbidden import."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from itertools import cycle
from pathlib import Path

import skyward_core

ROOT = Path(skyward_core.__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]

# For each contract a file, and what it must not import.
PLANTED = {
    "Layers of the library": ("skyward_core/store/state_folder.py", "from ..pool.pool_context import PoolContext"),
    "Agent and worker do not import each other": (
        "skyward_core/node/worker/stdio.py", "from ..agent.worker_slot_queue_and_process import Slot",
    ),
    "The API for scripts and the client do not import each other": (
        "skyward_core/api/map_and_stream.py", "from ..client.session import look",
    ),
    "A node needs nothing but Python and cloudpickle": (
        "skyward_core/node/agent/frame_connection.py", "import asyncssh",
    ),
    "Layers of the agent": ("skyward_core/node/agent/call_registry.py", "from .slot_dispatcher import Slots"),
    "The library does not import the app": ("skyward_core/views/log_buffers_and_rank_activity.py", "import textual"),
    "App and command line import only client, model, views and util": (
        "skyward_tui/panels/node_phases.py", "from skyward_core.plugins import by_name",
    ),
    "The command line does not import the app": (
        "skyward_tui/cli/commands/ls_logs_results_lock.py", "from ...widgets.virtual_list import Roll",
    ),
    "Layers of the app": ("skyward_tui/widgets/virtual_list.py", "from ..app.app import SkywardApp"),
    "Screens do not import each other": ("skyward_tui/screens/home_runs_and_pools.py", "from .run import RunScreen"),
}  # fmt: skip
# At its top, in a function, for types alone: in turn.
HOW = (
    "\n{}\n",
    "\ndef planted() -> None:\n    {}\n",
    "\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n",
)


def test_each_import_contract_fails_on_a_forbidden_import(tmp_path: Path) -> None:
    assert PLANTED.keys() == {contract["name"] for contract in CONTRACTS}
    for package in ("skyward_core", "skyward_tui"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for (file, line), how in zip(PLANTED.values(), cycle(HOW), strict=False):
        with open(tmp_path / file, "a") as target:
            target.write(how.format(line))
    report = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"],
        cwd=tmp_path, capture_output=True, text=True,
    ).stdout  # fmt: skip
    broken = {line.partition(" BROKEN")[0] for line in report.splitlines() if " BROKEN" in line}
    assert broken == PLANTED.keys(), report
