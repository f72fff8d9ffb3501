"""``skyward-tui stacks`` where ranks cannot be read: nobody is sent a signal without a person's word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from skyward_core.model.errors import UsageError
from skyward_core.model.thread_stacks import Stacks
from skyward_tui.cli.commands import debug_stacks_profile
from skyward_tui.cli.console import Console
from tests.support.fake_session import NOW, FakeSession
from tests.support.some_stacks import REDUCING, VALIDATING, stack


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    """Of two ranks the second one cannot be read."""
    made = FakeSession()
    unread = stack(1, why="py-spy is not installed on its node", answers=True)
    made.taken = Stacks(NOW, (stack(0, *REDUCING), unread), "r1")
    made.signalled = Stacks(NOW, (stack(1, *VALIDATING, how="signal"),), "r1")

    @contextmanager
    def opened(console: Console) -> Iterator[FakeSession]:
        yield made

    monkeypatch.setattr(debug_stacks_profile, "open_session", opened)
    monkeypatch.setattr(
        debug_stacks_profile, "live_run", lambda session, word: (SimpleNamespace(key="p.1", spec={}), "r1")
    )
    return made


@pytest.mark.parametrize(
    ("terminal", "answer", "signal", "sent"),
    [
        (False, "", False, False),
        (False, "", True, True),
        (True, "", False, False),
        (True, "no", False, False),
        (True, "yes", False, True),
    ],
)
def test_a_signal_needs_a_yes_or_the_option(
    session: FakeSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
    answer: str,
    signal: bool,
    sent: bool,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Console, "is_terminal", terminal)

    def ask(self: Console, question: str) -> str:
        asked.append(question)
        return answer

    monkeypatch.setattr(Console, "ask", ask)
    if signal and session.signalled is not None:
        session.taken = session.signalled
    status = debug_stacks_profile.stacks.function(Console(), "r1", signal=signal, threads=False)
    out, err = capsys.readouterr()
    assert any(each[2] for each in session.asked_stacks) == sent
    assert status == (0 if sent else 1), "who is not known is no success"
    assert bool(asked) == (terminal and not signal)
    if not signal:
        assert "rank 1 cannot be read: py-spy is not installed on its node" in err and "EINTR" in err
        assert ("--signal allows it" in err) == (not terminal)
    assert ("rank 1 not: validate, train.py:57" in out) == (sent and not signal)
    assert ("not known: py-spy is not installed" in out) == (not sent)


def test_of_a_pool_that_is_over_there_are_none(session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def over(session: FakeSession, word: str) -> None:
        raise UsageError(f"pool {word} has ended, and its ranks with it")

    monkeypatch.setattr(debug_stacks_profile, "live_run", over)
    with pytest.raises(UsageError, match="pool p has ended"):
        debug_stacks_profile.stacks.function(Console(), "p", signal=True, threads=False)
    assert not session.asked_stacks
