"""What follows a failed run on the same pool."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import skyward_core as sky


@sky.function
def leave(how: str) -> str:
    if sky.instance_info().is_head:
        if how == "sys.exit":
            sys.exit(3)
        os._exit(4)
    return "ok"


@sky.function
def fine() -> str:
    return "ok"


def test_starts_with_a_whole_gang_however_soon_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank, on another node, has returned: only the head's agent knows that the gang is broken."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    with sky.Compute(nodes=2, options=sky.Options(console=False)) as pool:
        for how, status in [("sys.exit", 3), ("os._exit", 4)] * 4:
            with pytest.raises(sky.RunError) as failed:
                leave(how) @ pool
            assert (failed.value.root_cause.rank, failed.value.root_cause.exit_code) == (0, status)
            assert fine() @ pool == ["ok", "ok"]
