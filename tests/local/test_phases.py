"""What a rank is at before its function runs, as seen by who made the pool and by who attached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.plugins import Plugin
from skyward_core.providers.local.provider import Local
from skyward_core.store.ledger import Ledger
from skyward_core.tasks.function_pickling import make_task
from tests.support.waiting import wait_until

PATIENCE = 60.0


def hold(gate: Path) -> None:
    """Wait until the gate is opened; never longer than a test."""
    deadline = time.monotonic() + PATIENCE
    while not gate.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


class Slow:
    """Something that takes long to load, as a framework does."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __reduce__(self) -> Any:
        return _load_slowly, (str(self.gate),)


def _load_slowly(gate: str) -> Slow:
    hold(Path(gate))
    return Slow(Path(gate))


class Meets(Plugin):
    """Rank 1 comes late, and rank 0 waits for it."""

    name = "meets"

    def __init__(self, launched: Path, imported: Path, met: Path) -> None:
        self.launched, self.imported, self.met = launched, imported, met

    @contextmanager
    def around_process(self, info: sky.InstanceInfo) -> Iterator[None]:
        from skyward_core.runtime.instance_info import set_phase

        if info.rank == 1:
            set_phase("importing")
            hold(self.imported)
            set_phase("joining")
        hold(self.launched)  # ranks may be set up before there is a run, and what they print then is of none
        print("waits for the others", flush=True)
        hold(self.met)
        yield


@pytest.fixture
def session(home: Path) -> Iterator[Session]:
    session = Session()
    yield session
    session.tear_down("p").result(90)
    session.detach()


def phases(session: Session) -> dict[int, str]:
    return {rank: phase for rank, (phase, _) in session.view("p").rank_phases.items()}


def test_each_step_before_a_function_is_told_with_its_time(session: Session, tmp_path: Path) -> None:
    import cloudpickle

    import tests.local.test_phases as here

    cloudpickle.register_pickle_by_value(here)  # ranks know nothing of this file
    names = ("launched", "imported", "met", "loaded", "done")
    launched, imported, met, loaded, done = (tmp_path / name for name in names)
    slow = Slow(loaded)

    @sky.function
    def train() -> str:
        print("runs", slow.gate.name, flush=True)
        hold(done)
        return "trained"

    plugin = Meets(launched, imported, met)
    spec = PoolSpec(name="p", provider=Local(), nodes=2, plugins=(plugin,), options=Options(console=False))
    session.create(spec).result(90)
    began = time.time()
    run = session.launch("p", make_task(train())).result(90)
    launched.touch()
    wait_until(lambda: phases(session) == {0: "joining", 1: "importing"})
    other = Session()
    try:
        other.refresh().result(90)
        wait_until(lambda: phases(other) == {0: "joining", 1: "importing"})
        for each in (session, other):
            assert all(began - 60 < since <= time.time() for _, since in each.view("p").rank_phases.values())
        # A phase that lasts keeps its time: who comes later is told the same one.
        ours, theirs = (each.view("p").rank_phases[0][1] for each in (session, other))
        assert abs(ours - theirs) < 1.0
        # What it prints meanwhile is the log of the run that it is set up for.
        log = session.view("p").logs.for_run(run.id).rank(0)
        wait_until(lambda: log.lines(0, 9) == ["waits for the others"])
        imported.touch()
        wait_until(lambda: phases(session) == phases(other) == {0: "joining", 1: "joining"})
        met.touch()
        wait_until(lambda: phases(session) == phases(other) == {0: "importing", 1: "importing"})
        loaded.touch()
        wait_until(lambda: phases(session) == phases(other) == {0: "running", 1: "running"})
    finally:
        done.touch()
        other.detach()
    assert session.wait("p", run.id).result(90).state == "done"
    # A call that needs nothing first says nothing of it, and what was is not taken for what is.
    again = session.launch("p", make_task(train())).result(90)
    assert session.wait("p", again.id).result(90).state == "done"
    assert set(phases(session).values()) <= {"running"}


# A ctrl-c while a pool comes up, at the lines around what the provider begins before there is a pool.


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
