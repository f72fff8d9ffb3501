"""A ctrl-c while a pool comes up, at the lines around what the provider begins before there is a pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.store.ledger import Ledger


class Interrupted(sky.Local):
    """Local nodes; the person presses ctrl-c as the warm-up begins, or as it ends."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    @contextmanager
    def warm(self, spec: sky.PoolSpec) -> Iterator[None]:  # type: ignore[override]
        with super().warm(spec):
            if self.at == "begin":
                raise KeyboardInterrupt
            yield
        raise KeyboardInterrupt


@pytest.mark.parametrize("at", ["begin", "end"])
def test_nothing_is_left(home: Path, at: str) -> None:
    compute = sky.Compute(provider=Interrupted(at), nodes=2, name="cut", options=sky.Options(console=False))
    with pytest.raises(KeyboardInterrupt), compute:
        pass
    ledger = Ledger()
    row = ledger.find_pool("cut")
    ledger.close()
    assert not list((home / "local").glob("cut.*"))
    if at == "begin":
        assert row is None
    else:
        assert row is not None and row.ended_at is not None
        assert compute.receipt is not None and (compute.receipt.created, compute.receipt.ok) == (2, True)
