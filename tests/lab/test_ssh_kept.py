"""A pool on real hosts ends by its lease before anybody has fetched what a run gave: the hosts keep that."""

from __future__ import annotations

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.store.ledger import Ledger

from . import Lab
from .pools import Client, nothing_runs, until

SIZE = 300_000  # bytes of a result: more than travels in a frame


def test_what_nobody_has_fetched_stays_on_its_hosts_until_somebody_does(pair: Lab) -> None:
    with Client(
        pair,
        f"""
        @sky.function
        def work():
            rank = sky.instance_info().rank
            print("begun by rank", rank, flush=True)
            time.sleep(1)
            print("done by rank", rank, flush=True)
            return rank, bytes({SIZE})

        options = sky.Options(**quiet, idle_timeout=1.0)
        with sky.Compute(provider=ssh, name="left", options=options) as compute:
            threading.Thread(target=lambda: work() @ compute, daemon=True).start()
            while len(compute.pool.archive.cursors) < len(compute.pool.links):
                time.sleep(0.01)
            print("begun", flush=True)
            time.sleep(600)
        """,
    ) as client:
        assert client.said() == "begun"
    row = Ledger().find_pool("left")
    assert row is not None
    (run,) = (found.run for found in Ledger().runs(row.token))
    nodes = len(pair.hosts)
    session = Session()
    try:

        def ended() -> bool:
            (view,) = session.refresh().result(60)
            return not view.is_live

        until(ended, "the pool's end by its lease")
        kept = session.retained_results()
        assert [each.machine.node for each in kept] == list(range(nodes))
        assert all(each.runs[run] >= SIZE and each.size >= SIZE for each in kept)
        nothing_runs(pair)
        assert sky.results(run) == [(rank, bytes(SIZE)) for rank in range(nodes)]
        assert session.retained_results() == []
    finally:
        session.detach()
    nothing_runs(pair)
    found = Ledger().pool(row.token)
    assert found.receipt is not None and found.receipt["kept"] == []
