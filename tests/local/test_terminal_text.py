"""Ranks that write what a terminal would act on, and what then comes out at a real one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pexpect
import pyte
import pytest

from tests.support.cli import PATIENCE, Cli
from tests.support.hostile_text import harm

EVIL = "E\x1b]52;c;aGk=\x07\x1b]0;t\x1b\\\x1b[\x002J\x9b2J\u202eV\tW\nOTHER"

SCRIPT = f"""
import skyward_core as sky

EVIL = {EVIL!r}

@sky.function
def speak(fails: bool = False):
    print("\\x1b[31mred", EVIL, flush=True)
    sky.log(**{{EVIL: 1.5}})
    if fails:
        raise type(EVIL.replace("\\0", ""), (Exception,), {{}})(EVIL)
    return {{EVIL: EVIL, "loss": 0.5}}

if __name__ == "__main__":
    with sky.Compute(nodes=2) as compute:
        print([each["loss"] for each in speak() @ compute])
        print("before the failure")
        try:
            speak(fails=True) @ compute
        except sky.RunError as error:
            print(error)
"""


BARS = f"""
import sys
import time
from pathlib import Path

import skyward_core as sky

@sky.function
def bar(seen: str) -> None:
    rank = sky.instance_info().rank
    for percent in (10, 20):
        print(f"\\r {{percent}}% of {{rank}}", {EVIL!r}.replace("\\n", ""), end="", file=sys.stderr, flush=True)
    while not Path(seen).exists():
        time.sleep(0.01)
    print(f"\\r100% of {{rank}}", file=sys.stderr)

if __name__ == "__main__":
    with sky.Compute(nodes=2) as compute:
        bar(sys.argv[1]) @ compute
        print("the script goes on")
"""
DRAWN = re.compile(r"\r(\x1b\[J|\x1b\[\d+A)?")


def all_of(child: pexpect.spawn[str]) -> str:
    child.expect(pexpect.EOF, timeout=PATIENCE)
    child.close()
    return child.before or ""


def test_commands_and_scripts_let_nothing_but_text_and_colours_through(cli: Cli) -> None:
    cli.write("speak.py", SCRIPT)
    script = pexpect.spawn(
        sys.executable, ["speak.py"], cwd=str(cli.folder), env=cli.env, timeout=PATIENCE, encoding="utf-8",
        dimensions=(40, 200),
    )  # fmt: skip
    good = cli.terminal("run", "speak.py:speak", "-n", "2")
    bad = cli.terminal("run", "speak.py:speak", "-n", "2", "-a", "fails=true")
    for child in (good, bad, script):
        # A line is drawn before all of it has come, and taken away when the rest is here.
        shown = DRAWN.sub("\r", all_of(child))
        assert harm(shown.encode()) == []
        assert "\x1b[31mred E�V" in shown and "\x1b[0m\r\n" in shown
        assert shown.count("OTHER") >= 2


@pytest.mark.proof("2 s of a processor")
def test_each_rank_s_bar_is_one_line_that_is_drawn_anew(cli: Cli, tmp_path: Path) -> None:
    cli.write("bars.py", BARS)
    for name in ("script", "run"):
        seen = tmp_path / name
        if name == "run":
            child = cli.terminal("run", "bars.py:bar", "-n", "2", "-a", f"seen={seen}")
        else:
            child = pexpect.spawn(
                sys.executable, ["bars.py", str(seen)], cwd=str(cli.folder), env=cli.env, timeout=PATIENCE,
                encoding="utf-8", dimensions=(24, 80),
            )  # fmt: skip
        child.expect(r"r000\|  20% of 0[^\n]*\r\nr001\|  20% of 1")
        drawn = (child.before or "") + (child.after or "")
        seen.touch()
        rest = all_of(child)
        assert harm(DRAWN.sub("\r", drawn + rest).encode()) == []
        screen = pyte.Screen(80, 60)
        pyte.Stream(screen).feed(drawn + rest)
        lines = [line.rstrip() for line in screen.display]
        assert lines.count("r000| 100% of 0") == lines.count("r001| 100% of 1") == 1
        assert not [line for line in lines if "20%" in line], lines
