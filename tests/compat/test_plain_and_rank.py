"""A rank is an ordinary Python process: one script looks at itself in both, and what differs is what the docs say."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sshd import Host

HERE = Path(__file__).parent
SCRIPT = "plain_and_rank.py"
PAGE = Path(__file__).parents[2] / "docs" / "plain-and-rank.md"
PATIENCE = 100
ANYWHERE = {"signals", "session", "faulthandler", "threads", "buffering", "unraisablehook"}
if sys.version_info[:2] != (3, 12):  # which freezes what it has made of itself in any process
    ANYWHERE |= {"frozen garbage"}
VARIABLES = {"COMPUTE_POOL", "SKYWARD_NODE", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}

# A cell of a notebook: a main module without a file, and source that is known by a name that no file has.
CELL = f"""
import linecache, pathlib, sys
text, name = pathlib.Path({SCRIPT!r}).read_text(), "<cell 1>"
linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
sys.argv = ["", *sys.argv[1:]]
exec(compile(text, name, "exec"))
"""


@pytest.fixture(scope="module", autouse=True)
def no_own_ways() -> Iterator[None]:
    """What a shell tells Python goes to this machine's ranks and not to those of others, and is none of our points."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with the script, and a home of its own beside it."""
    path = tmp_path_factory.mktemp("compat") / "project"
    path.mkdir()
    shutil.copy(HERE / SCRIPT, path)
    (path / "beside.py").write_text("WORD = 'next door'\ndef fail():\n    return 1 / 0\n")
    (path / "fails.py").write_text("import beside\nbeside.fail()\n")
    (path / "config.yaml").write_text("width: 3\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(path.parent / "home"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        patch.chdir(path)
        yield path


def run(*command: str) -> Any:
    """What a script prints, as a person runs it that makes files which the group may write."""
    done = subprocess.run(
        [sys.executable, *command],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False, umask=0o002,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = run(SCRIPT)
    assert len(found) >= 46
    # No point is just the same error everywhere.
    errors = {name for name, value in found.items() if isinstance(value, str) and "Error: " in value}
    assert errors == {"relative import", "input"}
    return found


def differing(plain: dict[str, Any], rank: dict[str, Any]) -> set[str]:
    assert plain.keys() == rank.keys()
    both = [(name, plain[name], rank[name]) for name in plain if name != "environment"]
    differs = {name for name, here, there in both if here != there}
    told = PAGE.read_text(encoding="utf-8")
    assert not [name for name in differs if f"| {name} |" not in told]
    return differs


def more_variables(plain: dict[str, Any], rank: dict[str, Any]) -> set[str]:
    return rank["environment"].keys() - plain["environment"].keys()


def test_in_a_rank_of_this_machine(folder: Path, plain: dict[str, Any]) -> None:
    found = run(SCRIPT, "local")
    assert differing(plain, found["seen"]) == ANYWHERE
    assert more_variables(plain, found["seen"]) == VARIABLES
    assert found["seen"]["umask"] == ["0o2", "0o100664"]
    assert found["left"] == [None] * 3
    assert found["open"] == []
    assert found["box"] == [True, "Box of 1", True]
    assert f'File "{folder / SCRIPT}"' in found["traceback"][0]
    assert run(SCRIPT, "load", "saved.pickle") is True


@pytest.mark.proof("1 s of a processor")
def test_launched_by_the_command_line(folder: Path, plain: dict[str, Any]) -> None:
    command = ["-m", "skyward_tui", "run", f"{SCRIPT}:seen", "--json", "--arg", "to=seen.json"]
    (folder / "saved.pickle").unlink(missing_ok=True)
    assert run(*command)["ranks"][0]["outcome"] == "returned"
    found = json.loads((folder / "seen.json").read_text())
    assert differing(plain, found) == ANYWHERE
    assert more_variables(plain, found) == VARIABLES
    assert run(SCRIPT, "load", "saved.pickle") is True


@pytest.mark.proof("1 s of a processor")
def test_of_a_notebook(folder: Path) -> None:
    there, found = run("-c", CELL), run("-c", CELL, "local")
    assert differing(there, found["seen"]) == ANYWHERE
    assert found["seen"]["source of functions"][0].startswith("def square(x: int)")
    assert "# the line that a traceback shows" in found["traceback"][0]
    assert found["box"] == [True, "Box of 1", True]


@pytest.mark.proof("2 s of a processor")
async def test_over_ssh(folder: Path, plain: dict[str, Any]) -> None:
    host = Host(folder.parent / "host", noise="umask 002")
    await host.start()
    known = folder.parent / "known"
    known.write_text(host.known_line())
    try:
        arguments = (str(host.port), str(host.client_key), str(known))
        found = await asyncio.to_thread(run, SCRIPT, "ssh", *arguments)
    finally:
        await host.stop()
    rank = found["seen"]
    assert differing(plain, rank) == ANYWHERE
    for text, files in (("traceback", [SCRIPT]), ("traceback of a script", ["fails.py", "beside.py"])):
        assert all(f'File "{folder / file}"' in found[text][0] for file in files), found[text][0]
    assert rank["umask"] == ["0o2", "0o100664"]
    assert rank["environment"]["HOME"] == str(host.home)
    assert more_variables(plain, rank) - os.environ.keys() == VARIABLES | {"SSH_CONNECTION", "LC_CTYPE"}
    assert found["left"] == [None] * 3
    assert found["open"] == []
    assert found["box"] == [True, "Box of 1", True]
    # The files are the host's; a person reads of their own.
    assert f'File "{folder / SCRIPT}"' in found["traceback"][0]
    (copy,) = host.home.glob("**/saved.pickle")
    assert (copy.parent / SCRIPT).exists()
    assert copy.is_relative_to(host.home)
    assert run(SCRIPT, "load", str(copy)) is True
