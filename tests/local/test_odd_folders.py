"""Projects in folders with odd names, on this machine and over SSH."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sshd import Host

PATIENCE = 60
SCRIPT = """
import json, os, sys
import beside
import skyward_core as sky

@sky.function
def look():
    import beside_late
    files = [beside.__file__, beside_late.__file__, __file__, sys.argv[0], "data.txt"]
    assert sys.path[0] == os.getcwd(), sys.path
    there = [os.path.exists(each) for each in files]
    return [[os.path.relpath(each) for each in files], there, os.fsencode(os.getcwd())]

if __name__ == "__main__":
    place = json.loads(sys.argv[1])
    provider = sky.SSH(**place) if place else sky.Local()
    with sky.Compute(provider=provider, nodes=1, options=sky.Options(console=False)) as compute:
        found = look() >> compute
        sky.script("whole.py", [found[2]]) >> compute
    print(json.dumps([*found[:2], found[2].hex()]))
"""
# Each was or may be a separator of something.
NAMES = [
    "2026-11-28T14:55:03",
    "a:/b",
    "-rf a  b ",
    "new\nline",
    "q'u\"o`t$e\\x;&|<>*?!#",
    "{a!r}%s~",
    os.fsdecode(b"\xff\xfe"),
]
ALL = "-x a:b:{a}'\"`$\\;*%s\n\t" + os.fsdecode(b"\xff")


def project(below: Path, name: str) -> Path:
    folder = below / name
    folder.mkdir(parents=True)
    (folder / "r.py").write_text(SCRIPT)
    (folder / "whole.py").write_text("import beside, os, sys\nassert str(os.fsencode(os.getcwd())) == sys.argv[1]\n")
    for file in ("beside.py", "beside_late.py", "data.txt"):
        (folder / file).touch()
    return folder


def seen(folder: Path, place: object = None) -> bytes:
    """Run the script there; return the current folder of its rank."""
    done = subprocess.run(
        [sys.executable, "r.py", json.dumps(place)], cwd=folder, capture_output=True, timeout=PATIENCE, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    files, there, current = json.loads(done.stdout)
    assert files == ["beside.py", "beside_late.py", "r.py", "r.py", "data.txt"]
    assert all(there)
    return bytes.fromhex(current)


@pytest.mark.parametrize(
    "name",
    [ALL, *(pytest.param(name, marks=pytest.mark.proof("1 s of a processor")) for name in NAMES)],
    ids=ascii,
)
def test_a_rank_of_this_machine_finds_what_lies_beside_the_script(home: Path, tmp_path: Path, name: str) -> None:
    folder = project(tmp_path, name)
    assert seen(folder) == os.fsencode(folder)


@pytest.mark.parametrize(
    "name",
    [ALL, *(pytest.param(name, marks=pytest.mark.proof("2 s of a processor")) for name in NAMES)],
    ids=ascii,
)
async def test_a_rank_over_ssh_finds_what_lies_beside_the_script(
    home: Path, tmp_path: Path, host: Host, known: Path, name: str
) -> None:
    folder = project(tmp_path, name)
    place = {
        "hosts": [f"127.0.0.1:{host.port}"],
        "keys": str(host.client_key),
        "known_hosts": str(known),
        "python": sys.executable,
        "config": False,
    }
    assert (await asyncio.to_thread(seen, folder, place)).startswith(os.fsencode(host.home))


@pytest.mark.proof("4 s of a processor")
def test_the_command_line_runs_what_lies_in_one(home: Path, tmp_path: Path) -> None:
    folder = project(tmp_path, ALL)
    for words in (["r.py:look"], ["whole.py", "--", str(os.fsencode(folder))]):
        command = [sys.executable, "-m", "skyward_tui", "run", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr.decode()
    target = "14:55/r.py:nothing"
    project(tmp_path, "14:55")
    command = [sys.executable, "-m", "skyward_tui", "run", target]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=PATIENCE, check=False)
    assert b"14:55/r.py" in done.stderr and b"nothing" in done.stderr
