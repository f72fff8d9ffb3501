"""Commands and scripts whose terminal vanishes end, and leave of their pools what they should."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest

from tests.support.cli import PATIENCE, Cli

SLOW_END = """
import os, signal, time
from pathlib import Path
import skyward_core as sky

@sky.function
def stays():
    try:
        while True:
            print("rank is here", flush=True)
            time.sleep(0.05)
    finally:
        Path("ending").touch()
        time.sleep(1)
        Path("ended").touch()

if __name__ == "__main__":
    with sky.Compute(name="s", nodes=2, options=sky.Options(grace=30)) as compute:
        stays() @ compute
"""


class Vanishing:
    """A command on a pseudo-terminal."""

    def __init__(self, cli: Cli, command: Sequence[str]) -> None:
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", *command],
            env=cli.env,
            cwd=str(cli.folder),
            timeout=PATIENCE,  # type: ignore[arg-type]
        )

    def vanish(self) -> None:
        self.child.ptyproc.fileobj.close()

    def again(self) -> None:
        """Have a shell pass the signal on, too."""
        os.kill(self.child.pid, signal.SIGHUP)

    def status(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while not (ended := os.waitpid(self.child.pid, os.WNOHANG))[0]:
            assert time.monotonic() < deadline, "it did not end"
            time.sleep(0.02)
        self.child.ptyproc.terminated = True
        return os.waitstatus_to_exitcode(ended[1])


@pytest.fixture
def begun(cli: Cli) -> Iterator[Callable[..., Vanishing]]:
    cli.write("slow_end.py", SLOW_END)
    commands = []

    def begin(*command: str) -> Vanishing:
        commands.append(Vanishing(cli, command))
        return commands[-1]

    yield begin
    for command in commands:
        command.child.close(force=True)


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.proof("1 s of a processor")
def test_a_script_tears_its_pool_down_though_it_is_told_more_than_once(
    cli: Cli, begun: Callable[..., Vanishing]
) -> None:
    script = begun("skyward_core", "slow_end.py")
    script.child.expect("rank is here")
    script.vanish()
    until((cli.folder / "ending").exists)
    script.again()
    script.again()
    assert script.status() == 128 + signal.SIGHUP
    assert (cli.folder / "ended").exists()
    assert cli.pools() == {}


def test_a_second_signal_cuts_no_teardown_short(cli: Cli, begun: Callable[..., Vanishing]) -> None:
    script = begun("skyward_core", "slow_end.py")
    script.child.expect("rank is here")
    os.kill(script.child.pid, signal.SIGTERM)
    until((cli.folder / "ending").exists)
    script.vanish()
    os.kill(script.child.pid, signal.SIGTERM)
    assert script.status() == 128 + signal.SIGTERM
    assert (cli.folder / "ended").exists()
    assert cli.pools() == {}


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("seed", range(4))
def test_a_run_takes_its_pool_down_at_any_moment(seed: int, cli: Cli, begun: Callable[..., Vanishing]) -> None:
    moment = random.Random(seed)
    run = begun("skyward_tui", "run", "slow_end.py", "--pool", "s", "-n", "2")
    run.child.expect("pool s: 2 nodes")
    time.sleep(moment.uniform(0.0, 1.0))
    run.vanish()
    run.again()
    assert run.status() == 130
    assert cli.pools() == {}


@pytest.mark.proof("1 s of a processor")
def test_a_pool_that_was_to_be_kept_is_kept_though_we_are_told_more_than_once(
    cli: Cli, begun: Callable[..., Vanishing]
) -> None:
    run = begun("skyward_tui", "run", "slow_end.py", "--pool", "s", "--keep")
    run.child.expect("rank is here")
    run.vanish()
    run.again()
    until((cli.folder / "ending").exists)
    run.again()
    assert run.status() == 130
    with cleared(cli):
        assert list(cli.pools()) == ["s"]


@pytest.mark.proof("1 s of a processor")
def test_no_answer_is_no_wish(cli: Cli, begun: Callable[..., Vanishing]) -> None:
    """A question stands on the terminal of somebody who only watches."""
    assert cli("run", "slow_end.py", "--pool", "s", "--detach").returncode == 0
    with cleared(cli):
        watch = begun("skyward_tui", "attach", "s")
        watch.child.expect("run ")
        watch.child.expect("rank is here")
        os.kill(watch.child.pid, signal.SIGINT)
        watch.child.expect("etach")
        watch.vanish()
        assert watch.status() == 130
        assert not Path(cli.folder / "ending").exists(), "the run goes on"
        assert list(cli.pools()) == ["s"]


@pytest.mark.proof("1 s of a processor")
@pytest.mark.parametrize("command", [("attach", "s"), ("logs", "-f", "s")])
def test_who_only_looks_leaves_all_as_it_is(
    command: tuple[str, ...], cli: Cli, begun: Callable[..., Vanishing]
) -> None:
    assert cli("run", "slow_end.py", "--pool", "s", "--detach").returncode == 0
    with cleared(cli):
        watch = begun("skyward_tui", *command)
        watch.child.expect("rank is here")
        watch.vanish()
        assert watch.status() in (130, -signal.SIGHUP)
        assert list(cli.pools()) == ["s"]


@contextmanager
def cleared(cli: Cli) -> Iterator[None]:
    try:
        yield
    finally:
        cli("down", "s", "-y")
