"""From nothing to results with one command: uvx has this project's wheel, and a script says what it needs itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 400  # seconds for what downloads some thirty packages
UNREACHED = ("error sending request", "dns error", "Could not connect", "the network was disabled")

SCRIPT = """# /// script
# dependencies = ["iniconfig>=2"]
# ///
import iniconfig
import skyward_core as sky


@sky.function
def read(text: str = "[train]\\nepochs = 3\\n"):
    found = iniconfig.IniConfig("train.ini", data=text)
    return {"rank": sky.instance_info().rank, "epochs": int(found["train"]["epochs"]), "from": iniconfig.__file__}
"""


def uv(*words: object, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What one of uv's programs says; skips the test where it reaches no index."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip
    if done.returncode and any(sign in done.stderr for sign in UNREACHED):
        pytest.skip(f"uv reaches no package index: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.proof("uv, an index of packages, and 5 s of a processor")
@pytest.mark.timeout(3 * PATIENCE)
def test_uvx_goes_from_nothing_to_results(tmp_path: Path) -> None:
    if shutil.which("uvx") is None:
        pytest.skip("uvx is not in PATH: pip install uv")
    # Nothing of the environment that tests run in.
    env = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env |= {"SKYWARD_HOME": str(tmp_path / "home")}
    project, wheels = tmp_path / "project", tmp_path / "wheels"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    uv("uv", "build", "--wheel", "--out-dir", wheels, ROOT, folder=tmp_path, env=env)
    (wheel,) = wheels.glob("*.whl")
    tool = ("uvx", "--from", wheel, "skyward-tui")
    ended = uv(*tool, "run", "train.py", "--nodes", "2", "--json", folder=project, env=env)
    ranks = [rank["value"] for rank in json.loads(ended.stdout.splitlines()[-1])["ranks"]]
    assert [(rank["rank"], rank["epochs"]) for rank in ranks] == [(0, 3), (1, 3)]
    environment, _, _ = ranks[0]["from"].partition("/lib/")
    assert Path(environment).parent == tmp_path / "home" / "environments"
    assert "inline metadata of train.py" in ended.stderr
    assert uv(*tool, "ls", "--json", folder=project, env=env).stdout.strip().endswith("[]}")
