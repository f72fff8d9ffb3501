"""Notebook output: pool names, the startup line and escaped HTML."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.api import notebook_display
from skyward_core.api.notebook_display import StartupProgress, default_pool_name, format_progress
from skyward_core.model.outcomes_states_and_alerts import RootCause
from skyward_core.model.specs import generate_pool_name
from skyward_core.views.pool_view import NodeView, PoolView, RunView, TaskView

EVIL = "<script>alert(1)</script>&\x1b]0;owned\x07\u202etxt.exe\n<img src=x onerror=alert(2)>"


class Cell:
    """Output area of IPython that records what it shows."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []
        self.places = 0

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        self.places += 1
        self.update(data, raw=raw)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        self.shown.append(data)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell = Cell()
    shell: Callable[[], Any] = lambda: SimpleNamespace(kernel=object())  # noqa: E731
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=shell, display=cell))  # type: ignore[arg-type]
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    return cell


def test_default_pool_name_in_a_notebook_is_the_notebook_name(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_pool_name() == "notebook", "of which nothing is known"
    monkeypatch.setenv("JPY_SESSION_NAME", "a1b2-c3d4")
    assert default_pool_name() == "notebook", "a session that is no notebook's"
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/Train it.ipynb")
    assert generate_pool_name(default_pool_name()).startswith("train-it-")
    monkeypatch.setattr(sys.modules["__main__"], "__vsc_ipynb_file__", "/x/Other.ipynb", raising=False)
    assert generate_pool_name(default_pool_name()).startswith("other-")
    shell: Callable[[], Any] = lambda: SimpleNamespace()  # noqa: E731
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", shell)
    assert default_pool_name() == sys.argv[0], "IPython's prompt is no notebook"


def test_startup_progress_of_a_pool_is_updated_in_one_line(cell: Cell) -> None:
    pool = PoolView("p", nodes=[NodeView(0, "ready"), NodeView(1, "synced", detail=EVIL)])
    listeners: list[Any] = []

    def subscribe(hear: Any, log: None) -> Callable[[], None]:
        listeners.append(hear)
        return listeners.clear

    line, work = StartupProgress(), Future[None]()
    line.follow(pool, SimpleNamespace(subscribe=subscribe))  # type: ignore[arg-type]
    waiting = threading.Thread(target=line.wait, args=[work])
    waiting.start()
    while not cell.shown:
        pass
    pool.nodes[1], pool.state = NodeView(1, "ready"), "up"
    listeners[0]("an event")
    work.set_result(None)
    waiting.join(10)
    assert cell.places == 1 and len(cell.shown) >= 2
    first, last = cell.shown[0], cell.shown[-1]
    assert "pool p starting: 1 of 2 nodes ready" in first["text/plain"] and "n1 synced" in first["text/plain"]
    assert "<script" not in first["text/html"] and "\x1b" not in "".join(first.values())
    assert last["text/plain"].startswith("pool p up: 2 of 2 nodes ready")


def test_progress_line_of_a_failed_pool_has_the_reason() -> None:
    pool = PoolView("p", state="failed", detail="no such host", nodes=[NodeView(0, "requested")])
    assert format_progress(pool, 3.4) == "pool p failed: 0 of 1 nodes ready, 3 s: no such host"


def test_notebook_html_escapes_text_of_ranks_and_hosts() -> None:
    run = RunView("r1", "p", EVIL, "broadcast", 2, 0.0, state="failed", ended_at=2.0)
    run.tasks = {0: TaskView(0, 0, 0, "raised"), 1: TaskView(1, 1, 1, "running")}
    run.root_cause = RootCause(0, "raised", EVIL, EVIL)
    pool = PoolView(EVIL, provider=EVIL, nodes=[NodeView(0, "gone", detail=EVIL, address=EVIL)], runs={"r1": run})
    for shown in (
        notebook_display.run_html(run),
        notebook_display.pool_html(pool),
        notebook_display.unseen_html("pool", EVIL, EVIL),
        notebook_display.table_html(EVIL, [EVIL], [[EVIL]]),
    ):
        assert "&lt;script&gt;alert(1)" in shown
        assert "<script" not in shown and "<img" not in shown and "onerror=alert(2)>" not in shown
        assert not set(shown) & {"\x1b", "\x07", "\u202e"} and "owned" not in shown
    assert "1 raised, 1 running" in notebook_display.run_html(run) and "2.0 s" in notebook_display.run_html(run)


def test_long_notebook_table_is_cut_and_counts_omitted_rows() -> None:
    shown = notebook_display.table_html("trials", ["#"], [[str(row)] for row in range(notebook_display.ROWS + 5)])
    assert shown.count("<tr>") == notebook_display.ROWS + 1 and "and 5 more" in shown
    assert "x" * 400 not in notebook_display.table_html("", ["a"], [["x" * 400]])


def test_scripts_do_not_import_notebook_support(tmp_path: Path) -> None:
    import subprocess

    code = "import sys, skyward_core as sky; sky.Compute(); print({'html', 'IPython'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == "set()\n"
