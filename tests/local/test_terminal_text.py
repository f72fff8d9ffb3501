"""Ranks that write what a terminal would act on, and what then comes out at a real one."""

from __future__ import annotations

import sys

import pexpect

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
        shown = all_of(child).replace("\r\x1b[K", "")
        assert harm(shown.encode()) == []
        assert "\x1b[31mred E�V" in shown and "\x1b[0m\r\n" in shown
        assert shown.count("OTHER") >= 2
