"""An environment that a pool is about to start ranks in, and a prune in another process: never gone under them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.node.bootstrap import image_environment
from skyward_core.store.state_folder import ENVIRONMENTS_FOLDER
from tests.support.child import Child
from tests.support.waiting import wait_until
from tests.support.wheels import tiny_wheels

IMAGE: dict[str, Any] = {"setup": ["echo made >> made"]}
# Says where it is, and goes on when its input ends.
PRUNE = """
import fcntl, sys
from skyward_core.store.ledger import Ledger
from skyward_core.store.pruning import prune_environments

ledger, flock = Ledger(), fcntl.flock

def halting(*args):
    if sys.argv[1] == "looked":
        halt()
    flock(*args)
    if sys.argv[1] == "locked":
        halt()

def halt():
    print("here", flush=True)
    sys.stdin.read()

fcntl.flock = halting
print(*(each.folder for each in prune_environments(ledger, age=3600.0)))
"""


@sky.function
def runs_in() -> str:
    import skytiny  # type: ignore[import-not-found]  # noqa: F401

    return sys.executable


@contextmanager
def prune(halted: str) -> Iterator[Callable[[], list[str]]]:
    """A process that has come so far. Yields what lets it go on, and tells what it has removed."""
    command = [sys.executable, "-c", PRUNE, halted]
    with Child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        yield lambda: process.communicate()[0].split()


@pytest.fixture
def root(home: Path, tmp_path: Path) -> Path:
    """Where environments are; that of ``IMAGE`` is there, and has not been used for long."""
    folder = home / ENVIRONMENTS_FOLDER
    folder.mkdir(parents=True)
    image_environment.ensure_environment(IMAGE, folder, {}, str(tmp_path), lambda line: None)
    make_old(folder)
    return folder


def make_old(root: Path) -> None:
    for made in root.glob(f"env-*/{image_environment.MADE_FILE}"):
        os.utime(made, (0, 0))


def test_one_that_is_taken_after_the_prune_has_looked_at_it_stays(root: Path) -> None:
    with prune("looked") as go_on:
        python = image_environment.find_ready_environment(IMAGE, root)
        assert go_on() == []
    assert python == sys.executable
    assert image_environment.find_ready_environment(IMAGE, root) == python


def test_one_that_is_just_being_removed_is_not_ready(root: Path) -> None:
    with prune("locked") as go_on:
        assert image_environment.find_ready_environment(IMAGE, root) == ""
        assert len(go_on()) == 1
    assert image_environment.find_ready_environment(IMAGE, root) == ""


def test_whoever_wants_one_that_is_just_being_removed_has_it_made_anew(root: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with prune("locked") as go_on:
        wants = threading.Thread(
            target=image_environment.ensure_environment, args=(IMAGE, root, {}, str(tmp_path), said.append)
        )
        wants.start()
        wait_until(lambda: bool(said))
        assert "waiting for another process" in said[0]
        assert len(go_on()) == 1
        wants.join()
    assert (tmp_path / "made").read_text() == "made\n" * 2
    assert image_environment.find_ready_environment(IMAGE, root) == sys.executable


def test_one_that_is_waited_for_and_stays_counts_as_used(root: Path, tmp_path: Path) -> None:
    """A prune that only tells what would go has it locked for a moment, too."""
    said: list[str] = []
    (lock,), (made,) = root.glob("*.lock"), root.glob(f"env-*/{image_environment.MADE_FILE}")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        wants = threading.Thread(
            target=image_environment.ensure_environment, args=(IMAGE, root, {}, str(tmp_path), said.append)
        )
        wants.start()
        wait_until(lambda: bool(said))
    wants.join()
    assert (tmp_path / "made").read_text() == "made\n"
    assert made.stat().st_mtime > 0


def test_many_start_in_one_at_once(root: Path) -> None:
    """Who only uses it keeps nobody else out."""
    (lock,) = root.glob("*.lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert image_environment.find_ready_environment(IMAGE, root) == sys.executable


@pytest.mark.proof("1 s of a processor")
def test_ranks_start_though_a_prune_was_about_to_remove_what_they_run_in(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in tiny_wheels(tmp_path / "wheels", "1.0").items():
        monkeypatch.setenv(name, value)
    image, options = sky.Image(pip=["skytiny==1.0"]), sky.Options(console=False)
    with sky.Compute(provider=sky.Local(), image=image, options=options) as compute:
        found = runs_in() @ compute
    make_old(home / ENVIRONMENTS_FOLDER)
    with prune("looked") as go_on, sky.Compute(provider=sky.Local(), image=image, options=options) as compute:
        assert go_on() == []
        assert runs_in() @ compute == found
    assert found[0].startswith(str(home / ENVIRONMENTS_FOLDER))
