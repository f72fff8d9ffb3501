"""A person's way through the app, in a real pseudo-terminal, on hosts over SSH."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.journey import journey

from . import Lab
from .pools import nothing_runs


def test_launch_kill_read_run_again_tear_down(
    pair: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    (own := tmp_path / "person" / ".ssh").mkdir(parents=True)
    (own / "config").write_text(pair.ssh_config.read_text())
    journey(tmp_path, "ssh", {"hosts": ",".join(host.name for host in pair.hosts)})
    nothing_runs(pair)
