"""One uv command from nothing to results with the built wheel."""

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
    """Return the output of one of uv's programs. Skips the test if no package index is reachable."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip
    if done.returncode and any(sign in done.stderr for sign in UNREACHED):
        pytest.skip(f"uv reaches no package index: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done


ALONE = """# /// script
# dependencies = ["iniconfig>=2", "skyward-tui"]
# ///
import iniconfig
import skyward_core as sky


@sky.function
def read(text: str = "[train]\\nepochs = 3\\n"):
    return int(iniconfig.IniConfig("train.ini", data=text)["train"]["epochs"]), sky.instance_info().rank


with sky.Compute(provider=sky.Local(), nodes=2) as compute:
    print(read() @ compute)
"""


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment without any variable of the test run."""
    if shutil.which("uv") is None or shutil.which("uvx") is None:
        pytest.skip("uv is not in PATH: pip install uv")
    data = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return data | {"SKYWARD_HOME": str(tmp_path_factory.mktemp("home"))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, env: dict[str, str]) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    uv("uv", "build", "--wheel", "--out-dir", folder, ROOT, folder=folder, env=env)
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.proof("uv, an index of packages, and 5 s of a processor")
@pytest.mark.timeout(3 * PATIENCE)
def test_uvx_runs_a_script_from_a_wheel(tmp_path: Path, env: dict[str, str], wheel: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    tool = ("uvx", "--from", wheel, "skyward-tui")
    ended = uv(*tool, "run", "train.py", "--nodes", "2", "--json", folder=tmp_path, env=env)
    ranks = [rank["value"] for rank in json.loads(ended.stdout.splitlines()[-1])["ranks"]]
    assert [(rank["rank"], rank["epochs"]) for rank in ranks] == [(0, 3), (1, 3)]
    environment, _, _ = ranks[0]["from"].partition("/lib/")
    assert Path(environment).parent == Path(env["SKYWARD_HOME"]) / "environments"
    assert "inline metadata of train.py" in ended.stderr
    assert uv(*tool, "ls", "--json", folder=tmp_path, env=env).stdout.strip().endswith("[]}")


@pytest.mark.proof("uv, an index of packages, and 3 s of a processor")
@pytest.mark.timeout(3 * PATIENCE)
def test_uv_run_runs_a_script_that_creates_a_pool(tmp_path: Path, env: dict[str, str], wheel: Path) -> None:
    (tmp_path / "train.py").write_text(ALONE)
    ended = uv("uv", "run", "--find-links", wheel.parent, "train.py", folder=tmp_path, env=env)
    assert ended.stdout == "[(3, 0), (3, 1)]\n", ended.stderr
