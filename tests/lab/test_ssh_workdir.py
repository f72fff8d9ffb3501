"""Where a script and the modules beside it lie does not matter: they import on the nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.model.errors import PoolError, SpecError
from tests.support.pool_logs import last_run, log_of

from . import Lab
from .pools import DEADLINE, pool, ssh

SCRIPT = """
import json, sys
from pathlib import Path
import skyward_core as sky
import beside_the_script

@sky.function
def look():
    import beside_the_script, socket
    return beside_the_script.WORD, Path("data.txt").exists(), socket.gethostname()

if __name__ == "__main__":
    ssh = sky.SSH.from_json(json.loads(sys.argv[1]))
    with sky.Compute(provider=ssh, options=sky.Options(console=False)) as compute:
        print(json.dumps(look() @ compute), flush=True)
"""


@pytest.fixture
def project(home: Path) -> Path:
    """A folder with a script, a module beside it, and data, in a folder that is not the current one."""
    folder = home / "project"
    folder.mkdir()
    (folder / "train_it.py").write_text(SCRIPT)
    (folder / "beside_the_script.py").write_text("WORD = 'found'\n")
    (folder / "data.txt").touch()
    return folder


def run(lab: Lab, script: Path, home: Path, way: str) -> list[list[object]]:
    """What the script's function gives on each host, run in one of the ways from the current folder."""
    if way == "skyward-tui run":
        (home / ".ssh").mkdir(mode=0o700)
        (home / ".ssh/config").write_text(lab.ssh_config.read_text())
        hosts = ",".join(host.name for host in lab.hosts)
        options = ["-m", "skyward_tui", "run", f"{script}:look", "--hosts", hosts, "--json"]
    else:
        options = [*way.split()[1:], str(script), json.dumps(ssh(lab).to_json())]
    environment = os.environ | {"HOME": str(home)}
    done = subprocess.run([sys.executable, *options], env=environment, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    return [rank["value"] for rank in said["ranks"]] if isinstance(said, dict) else list(said)


@pytest.mark.proof("2 s of a processor")
@pytest.mark.parametrize("way", ["python", "python -m skyward_core", "skyward-tui run"])
def test_a_script_in_another_folder(pair: Lab, project: Path, home: Path, way: str) -> None:
    script = project / "train_it.py"
    assert run(pair, script, home, way) == [["found", True, host.name] for host in pair.hosts]


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("way", ["python", "python -m skyward_core", "skyward-tui run"])
def test_a_script_in_a_folder_below(
    pair: Lab, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The current folder travels, with the script's inside of it, and ranks work in the former."""
    monkeypatch.chdir(project)
    (project / "below").mkdir()
    for name in ("train_it.py", "beside_the_script.py"):
        (project / name).rename(project / "below" / name)
    script = Path("below/train_it.py")
    assert run(pair, script, home, way) == [["found", True, host.name] for host in pair.hosts]


@pytest.mark.proof("1 s of a processor")
def test_a_whole_script_runs_as_the_copy_that_a_node_has(pair: Lab, project: Path) -> None:
    script = project / "whole.py"
    text = "import beside_the_script, os, socket, sys\nfrom pathlib import Path\n"
    text += "assert os.path.samefile(Path(__file__).parent, sys.path[0]) and Path('data.txt').exists()\n"
    script.write_text(f"{text}print(__file__, beside_the_script.WORD, sys.argv[1])\n")
    with pool(pair, nodes=2, image=sky.Image(workdir=str(project))) as compute:
        sky.script(script, ["a"]) @ compute
        settled = [log_of(compute, last_run(compute), rank).decode().split() for rank in (0, 1)]
        for file, *said in settled:
            assert (Path(file).name, said) == ("whole.py", ["found", "a"]) and file != str(script)
        script.write_text("raise KeyError(1)  # is newer than what the nodes have\n")
        with pytest.raises(sky.RunError, match="KeyError"):
            sky.script(script) @ compute
        (project.parent / "elsewhere.py").write_text("pass\n")
        with pytest.raises(sky.RunError, match="has not come to this node"):
            sky.script(project.parent / "elsewhere.py") @ compute


def test_a_folder_that_must_not_travel_is_refused_by_name(pair: Lab, home: Path) -> None:
    for folder, why in (
        (Path("/"), "holds your home.*Image"),
        (home / "none", "is not a folder: name one that exists"),
    ):
        refused = pytest.raises((PoolError, SpecError), match=f"{folder} {why}")
        with refused, pool(pair, nodes=1, image=sky.Image(workdir=str(folder))):
            pass


@sky.function
def seen_below(word: str) -> list[str]:
    """Write a file, and return the files below the working folder that hold a word."""
    Path("result.txt").write_text("mine")
    files = [Path(at, name) for at, _, names in os.walk(".", followlinks=True) for name in names]
    return sorted(str(each) for each in files if each.is_file() and word.encode() in each.read_bytes())


def test_no_state_folder_reaches_a_host(
    pair: Lab, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(project / "home"))
    for each in (project / "home", project / "below" / "of-earlier", tmp_path / "elsewhere"):
        (each / "pools" / "p").mkdir(parents=True, mode=0o700)
        (each / "pools" / "p" / "events.jsonl").write_text("a word of ours")
        (each / "ledger.db").touch(mode=0o600)
    (project / "home" / "ledger.db").unlink()  # the pool's own
    (project / "link").symlink_to(tmp_path / "elsewhere" / "pools")
    (project / "data.txt").write_text("a word of ours")
    image = sky.Image(workdir=str(project), includes=["home", "below", "**/*", "link/p/*"])
    with pool(pair, nodes=1, image=image) as compute:
        assert seen_below("a word of ours") >> compute == ["data.txt"]
        assert seen_below("SQLite format") >> compute == []
        held = [str(each) for each in pair.hosts[0].home.rglob("ledger.db*")]
    assert held == []
    assert compute.receipt is not None and compute.receipt.ok
