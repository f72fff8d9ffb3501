"""``--watch`` on a terminal, on a real pool: the summary is what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.terminal import Terminal

SCRIPT = """
import skyward_core as sky

@sky.function
def train(until: str):
    from pathlib import Path
    import time
    sky.log(step=1, loss=0.5)
    print("begun", flush=True)
    while not Path(until).exists():
        time.sleep(0.05)
    return 7
"""


@pytest.mark.proof("4 s of a processor")
def test_a_block_while_it_runs_and_the_summary_afterwards(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(SCRIPT)
    (tmp_path / "t.yaml").write_text("setup: echo set up\nrun: echo run >> told; sleep 1\n")
    until = tmp_path / "done"

    def terminal(*words: str) -> Terminal:
        return Terminal(tmp_path / "home", (110, 30), tmp_path, ("-m", "skyward_tui", *words))

    ran = terminal("run", "t.py", "-a", f"until={until}", "--nodes", "2", "--pool", "w", "--keep", "--watch")
    attached = None
    try:
        ran.until(lambda text: "● 2 running" in text and "loss 0.5" in text and "| begun" in text)
        assert "train (" in ran.text and "0/2 ended" in ran.text
        attached = terminal("attach", "w", "--watch")
        attached.until(lambda text: "● 2 running" in text and "0/2 ended" in text)
        until.touch()
        for each in (ran, attached):
            assert each.ended() == 0
            assert each.text.count("✓ returned") == 2
            assert "what its ranks printed: skyward-tui logs " in each.text
            assert "ended" not in each.text and "begun" not in each.text
    finally:
        ran.close()
        if attached is not None:
            attached.close()
    job = terminal("launch", "t.yaml", "-c", "w", "--watch", "--down")
    try:  # each of its steps has a block
        job.until(lambda text: "● setup (" in text or "● run (" in text)
        assert job.ended() == 0
        assert "is down: created 2" in job.text and "ended" not in job.text
    finally:
        job.close()
