"""What front ends do with pools, through a session."""

from __future__ import annotations

from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.payload import make_task
from skyward_core.pool import link
from skyward_core.providers.local import Local
from skyward_core.session import Session
from skyward_core.spec import Options, PoolSpec


def test_a_session_unpickles_neither_values_nor_exceptions_nor_items(home: Path, tmp_path: Path) -> None:
    """Invariant 13: a front end shows what nodes say of values; it never unpickles one."""
    mark = str(tmp_path / "unpickled")

    class Trap:
        def __reduce__(self):  # type: ignore[no-untyped-def]
            return (open, (mark, "w"))

    class Trapped(Exception):
        def __reduce__(self):  # type: ignore[no-untyped-def]
            return (open, (mark, "w"))

    def returns() -> Trap:
        return Trap()

    def raises() -> None:
        raise Trapped("caught")

    def yields():  # type: ignore[no-untyped-def]
        yield Trap()

    session = Session()
    try:
        spec = PoolSpec(name="trap", provider=Local(), nodes=1, options=Options(console=False))
        session.create(spec).result(90)
        for body, state in ((returns, "done"), (yields, "done"), (raises, "failed")):
            # The worker itself loads an exception's pickle, to be sure that it can be loaded.
            run = session.launch("trap", make_task(sky.function(body)())).result(90)
            session.wait("trap", run.id).result(90)
            assert run.state == state
            made_by_worker = body is raises
            assert Path(mark).exists() is made_by_worker
            Path(mark).unlink(missing_ok=True)
        (outcome,) = run.outcomes()
        assert outcome.error is not None
        assert outcome.error.message == "caught"
    finally:
        session.down("trap").result(90)
        session.detach()


def test_a_pool_of_another_release_is_refused_in_words_and_can_be_ended(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session()
    spec = PoolSpec(name="older", provider=Local(), nodes=2, options=Options(console=False))
    session.create(spec).result(90)
    session.detach()
    monkeypatch.setattr(link, "VERSION", link.VERSION + 1)
    session = Session()
    try:
        (view,) = session.refresh().result(90)
        with pytest.raises(sky.PoolError) as refused:
            sky.attach("older")
        for told in (view.detail, str(refused.value)):
            assert f"speaks version {link.VERSION - 1} of the protocol, this client {link.VERSION}" in told
            assert "or end it: skyward-tui down older" in told
        receipt = session.down("older").result(90)
        assert (receipt.ok, receipt.gone) == (True, (0, 1))
    finally:
        session.detach()
