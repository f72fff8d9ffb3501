"""Machines of a pool are reached with the Python that its scripts are loaded with, whoever owns them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from skyward_core.model.machines import Machine
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.providers.aws.provider import AWS
from skyward_core.providers.slurm.provider import Slurm
from skyward_core.providers.ssh.provider import SSH

CHOSEN = Interpreter("/p/.venv/bin/python", "/p/.venv", "3.99.1", ".venv of project p")


@pytest.mark.parametrize("provider", [SSH(["gpu1"]), AWS(region="us-east-1"), Slurm()])
def test_by_the_version_that_loads_the_script(
    provider: SSH | AWS | Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    known = {"host": "gpu1", "folder": "p.0", "token": "t", "user": "me", "port": 22, "launched": time.time()}
    extra = known | {"loaded_with": CHOSEN.for_hosts}

    async def minors() -> list[str]:
        machines = [Machine("gpu1", 0, "gpu1", "", extra=each) for each in (extra, known)]
        return [provider.transport("p", each).python.minor for each in machines]

    there, older = asyncio.run(minors())
    assert there == "3.99" and older != "3.99"
