"""What the log tells of real pools: of links, frames, phases, and of nodes that are lost."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.pool import agent_link
from tests.support.cli import Cli
from tests.support.faults import agent_pids
from tests.support.loss import lose
from tests.support.waiting import wait_until

SECRET = "hf_0f1e2d3c4b5a6978"


def test_debug_writes_what_a_run_did_and_the_dump_holds_it(cli: Cli) -> None:
    cli("--debug", "run", "endings.py:fine", "--arg", "n=7654321", "--nodes", 2, "--pool", "logged")
    log = (cli.folder / "home" / "debug" / "debug.log").read_text()
    for node in (0, 1):
        for told in (
            rf"INFO skyward\.link logged \[\d+\] node {node}: up\n",
            rf"DEBUG skyward\.link logged \[\d+\] node {node}: sent call run=\w+ i={node}, \d+ bytes\n",
            rf"DEBUG skyward\.link logged \[\d+\] node {node}: got outcome run=\w+ i={node}, \d+ bytes\n",
            rf"INFO skyward\.pool logged \[\d+\] node {node}: ready",
            rf"INFO skyward\.pool logged \[\d+\] node {node}: gone: verified\n",
            rf"DEBUG skyward\.local logged \[\d+\] \S+/node-{node}: starting an agent: [\d.]+ s\n",
        ):
            assert re.search(told, log), f"{told} in\n{log}"
    assert re.search(r"DEBUG skyward\.provider logged \[\d+\] create took [\d.]+ s: machines 2 running\n", log)
    for told in ("pool: up", r"run \w+: opened, broadcast of 2", r"run \w+: done", "pool: gone"):
        assert re.search(rf"INFO skyward\.pool logged \[\d+\] {told}\n", log), f"{told} in\n{log}"
    assert "7654321" not in log and "next door" not in log, "no value"
    assert " WARNING " not in log, "a run that went well"
    cli("debug-dump", "out.zip")
    with zipfile.ZipFile(cli.folder / "out.zip") as packed:
        assert packed.read("debug.log").decode() == log


def test_without_it_nothing_is_written(cli: Cli) -> None:
    cli("ls")
    assert not (cli.folder / "home" / "debug").exists()


def test_a_level_that_is_none_is_refused_by_every_command(cli: Cli) -> None:
    cli.env["SKYWARD_LOG"] = "loud"
    for command in ("ls", "doctor", "examples"):
        assert "Unknown log level SKYWARD_LOG='loud'" in cli(command, status=2).stderr


def test_a_log_that_cannot_be_written_is_told_of_and_the_command_goes_on(cli: Cli) -> None:
    (cli.folder / "home").mkdir(mode=0o700)
    (cli.folder / "home" / "debug").write_text("in the way")
    done = cli("ls", "--debug")
    assert done.stderr.count("Cannot write the debug log") == 1


SCRIPT = f"""
    import skyward_core as sky
    from skyward_core.store.debug_log import get_logger as logger

    @sky.function
    def fails():
        raise ValueError("with {SECRET} in it")

    if __name__ == "__main__":
        image = sky.Image(env={{"HF_TOKEN": "{SECRET}"}})
        with sky.Compute(name="s", image=image, options=sky.Options(console=False)) as compute:
            logger("test").info("a word with {SECRET}")
            try:
                fails() @ compute
            except sky.RunError:
                pass
"""


def test_a_script_has_its_log_and_no_secret_of_its_pool_is_in_it_or_in_a_dump(cli: Cli) -> None:
    path = cli.write("logged.py", textwrap.dedent(SCRIPT))
    env = cli.env | {"SKYWARD_LOG": "debug"}
    done = subprocess.run([sys.executable, path], env=env, capture_output=True, text=True, timeout=90, check=True)
    assert done.stdout == done.stderr == ""
    log = (cli.folder / "home" / "debug" / "debug.log").read_text()
    assert f"a word with {'*' * len(SECRET)}" in log and SECRET not in log
    cli("debug-dump", "out.zip")
    with zipfile.ZipFile(cli.folder / "out.zip") as packed:
        parts = {name: packed.read(name).decode() for name in packed.namelist()}
    assert "ValueError" in parts["ledger.json"] and "HF_TOKEN" in parts["ledger.json"]
    assert not [name for name, text in parts.items() if SECRET in text]


def test_a_node_falls_silent_is_revived_and_lost(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_link, "SILENCE", 0.3)
    caplog.set_level(logging.INFO, "skyward")

    def told(words: str) -> bool:
        return any(words in record.getMessage() for record in list(caplog.records))

    with sky.Compute(nodes=2, options=sky.Options(console=False, grace=0.5)) as compute:
        agent = agent_pids(compute)[1]
        os.kill(agent, signal.SIGSTOP)
        try:
            wait_until(lambda: told("node 1: silent for"))
        finally:
            os.kill(agent, signal.SIGCONT)
        wait_until(lambda: told("node 1: answers again"))
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: told("node 1: down: "))
        wait_until(lambda: told("node 1: revived by a new agent"))
        wait_until(lambda: agent_pids(compute)[1] != agent and compute.pool.links[1].up)
        caplog.clear()
        lose(compute, 1)
        wait_until(lambda: told("node 1: lost: "))
    assert {vars(record)["pool"] for record in caplog.records} == {compute.name}
