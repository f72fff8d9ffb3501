"""A journey through the app, on a pseudo-terminal, with hosts over SSH."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.journey import journey
from tests.support.terminal import Terminal

from . import Lab
from .pools import nothing_runs, pool, ssh


@pytest.mark.proof("6 s of a processor")
def test_ssh_journey_launches_kills_reads_reruns_and_tears_down(
    pair: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    (own := tmp_path / "person" / ".ssh").mkdir(parents=True)
    (own / "config").write_text(pair.ssh_config.read_text())
    journey(tmp_path, "ssh", {"hosts": ",".join(host.name for host in pair.hosts)})
    nothing_runs(pair)


@pytest.mark.proof("2 s of a processor")
def test_shell_key_opens_a_shell_on_the_node_of_the_rank(pair: Lab, tmp_path: Path) -> None:
    with pool(pair, ssh(pair), nodes=2, name="looked-at"):
        terminal = Terminal(tmp_path / "sky", cwd=tmp_path)
        try:
            terminal.press("enter", until=lambda text: "pools › looked-at" in text and "2/2 nodes" in text)
            for key, host in (("", pair.hosts[0]), ("]", pair.hosts[1])):
                terminal.press(*key, "$", until=lambda text: "pools ›" not in text)
                terminal.press("echo on-$((40 + 2)) $(uname -n)\r", until=f"on-42 {host.name}")
                terminal.press("exit\r")  # at which the app paints over it
                terminal.until("pools › looked-at")  # the app, as it was
        finally:
            terminal.close()
