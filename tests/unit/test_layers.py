"""The contracts on imports in pyproject.toml: each breaks when something is imported that it forbids."""

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
    "Arrows point down in the library": ("skyward_core/store/home.py", "from ..pool.context import PoolContext"),
    "Agent and worker know nothing of each other": (
        "skyward_core/node/worker/printing.py", "from ..agent.slot import Slot",
    ),
    "A node needs nothing but Python and cloudpickle": ("skyward_core/node/agent/lease.py", "import asyncssh"),
    "Arrows point down in the agent": ("skyward_core/node/agent/calls.py", "from .slots import Slots"),
    "What scripts use knows nothing of what app and command line use": (
        "skyward_core/front/api/streams.py", "from ..doctor import look",
    ),
    "Nor they of it": ("skyward_core/front/settings.py", "from .api.compute import Compute"),
    "The library knows no screen": ("skyward_core/views/logs.py", "import textual"),
    "App and command line use the library by its front": (
        "skyward_tui/panels/nodes.py", "from skyward_core.plugins import by_name",
    ),
    "The command line paints nothing": ("skyward_tui/commands/look.py", "from ..widgets.roll import Roll"),
    "Arrows point down in the app": ("skyward_tui/widgets/roll.py", "from ..app import SkywardApp"),
    "No screen knows another": ("skyward_tui/screens/pools.py", "from .run import RunScreen"),
}  # fmt: skip
# At its top, in a function, for types alone: in turn.
HOW = (
    "\n{}\n",
    "\ndef planted() -> None:\n    {}\n",
    "\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n",
)


def test_each_contract_breaks_when_something_is_imported_that_it_forbids(tmp_path: Path) -> None:
    assert PLANTED.keys() == {contract["name"] for contract in CONTRACTS}
    for package in ("skyward_core", "skyward_tui"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for (file, line), how in zip(PLANTED.values(), cycle(HOW), strict=False):
        with open(tmp_path / file, "a") as target:
            target.write(how.format(line))
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as run; run()",
            "--no-cache",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    ).stdout
    broken = {line.partition(" BROKEN")[0] for line in said.splitlines() if " BROKEN" in line}
    assert broken == PLANTED.keys(), said


def test_what_is_beside_the_api_is_named_on_both_sides() -> None:
    beside = {
        f"skyward_core.front.{path.stem}"
        for path in (ROOT / "skyward_core/front").glob("*.py")
        if path.stem != "__init__"
    }
    of = {contract["name"]: contract for contract in CONTRACTS}
    assert (
        set(of["What scripts use knows nothing of what app and command line use"]["forbidden_modules"])
        == beside
    )
    assert set(of["Nor they of it"]["source_modules"]) == beside
