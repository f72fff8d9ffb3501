"""Forked processes of tests behave as started ones."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest

import skyward_core as sky
from tests.support.forked import CLONE, Loaded
from tests.support.processes import run_command
from tests.support.quick_starters import use_quick_starters

SAY = """
import json, os, random, signal, sys, threading
def say():
    kept = {name: str(signal.getsignal(name)) for name in signal.valid_signals()}
    streams = [(each.fileno(), each.encoding, each.errors, each.line_buffering, each.isatty())
               for each in (sys.stdin, sys.stdout, sys.stderr)]
    descriptors = sorted(int(each) for each in os.listdir("/proc/self/fd"))[:-1]
    print(json.dumps({
        "argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "parent": os.getppid(),
        "leads": os.getsid(0) == os.getpid(), "signals": kept, "blocked": len(signal.pthread_sigmask(0, ())),
        "threads": threading.active_count(), "streams": streams, "descriptors": descriptors, "path": sys.path,
    }))
    print(random.random(), os.getpid(), file=sys.stderr)
"""
THEN = "say()\nif len(sys.argv) > 2: signal.raise_signal(int(sys.argv[2]))\nsys.exit(int(sys.argv[1]))\n"
LOADED = Loaded([sys.executable], SAY, THEN)


def forked_answer(
    env: dict[str, str], folder: Path, *words: str, session: bool = False
) -> tuple[int, dict[str, object], str]:
    process = LOADED.start(
        ["say", *words], cwd=folder, env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True,
        start_new_session=session,
    )  # fmt: skip
    out, err = process.communicate(timeout=60)
    drawn, pid = err.split()
    assert int(pid) == process.pid
    return process.returncode, json.loads(out) if out else {}, drawn


def test_forked_process_equals_a_started_one(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "HOME"} | {"OWN": "é\udcff"}
    forked = [forked_answer(env, tmp_path, "3", session=session) for session in (False, True)]
    # An interpreter begins anew where its own variables are others.
    started = [forked_answer(env | {"PYTHONOWN": "1"}, tmp_path, "3", session=session) for session in (False, True)]
    for _, text, _ in started:
        assert text["env"].pop("PYTHONOWN") == "1"  # type: ignore[attr-defined]
    for mine, theirs in zip(forked, started, strict=True):
        assert mine[0] == theirs[0]
        assert {key: (mine[1][key], theirs[1][key]) for key in mine[1] if mine[1][key] != theirs[1][key]} == {}
    (status, text, _), (_, other, _) = forked
    assert (status, text["parent"], text["env"], text["cwd"]) == (3, os.getpid(), env, str(tmp_path))
    assert (text["leads"], other["leads"]) == (False, True)
    assert len({drawn for _, _, drawn in (*forked, *started)}) == 4, "each draws other numbers"


@pytest.mark.skipif(not CLONE, reason="forks workers on Linux only")
def test_forked_rank_equals_a_started_one(tmp_path: Path) -> None:
    @sky.function
    def describe() -> dict[str, Any]:
        import signal
        import threading

        handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        return {
            "argv": sys.argv, "path": sys.path, "flags": tuple(sys.flags), "leads": os.getsid(0) == os.getpid(),
            "handlers": {number: getattr(each, "__qualname__", str(each)) for number, each in handlers.items()},
            "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()), "umask": os.umask(0o077),
            "threads": sorted(each.name for each in threading.enumerate()),
            "descriptors": len([*Path("/proc/self/fd").iterdir()]),
            "modules": sorted(name for name in sys.modules if name.startswith(("skyward", "tests", "__main"))),
            "names": sorted(vars(sys.modules["__main__"])), "env": os.environ.keys() - {"_"},
            "forked": "become_worker" in Path("/proc/self/cmdline").read_text(),
        }  # fmt: skip

    ranks = []
    for forks in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SKYWARD_HOME", str(tmp_path / str(forks)))
            use_quick_starters(patch, forks_workers=forks)
            with sky.Compute(options=sky.Options(console=False)) as compute:
                ranks += describe() @ compute
    forked, started = ranks
    assert (forked.pop("forked"), started.pop("forked")) == (True, False)
    # Workers import this module when traceback is imported, which asyncio does.
    forked["modules"].remove("skyward_core.node.worker.returned_exceptions")
    assert {key: (forked[key], started[key]) for key in forked if forked[key] != started[key]} == {}


# The processes of a run that are forked do what started ones do: find each test, tell each failure, are replaced.


pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFTEST = """
import pytest
from tests.support.forked_runs import fork_runs

def pytest_xdist_setupnodes(config):
    fork_runs(config)

def pytest_generate_tests(metafunc):
    with open("collected", "a") as file:
        file.write(metafunc.function.__name__ + "\\n")
"""
TESTS = """
import os
from pathlib import Path
with open("imported", "a") as file:
    file.write(f"{os.getpid()}\\n")

def test_where():
    assert str(os.getpid()) not in Path("imported").read_text().split()

def test_fails():
    left, right = [1, 2], [1, 3]
    assert left == right

def test_dies():
    os._exit(3)

def test_after():
    print("said")
"""
FOLDER = {
    "conftest.py": "import pytest\n@pytest.fixture\ndef word():\n    return 'of the folder'\n",
    "neighbour.py": "WORD = 'of the folder'\n",
    "test_folder.py": "def test_folder(word):\n    import neighbour\n    assert neighbour.WORD == word\n",
}


def run(folder: Path, tests: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(tests)
    (folder / "folder").mkdir()
    for name, text in FOLDER.items():
        (folder / "folder" / name).write_text(text)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin", "PYTHONPATH": str(ROOT)}
    done = run_command([sys.executable, "-m", "pytest", "-n", "1", "-v", "--junitxml=report.xml"], cwd=folder, env=env)
    return done.stdout + done.stderr


def test_test_processes_are_forked_with_tests_collected(tmp_path: Path) -> None:
    output = run(tmp_path, TESTS)
    assert "2 failed, 3 passed" in output, output
    assert "assert [1, 2] == [1, 3]" in output and "At index 1 diff: 2 != 3" in output, output
    assert "crashed while running 'test_it.py::test_dies'" in output, output
    assert "already imported" not in output, output
    assert len((tmp_path / "imported").read_text().split()) == 1
    assert len(collected := (tmp_path / "collected").read_text().split()) == len({*collected}) == 5
    assert (tmp_path / "report.xml").read_text().count("<testcase ") == 5
