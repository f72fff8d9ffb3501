"""Who starts a script is told what it is about to rent, and for how much, before it is rented."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

import skyward_core as sky
from skyward_core.model.errors import NoCapacity
from skyward_core.providers.local.provider import Local
from skyward_core.providers.provider_calls import report_progress


class Dear(Local):
    """Machines of this one that nobody has for nothing."""

    name = "dear"
    rents: ClassVar[bool] = True
    has: ClassVar[bool] = True

    async def create(self, spec: Any, token: str) -> Any:
        report_progress("attempt 1 of 1: large in here, $9.00/h each")
        if not self.has:
            raise NoCapacity("there are none")
        return await super().create(spec, token)


class Dearest(Dear):
    name = "dearest"
    has = False


def test_what_is_rented_is_said_before_it_is_and_what_it_came_to_after(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = sky.Options(console=False)  # of ranks
    with sky.Compute(provider=Dear(), nodes=2, name="pair", options=quiet):
        before = capsys.readouterr().err.splitlines()
    assert before == [
        "pool pair: renting 2 machines from dear",
        "pool pair starting: attempt 1 of 1: large in here, $9.00/h each",
    ]
    (after,) = capsys.readouterr().err.splitlines()
    assert after.startswith("pool pair is down: created 2, verified gone 2, unaccounted 0")


def test_what_made_a_start_fail_is_the_errors_to_tell(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoCapacity, match="there are none"), sky.Compute(provider=Dearest(), name="none"):
        pass
    said = capsys.readouterr().err
    assert "$9.00/h each" in said and "there are none" not in said


def test_what_costs_nothing_says_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sky.Compute(provider=sky.Local(), name="free"):
        pass
    assert capsys.readouterr().err == ""
