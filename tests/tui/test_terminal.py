"""Terminal state after signals and exits, and early keys, on a real pseudo-terminal."""

from __future__ import annotations

import os
import signal
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.providers.local.provider import Local
from skyward_core.tasks.function_pickling import make_task
from tests.support.terminal import PATIENCE, Terminal


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """Session with a running pool."""
    session = Session()
    session.create(PoolSpec(name="warm", provider=Local(), nodes=1, options=Options(console=False))).result(90)
    yield session
    session.tear_down("warm").result(90)
    session.detach()


def is_sane(terminal: Terminal) -> bool:
    """Check whether the terminal edits and echoes lines, as a shell requires."""
    flags = termios.tcgetattr(terminal.child.child_fd)[3]
    return bool(flags & termios.ICANON and flags & termios.ECHO)


def wait(true: Callable[[], bool], terminal: Terminal) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, terminal.text
        terminal.read(0.02)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def stops_there() -> int:
    value = 1
    breakpoint()
    return value


@pytest.mark.proof("1 s of a processor")
def test_debug_key_debugs_a_paused_rank_and_returns_to_the_app(tmp_path: Path) -> None:
    session = Session()
    options = Options(console=False, debug_wait=60)
    session.create(PoolSpec(name="stops", provider=Local(), nodes=1, options=options)).result(90)
    run = session.launch("stops", make_task(sky.function(stops_there)())).result(30)
    terminal = Terminal(tmp_path / "home", cwd=tmp_path)
    try:
        terminal.press("enter", until=lambda text: "paused" in text and "D debug" in text)
        (tmp_path / "click.py").write_text("raise SystemExit('a module of the person, called as one of ours is')")
        terminal.press("D", until="(Pdb)")
        assert is_sane(terminal)
        for typed, message in (("p 6 * 7\r", "42"), ("\x03", "pools › stops")):  # ctrl+c leaves, and ends nothing else
            terminal.press(typed, until=message)
        assert session.wait("stops", run.id).result(60).state == "done"
        terminal.until(lambda text: "✓ DONE" in text and "D debug" not in text)
        assert not is_sane(terminal)
        terminal.press("D", until="no rank is at a breakpoint")
    finally:
        terminal.close()
        session.tear_down("stops").result(90)
        session.detach()


def test_early_keys_take_effect_and_signals_restore_the_terminal(session: Session, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "home", cwd=tmp_path)
    try:
        terminal.press("enter")  # before anything is there to be seen
        terminal.until("pools › warm")
        assert not is_sane(terminal)
        for stop in (lambda: terminal.press("\x1a"), lambda: os.kill(terminal.child.pid, signal.SIGTSTP)):
            stop()
            wait(lambda: stopped(terminal.child.pid) and is_sane(terminal), terminal)
            terminal.drain()
            terminal.screen.reset()
            os.kill(terminal.child.pid, signal.SIGCONT)
            # Painted anew: it hears keys again.
            wait(lambda: "pools › warm" in terminal.text and not is_sane(terminal), terminal)
        terminal.press("q")
        # Whole: the footer of the screen before ends alike.
        shown = ("▶ warm", "1 rank: · 1 idle", "n new", "? keys")
        before = terminal.until(lambda text: all(each in text for each in shown))
        terminal.press("\x1a")
        wait(lambda: stopped(terminal.child.pid) and is_sane(terminal), terminal)
        terminal.screen.reset()
        os.kill(terminal.child.pid, signal.SIGCONT)
        # All of it, and not only what has changed meanwhile: a terminal comes back empty.
        lines = [line for line in before.splitlines() if "warm" not in line]
        terminal.until(lambda text: all(line in text for line in lines), patience=20)
        os.kill(terminal.child.pid, signal.SIGTERM)
        assert terminal.ended() == 128 + signal.SIGTERM
        assert is_sane(terminal)
        assert "Task was destroyed" not in terminal.text and "Traceback" not in terminal.text, terminal.text
    finally:
        terminal.close()
    (view,) = session.pools()
    assert view.state == "up"


UNKNOWN_SIZE = """
import fcntl, struct, termios
fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 0, 0, 0, 0))
from skyward_tui.entry import main
main()
"""


@pytest.mark.proof("0.5 s of a processor")
def test_terminal_without_size_is_laid_out_as_80_by_24(tmp_path: Path) -> None:
    """A serial console or a container terminal reports 0 rows and 0 columns."""
    terminal = Terminal(tmp_path, size=(80, 25), program=("-c", UNKNOWN_SIZE))
    try:
        terminal.until("quit")
        assert "quit" in terminal.screen.display[23] and not terminal.screen.display[24].strip()
        terminal.press("q")
        assert terminal.ended() == 0
    finally:
        terminal.close()


STUCK = """
import sys, threading
from textual.drivers._writer_thread import WriterThread
from skyward_core.client.session import Session
from skyward_tui.app import app as module

def note():
    open("blocked", "w").close()

def block(*_):
    note()
    threading.Event().wait()

def write(thread, text):
    if thread._queue.full():
        note()
    thread._queue.put(text)

what = sys.argv[1]
module.DETACH_SECONDS = 60
if what == "detach":
    Session.detach = block
if what == "output":
    WriterThread.write = write
app = module.SkywardApp(block if what == "session" else Session)
app.run()
sys.exit(app.return_code)
"""


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("what", ["session", "detach", "output"])
def test_signal_ends_app_although_it_is_blocked(what: str, tmp_path: Path) -> None:
    """The kernel's timer ends an app that does not exit, with another exit status."""
    terminal = Terminal(tmp_path / "home", cwd=tmp_path, program=("-c", STUCK, what))
    try:
        blocked = (tmp_path / "blocked").exists
        terminal.until(lambda text: blocked() if what == "session" else "No pools yet" in text)
        while what == "output" and not blocked():
            terminal.press("?", "escape")
            time.sleep(0.01)
        os.kill(terminal.child.pid, signal.SIGTERM)
        status = terminal.ended_alone() if what == "output" else terminal.ended()
        assert (status, blocked()) == (128 + signal.SIGTERM, True)
    finally:
        terminal.close()
