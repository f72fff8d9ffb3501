"""A project of another Python than the tool's on hosts of OpenSSH, each of which has it in a place of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.pythons import another_python, make_environment

from . import Host, Lab

SCRIPT = """
import os, sys

rank = os.environ["RANK"]
print("rank", rank, "of", os.environ["WORLD_SIZE"], "%d.%d" % sys.version_info[:2], __name__, *sys.argv[1:])
with open(f"out-{rank}", "w") as file:
    file.write("trained")
"""


def gives(host: Host, place: str, program: str) -> Path:
    """A host has a Python at a place in its home."""
    link = host.home / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(program)
    return link


@pytest.mark.proof("3 s of a processor")
def test_ranks_have_the_version_that_the_project_has(pair: Lab, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = another_python()
    minor = ".".join(known.version.split(".")[:2])
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    work = Path.cwd()
    cli = Cli(work)
    # Hosts see it, and do not trust it: others can write above it.
    make_environment(known.path, work / ".venv")
    (work / "pyproject.toml").touch()
    cli.write("train.py", SCRIPT)
    first, second = pair.hosts
    links = [
        gives(first, f".local/bin/python{minor}", known.path),
        gives(second, f".pyenv/versions/{known.version}/bin/python{minor}", known.path),
    ]
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh/config").write_text(pair.ssh_config.read_text())
    try:
        hosts = ",".join(host.name for host in pair.hosts)
        ended = cli("torchrun", "--nnodes", "2", "--hosts", hosts, "--output", "out-*", "train.py", "--epochs", "3")
        for rank in range(2):
            assert f"rank {rank} of 2 {minor} __main__ --epochs 3" in ended.stdout
        assert {path.read_text() for path in work.glob("outputs/*/out-*")} == {"trained"}
        links.pop().unlink()
        refused = cli("run", "--hosts", hosts, "train.py", "--", status=1).stderr
        assert f"Host {second.name} has no Python {minor} (it has Python " in refused
        assert "needs the version that the script is loaded with" in refused
    finally:
        for link in links:
            link.unlink()
