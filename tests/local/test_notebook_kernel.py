"""Notebook cells in a real Jupyter kernel."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60

CELLS = """
import dataclasses, inspect, pickle, time
import skyward_core as sky

@dataclasses.dataclass
class Config:
    width: int

SCALE = 5

def helper(x):
    return x * SCALE

@sky.function
def train(config):
    print("of rank", sky.instance_info().rank)
    same = pickle.loads(pickle.dumps(config))
    return [helper(same.width), inspect.getsource(helper).splitlines()[1].strip()]

@sky.function
def fails():
    raise ValueError("from a cell")

@sky.function
def hostile():
    raise ValueError("<script>alert(1)</script>\\x1b]0;owned\\x07\\n<b>")

pool = sky.Compute(provider=sky.Local(), nodes=2)
compute = pool.__enter__()
# %%
print(train(Config(4)) @ compute)
# %%
SCALE = 7

def helper(x):
    return x + SCALE

print(train(Config(1)) @ compute)
# %%
try:
    fails() @ compute
except ValueError as error:
    print("caught:", error)
# %%
future = hostile().on_all(compute)
future.exception()
future
# %%
@sky.function
def sleeps(seconds):
    print("sleeps", seconds)
    time.sleep(seconds)

sleeps(600) @ compute
# %%
pool
# %%
sky.sweep(train, config=[Config(1), Config(2)]) >> compute
# %%
pool.__exit__(None, None, None)
print(pool.receipt)
pool
"""


class Notebook:
    """Kernel and the output of its cells.

    Attributes:
        shown: HTML that the last cell displayed: a list for each output area that was updated.
    """

    def __init__(self, client: Any, manager: Any) -> None:
        self._client = client
        self.manager = manager
        self.shown: list[list[str]] = []

    def restart(self) -> None:
        """Restart the kernel like a user does, which discards its variables."""
        self.manager.restart_kernel(now=True)
        self._client.wait_for_ready(timeout=PATIENCE)

    def run(self, cell: str, interrupt_at: str = "", ends: str = "ok") -> str:
        """Run a cell and return its output. Interrupt the cell after it has printed the given text."""
        printed: list[str] = []
        places: dict[str, list[str]] = {}

        def take(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                printed.append(content["text"])
                if interrupt_at and interrupt_at in content["text"]:
                    self.manager.interrupt_kernel()
            elif message["msg_type"] in ("display_data", "update_display_data", "execute_result"):
                place = content.get("transient", {}).get("display_id", message["msg_type"])
                places.setdefault(place, []).append(content["data"].get("text/html", ""))

        reply = self._client.execute_interactive(cell, timeout=PATIENCE, output_hook=take)
        assert reply["content"].get("ename", "ok") == ends, reply["content"]
        self.shown = list(places.values())
        return "".join(printed)


@pytest.fixture
def notebook(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import KernelManager

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "My Figures.ipynb"))  # as Jupyter's server tells
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(tmp_path / "k"))
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        yield Notebook(client, manager)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_notebook_cells_run_and_fail_as_in_a_script(notebook: Notebook) -> None:
    first, run, edited, failed, future, interrupted, pool, trials, last = CELLS.split("# %%")
    notebook.run(first)
    [line] = notebook.shown
    assert line[-1].startswith("<div>pool my-figures-") and " up: 2 of 2 nodes ready" in line[-1], line
    output = notebook.run(run)
    assert str([[20, "return x * SCALE"]] * 2) in output
    assert "of rank 0" in output and "of rank 1" in output
    assert str([[8, "return x + SCALE"]] * 2) in notebook.run(edited)
    assert "caught: fails failed: rank" in (output := notebook.run(failed)) and "from a cell" in output
    notebook.run(future)
    [[shown]] = notebook.shown
    assert "<b>hostile (" in shown and "ValueError: &lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "<script" not in shown and "\x1b" not in shown and "owned" not in shown
    notebook.run(interrupted, interrupt_at="sleeps 600", ends="KeyboardInterrupt")
    assert "sleeps 0" in notebook.run("sleeps(0) @ compute"), "the pool goes on, and runs what comes next"
    notebook.run(pool)
    [[shown]] = notebook.shown
    assert "<td>sleeps</td><td>cancelled</td>" in shown
    assert "<td>n1</td><td>ready</td>" in shown and "<td>hostile</td><td>failed</td>" in shown
    notebook.run(trials)
    [[shown]] = notebook.shown
    assert "2 trials, 2 ended" in shown and "<td>Config(width=2)</td><td>returned</td>" in shown
    assert "created 2, verified gone 2, unaccounted 0" in notebook.run(last)
    [[shown]] = notebook.shown
    assert "gone: created 2, verified gone 2" in shown


@pytest.mark.proof("3 s of a processor")
def test_restarted_notebook_kernel_reattaches_to_its_pool(notebook: Notebook) -> None:
    notebook.run("import skyward_core as sky\nsky.Compute(provider=sky.Local(), nodes=2, name='stays').__enter__()")
    notebook.restart()
    notebook.run("import skyward_core as sky\n@sky.function\ndef rank(): return sky.instance_info().rank")
    assert notebook.run("compute = sky.attach('stays')\nprint(rank() @ compute)") == "[0, 1]\n"
    assert "verified gone 2, unaccounted 0" in notebook.run("print(compute.down())")
