"""Simulated GPU use of host groups, for tests of its display."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from skyward_core.client import ssh_host_groups_and_access
from skyward_core.client.ssh_host_groups_and_access import HostGpuUsage
from skyward_core.model.machines_checks_and_gpu_use import Check, GpuProcess, GpuUse

GROUPS = """\
[hosts]
lab = ["gpu1", "gpu2"]  # the big ones
desk = ["gpu3"]
"""
MODEL = "NVIDIA H100 80GB HBM3"


def _gpu(number: int, *processes: GpuProcess, used: float = 0.0, util: int = 0, holder: str = "") -> GpuUse:
    total = 85_520_000_000
    return GpuUse(str(number), f"GPU-{number}", MODEL, int(used * 1e9), total, util, processes, holder)


LOOKS = {
    "gpu1": HostGpuUsage(
        "gpu1",
        (
            _gpu(0, GpuProcess(4711, "bob", "python", 71_200_000_000, True), used=71.2, util=98),
            _gpu(1, used=12.0, util=40, holder="pool llama-ft of ann"),
            _gpu(2),
        ),
        "",
        True,
    ),
    "gpu2": HostGpuUsage("gpu2", (), "Host gpu2 does not answer: connection refused", False),
    "gpu3": HostGpuUsage("gpu3", (), "there is no NVIDIA driver", True),
}


def put_groups(text: str = GROUPS) -> Path:
    """Write these groups to the state folder."""
    path = Path(os.environ["SKYWARD_HOME"], "skyward.toml")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(text)
    return path


def have_looks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Simulate the hosts above. Other hosts do not answer. Return a list of the probed hosts, one entry per probe."""
    asked: list[list[str]] = []

    def look(hosts: Sequence[str], report: Callable[[HostGpuUsage], None]) -> list[HostGpuUsage]:
        asked.append([*hosts])
        found = [LOOKS.get(host) or HostGpuUsage(host, (), "no such host", False) for host in hosts]
        for each in found:
            report(each)
        return found

    def check(host: str) -> list[Check]:
        return [Check(host, "ok", "Python 3.11.7"), Check(host, "fail" if host == "gpu2" else "ok", "its disk")]

    monkeypatch.setattr(ssh_host_groups_and_access, "list_gpu_use", look)
    monkeypatch.setattr(ssh_host_groups_and_access, "check", check)
    return asked
