"""``skyward-tui run --watch`` on a terminal, on a real pool: the summary is what stays."""

from __future__ import annotations

from pathlib import Path

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


def test_a_block_while_it_runs_and_the_summary_afterwards(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(SCRIPT)
    until = tmp_path / "done"
    program = ("-m", "skyward_tui", "run", "t.py", "-a", f"until={until}", "--nodes", "2", "--watch")
    terminal = Terminal(tmp_path / "home", (110, 30), tmp_path, program)
    try:
        terminal.until(lambda text: "● 2 running" in text and "loss 0.5" in text and "| begun" in text)
        assert "train (" in terminal.text and "0/2 ended" in terminal.text
        until.touch()
        assert terminal.ended() == 0
        assert terminal.text.count("✓ returned") == 2 and "is down: created 2" in terminal.text
        assert "what its ranks printed: skyward-tui logs " in terminal.text
        assert "ended" not in terminal.text and "begun" not in terminal.text
    finally:
        terminal.close()
