"""The app fails by itself: whoever sits before it is told what that means, and no variable is shown."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from skyward_core.client.session import Session
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.providers.local.provider import Local
from tests.support.terminal import Terminal

# A screen cannot be opened: a module does not fit the others, as where an update has put another one there.
FAILS = """
from skyward_tui.app import crash_report as own_failure
from skyward_tui.screens import settings
def fails(self, *_):
    token = "hunter" + "2"
    raise ImportError("cannot import name 'fit' \x1b]52;c;b3duZWQ=\x1b\\\\")
settings.SettingsScreen.__init__ = fails
{more}
from skyward_tui.cli.main import main
main()
"""


def said(home: Path, more: str = "") -> str:
    with closing(Terminal(home, (160, 48), program=("-c", FAILS.format(more=more)))) as terminal:
        terminal.until("q quit")
        terminal.press(",")
        assert terminal.ended() == 1
        return terminal.text


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
        session = Session()
        spec = PoolSpec(name="warm", provider=Local(), nodes=1, options=Options(console=False))
        session.create(spec).result(90)
        yield session
        session.tear_down("warm").result(90)
        session.detach()


def test_what_becomes_of_pools_is_said_and_no_variable_is_shown(tmp_path: Path, warm: Session) -> None:
    text = said(tmp_path / "home")
    assert "ImportError: cannot import name 'fit' �]52;c;b3duZWQ=�" in text and "hunter2" not in text
    assert "skyward-tui crashed. This is a bug:" in text
    assert "Pools and their runs are still up: warm. Run skyward-tui to see them again." in text
    assert [pool.state for pool in warm.pools()] == ["up"]


@pytest.mark.proof("1 s of a processor")
def test_files_that_changed_while_it_was_open_are_named_as_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "updated"
    folder.mkdir()
    (folder / "module.py").touch()
    os.utime(folder / "module.py", (time.time() + 60,) * 2)
    text = said(tmp_path / "home", f"import pathlib\nown_failure.PACKAGES = (pathlib.Path({str(folder)!r}),)")
    assert "The files of skyward-tui changed while it was open, for example by an update. Start it again." in text
    assert "still up" not in text and "a bug" not in text
