"""A rank is an ordinary Python process: one script inspects both, and differs only as documented."""

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
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rank-environment.md"
PATIENCE = 100
WORDS = ("--lr", "0.1", "a b", "", "--token", "word-for-nobody-else")
ANYWHERE = {"signals", "session", "faulthandler", "threads", "buffering", "unraisablehook", "names in main"}
if sys.version_info[:2] != (3, 12):  # which freezes what it has made of itself in any process
    ANYWHERE |= {"frozen garbage"}
VARIABLES = {
    "COMPUTE_POOL", "SKYWARD_ATTEMPT", "SKYWARD_CHECKPOINT_DIR", "SKYWARD_NODE",
    "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_",
}  # fmt: skip

# A cell of a notebook: a main module without a file, and source that is known by a name that no file has.


@pytest.fixture(scope="module", autouse=True)
def no_own_ways() -> Iterator[None]:
    """Remove Python's environment variables, because only local ranks inherit them and no property is about them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Project with the script, and a separate home folder."""
    path = tmp_path_factory.mktemp("compat") / "project"
    path.mkdir()
    shutil.copy(HERE / SCRIPT, path)
    beside = "import sys\nWORD, ARGV = 'next door', list(sys.argv)\ndef fail():\n    return 1 / 0\n"
    (path / "beside.py").write_text(beside)
    (path / "fails.py").write_text("import beside\nbeside.fail()\n")
    (path / "config.yaml").write_text("width: 3\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(path.parent / "home"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        patch.chdir(path)
        yield path


def run(*command: str, where: str = "plain") -> Any:
    """Return the output of the script, run with a umask that allows group-writable files."""
    done = subprocess.run(
        [sys.executable, *command], env=os.environ | {"WHERE": where},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False, umask=0o002,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = run(SCRIPT, *WORDS)
    assert len(found) >= 50
    assert found["sys.argv"] == [[SCRIPT, *WORDS]] * 2
    # No point is just the same error everywhere.
    errors = {name for name, value in found.items() if isinstance(value, str) and "Error: " in value}
    assert errors == {"relative import", "input"}
    return found


def differing(plain: dict[str, Any], rank: dict[str, Any]) -> set[str]:
    assert plain.keys() == rank.keys()
    both = [(name, plain[name], rank[name]) for name in plain if name != "environment"]
    differs = {name for name, here, there in both if here != there}
    output = PAGE.read_text(encoding="utf-8")
    assert not [name for name in differs if f"| {name} |" not in output]
    assert set(rank["names in main"]) <= {*plain["names in main"], "_spaces"}
    return differs


def more_variables(plain: dict[str, Any], rank: dict[str, Any]) -> set[str]:
    return rank["environment"].keys() - plain["environment"].keys()


@pytest.fixture(scope="module")
def local(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = run(SCRIPT, *WORDS, where="local open")
    return found


def contents(of: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in of.iterdir()}


def left_open(*words: str) -> dict[str, str]:
    """Return the files that a plain process leaves open at its end."""
    subprocess.run([sys.executable, SCRIPT, "open", *words], check=True, timeout=PATIENCE)
    return contents(Path(words[0]))


def test_local_rank_differs_from_a_plain_process_only_as_documented(
    folder: Path, plain: dict[str, Any], local: dict[str, Any]
) -> None:
    found = local
    assert differing(plain, found["seen"]) == ANYWHERE
    assert more_variables(plain, found["seen"]) == VARIABLES
    assert found["seen"]["umask"] == ["0o2", "0o100664"]
    assert found["left"] == [None] * 3
    assert found["open"] == []
    assert found["box"] == [True, "Box of 1", True]
    assert f'File "{folder / SCRIPT}"' in found["traceback"][0]
    assert run(SCRIPT, "load", "saved.pickle") is True


@pytest.mark.proof("1 s of a processor")
def test_files_left_open_are_written_as_by_a_plain_process(folder: Path, local: dict[str, Any]) -> None:
    there = left_open("plain", "numpy")
    assert len(there) > 25 and all(there.values()), "a plain process has lost some"
    assert contents(folder / "left") == there
    assert contents(folder / "left-by-script") == left_open("plain-daemon", "numpy", "daemon")


CLIENT = """
import subprocess, sys
import skyward_core as sky

@sky.function
def words(more=()):
    sys.argv += more
    return sys.argv

if __name__ == "__main__":
    if sys.argv[1] == "second":
        with sky.attach("shared") as compute:
            print(words() >> compute)
    else:
        with sky.Compute(provider=sky.Local(), name="shared", options=sky.Options(console=False)) as compute:
            print(words() >> compute)
            print(words(["added"]) >> compute)
            print(words() >> compute, flush=True)
            subprocess.run([sys.executable, "client.py", "second", "--lr", "0.2"], check=True)
            print(words() >> compute)
"""


@pytest.mark.proof("1 s of a processor")
def test_each_client_of_a_pool_has_its_own_argv(folder: Path) -> None:
    (folder / "client.py").write_text(CLIENT)
    command = [sys.executable, "client.py", "first", "--lr", "0.1"]
    output = subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True, text=True).stdout
    first, second = command[1:], ["client.py", "second", "--lr", "0.2"]
    assert output.splitlines() == [str(each) for each in (first, [*first, "added"], [*first, "added"], second, first)]


@pytest.mark.proof("2 s of a processor")
async def test_rank_over_ssh_is_like_a_plain_process(folder: Path, plain: dict[str, Any]) -> None:
    host = Host(folder.parent / "host", noise="umask 002")
    await host.start()
    known = folder.parent / "known"
    known.write_text(host.known_line())
    try:
        where = f"ssh {host.port} {host.client_key} {known}"
        found = await asyncio.to_thread(run, SCRIPT, *WORDS, where=where)
    finally:
        await host.stop()
    rank = found["seen"]
    assert differing(plain, rank) == ANYWHERE | {"sys.path", "current folder"}
    assert rank["current folder"] == rank["sys.path"][0]
    assert rank["sys.path"][1].endswith("/all.zip")
    assert rank["sys.path"][2:] == plain["sys.path"][1:]
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
