"""The app ends soon after its pseudo-terminal is closed, at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from skyward_core.client.session import Session
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.providers.local.provider import Local
from tests.support.loaded_calls import build_task
from tests.support.processes import descendants
from tests.support.terminal import PATIENCE, Terminal

HANGUP = 128 + signal.SIGHUP
# Before the app heeds signals, and after it has let go of everything, the system ends it.
AT_ANY_MOMENT = {HANGUP, -signal.SIGHUP}

# On a busy machine it takes longer to get that far than a person would wait for one that hangs.
PATIENT = (
    "from skyward_tui import shutdown_and_daemon_threads; shutdown_and_daemon_threads.LAST_RESORT = 50; "
    "from skyward_tui.cli.main import main; main()"
)

BUSY = """
import time
import skyward_core as sky

@sky.function
def busy():
    line = 0
    while True:
        line += 1
        print("line", line, flush=True)
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "home"


@pytest.fixture(scope="module")
def shared_session(shared_home: Path) -> Iterator[Session]:
    """Session with a running pool whose ranks print endlessly."""
    script = shared_home.parent / "busy.py"
    script.write_text(BUSY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(shared_home))
        session = Session()
        spec = PoolSpec(name="warm", provider=Local(), nodes=2, options=Options(console=False))
        session.create(spec).result(90)
        session.launch("warm", build_task(script, "busy", {})).result(90)
        yield session
        session.tear_down("warm").result(90)
        session.detach()


@pytest.fixture
def session(shared_session: Session, shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setenv("SKYWARD_HOME", str(shared_home))
    forget(shared_home)
    return shared_session


def forget(home: Path) -> None:
    """Delete the saved screens, so that the app starts with the list of pools."""
    (home / "app.json").unlink(missing_ok=True)


def go_on(terminal: Terminal, seconds: float) -> None:
    """Act as an ordinary terminal for a while: one that supports synchronized output and says so."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert terminal.read(0.01), terminal.text


@pytest.mark.proof("3 s of a processor")
@pytest.mark.parametrize("seed", range(3))
def test_app_ends_if_its_terminal_vanishes_during_the_start(seed: int, tmp_path: Path) -> None:
    moment = random.Random(seed)
    for _ in range(2):
        with closing(Terminal(tmp_path / "home", cwd=tmp_path, program=["-c", PATIENT])) as terminal:
            go_on(terminal, moment.uniform(0.0, 1.2))
            assert terminal.vanish() in AT_ANY_MOMENT


OWN = """
import sys
from skyward_core.client.session import Session
from skyward_core.model.specs import Image, Options, PoolSpec
from skyward_core.providers.local.provider import Local
from skyward_tui.app.app import SkywardApp

def session():
    session = Session()
    image = Image(setup=tuple(sys.argv[1:]))
    session.create(PoolSpec(name="own", provider=Local(), nodes=2, image=image, options=Options(console=False)))
    return session

app = SkywardApp(session)
app.run()
sys.exit(app.return_code)
"""


@pytest.mark.proof("1 s of a processor")
@pytest.mark.parametrize("setup", [[], ["exec sleep 3"]], ids=["up", "starting"])
def test_app_ends_and_its_own_pool_can_be_torn_down_later(setup: list[str], tmp_path: Path) -> None:
    with closing(Terminal(tmp_path / "home", cwd=tmp_path, program=["-c", OWN, *setup])) as terminal:
        terminal.until("0/2" if setup else "2/2")
        below = descendants(terminal.child.pid)
        assert terminal.vanish() == HANGUP
    session = Session()
    half_made = ["unfinished" if setup else "up"]  # who only looks finishes nothing
    assert [view.state for view in session.refresh().result(90)] == half_made
    assert session.tear_down("own").result(90).ok
    session.detach()
    ended(below)


STUCK = """
import sys, threading
from skyward_core.client.session import Session
from skyward_tui.app.app import SkywardApp

class Stuck(Session):
    def detach(self):
        threading.Event().wait()

app = SkywardApp(Stuck)
app.run()
sys.exit(app.return_code)
"""


@pytest.mark.proof("1 s of a processor")
def test_app_ends_although_the_session_does_not_detach(tmp_path: Path) -> None:
    with closing(Terminal(tmp_path / "home", cwd=tmp_path, program=["-c", STUCK])) as terminal:
        terminal.until("No pools yet")
        assert terminal.vanish() == HANGUP
    with closing(Terminal(tmp_path / "home", cwd=tmp_path, program=["-c", STUCK])) as terminal:
        terminal.until("No pools yet")
        terminal.press("q")
        assert terminal.ended() == 0


@pytest.mark.proof("3 s of a processor", after=1)
@pytest.mark.parametrize("seed", range(2))
def test_app_ends_if_its_terminal_vanishes_while_it_shows_a_run(
    seed: int, session: Session, shared_home: Path, tmp_path: Path, proofs: bool
) -> None:
    moment = random.Random(seed)
    for _ in range(3 if proofs else 1):
        forget(shared_home)
        with closing(Terminal(shared_home, cwd=tmp_path, program=["-c", PATIENT])) as terminal:
            terminal.until("▶ warm")
            terminal.press("\x1b[?2026;2$y")  # it can paint a frame as a whole: Textual then writes more pieces
            terminal.press("enter", until="pools › warm")
            go_on(terminal, moment.uniform(0.0, 1.0))
            below = descendants(terminal.child.pid)
            assert terminal.vanish() == HANGUP
            ended(below)
    assert session.pools()[0].state == "up"


@pytest.mark.proof("2 s of a processor")
def test_app_ends_if_its_terminal_vanishes_in_a_dialog_or_subprocess(
    session: Session, shared_home: Path, tmp_path: Path
) -> None:
    def asks(terminal: Terminal) -> None:
        terminal.press("q", until="keep running")

    def asks_about_an_end(terminal: Terminal) -> None:
        terminal.press("X", until="Tear down warm?")

    def is_in_the_shell(terminal: Terminal) -> None:
        terminal.press("\x1a")
        while not stopped(terminal.child.pid):
            terminal.read(0.02)

    for come_to in (asks, asks_about_an_end, is_in_the_shell):
        with closing(Terminal(shared_home, cwd=tmp_path)) as terminal:
            terminal.until("▶ warm")
            come_to(terminal)
            assert terminal.vanish() == HANGUP
    assert session.pools()[0].state == "up"


@pytest.mark.proof("1 s of a processor")
def test_app_ends_on_a_vanished_terminal_although_sighup_is_ignored(
    session: Session, shared_home: Path, tmp_path: Path
) -> None:
    program = "import signal; signal.signal(1, signal.SIG_IGN); from skyward_tui.cli.main import main; main()"
    with closing(Terminal(shared_home, cwd=tmp_path, program=["-c", program])) as terminal:
        terminal.until("▶ warm")
        terminal.press("enter", until="pools › warm")
        assert terminal.vanish() == HANGUP


@pytest.mark.proof("1 s of a processor")
def test_app_ends_after_repeated_sighup(session: Session, shared_home: Path, tmp_path: Path) -> None:
    with closing(Terminal(shared_home, cwd=tmp_path)) as terminal:
        terminal.until("▶ warm")
        for _ in range(5):
            os.kill(terminal.child.pid, signal.SIGHUP)
        assert terminal.vanish() in AT_ANY_MOMENT


WATCHED = """
import os, signal, threading
from pathlib import Path
from skyward_tui.cli.main import main

def tell(*_):
    Path("new").write_text(" ".join(f"{each.name} {each.native_id}" for each in threading.enumerate()))
    os.replace("new", "threads")

signal.signal(signal.SIGUSR1, tell)
main()
"""


@pytest.mark.proof("1 s of a processor")
def test_app_continues_after_it_was_suspended(session: Session, shared_home: Path, tmp_path: Path) -> None:
    with closing(Terminal(shared_home, cwd=tmp_path, program=["-c", WATCHED])) as terminal:

        def readers() -> list[str]:
            (file := tmp_path / "threads").unlink(missing_ok=True)
            os.kill(terminal.child.pid, signal.SIGUSR1)
            while not file.exists():
                terminal.read(0.02)
            words = file.read_text().split()
            return [ident for name, ident in zip(words[::2], words[1::2], strict=True) if name == "textual-input"]

        terminal.until("▶ warm")
        for key, shown in (("enter", "pools › warm"), ("q", "▶ warm")):
            before = readers()
            os.kill(terminal.child.pid, signal.SIGSTOP)
            while not stopped(terminal.child.pid):
                terminal.read(0.02)
            terminal.drain()
            terminal.screen.reset()
            os.kill(terminal.child.pid, signal.SIGCONT)
            while len(after := readers()) != 1 or after == before:
                assert len(after) < 2, after
            terminal.until("? keys")  # painted anew
            terminal.press(key, until=shown)


def ended(processes: set[int]) -> None:
    """Wait for the processes to end."""
    deadline = time.monotonic() + PATIENCE
    while left := [pid for pid in processes if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
