"""Invariant 13: a front end shows what nodes say of values; it never unpickles one."""

from __future__ import annotations

from pathlib import Path

import skyward_core as sky
from skyward_core.payload import make_task
from skyward_core.providers.local import Local
from skyward_core.session import Session
from skyward_core.spec import Options, PoolSpec


def test_a_session_unpickles_neither_values_nor_exceptions_nor_items(home: Path, tmp_path: Path) -> None:
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
