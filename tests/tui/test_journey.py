"""A journey through the real app, on a pseudo-terminal, with a real local pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward_core.client.session import Session
from skyward_core.store.ledger import Ledger
from tests.support.terminal import Terminal

NOT_INSTALLED = "torch._dynamo"  # what training uses of it has a stand-in


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path / "home", cwd=tmp_path)
    yield terminal
    terminal.close()
    session = Session()
    for row in session.ledger.live_pools():  # of a test that failed midway
        session.tear_down(row.name).result(60)
    session.detach()


@pytest.mark.proof("8 s of a processor")
def test_app_launches_shows_and_tears_down_the_ddp_example(terminal: Terminal, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    terminal.until("No pools yet")
    terminal.press("n", until="pools › launch")
    terminal.press("ctrl+o", until="packaged examples")
    terminal.press("d", "d", "p", until="│ ddp ")
    terminal.press("enter", until="[x] torch")
    terminal.press(*"epochs=2 samples=1024", until="train(epochs=2, samples=1024)")
    nodes = "4         ranks per node"
    unfocused = terminal.look(nodes)
    terminal.press(*["tab"] * 8)  # its four arguments, pool, name, provider, nodes
    # A key that comes sooner is another field's.
    terminal.until(lambda text: nodes in text and terminal.look(nodes) != unfocused)
    terminal.press("2", until="--nodes 2")
    terminal.press("ctrl+r", until="pools › ddp › ")
    terminal.until("✓ DONE 2/2", patience=120)
    terminal.until(lambda text: "mean " in text and text.count("✓ returned") >= 4)  # cards, results
    terminal.press("a", until=lambda text: "r000| " in text or "r001| " in text)
    terminal.press("ctrl+c", until="ctrl+c does not quit")
    terminal.press("X")
    terminal.until(lambda text: "Tear down ddp?" in text and "Cancel" in text)  # painted to its end
    focused = terminal.look("Cancel")
    terminal.press("tab")
    # A key that comes sooner is still the button's.
    terminal.until(lambda text: "Cancel" in text and terminal.look("Cancel") != focused)
    terminal.press("enter", until="created 2, verified gone 2, unaccounted 0")
    terminal.press("enter", "q")
    terminal.until("0 pools up")  # the list: the run's own screen says that the pool is gone, too
    terminal.press("q")
    assert terminal.ended() == 0
    ledger = Ledger()
    left = ledger.live_pools()
    ledger.close()
    assert left == []
