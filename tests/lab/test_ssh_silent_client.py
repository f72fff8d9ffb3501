"""The cable of a client's machine is cut: its connections stay open for hours, and the agents do not wait for them."""

from __future__ import annotations

import skyward_core as sky

from . import Host, Lab
from .pools import Client, agents, rank, until


def has_all(host: Host) -> bool:
    """Whether the rest of the library is there, too: a channel that brings it would wait for the client behind the cut
    cable for as long as sshd does."""
    return any(host.home.glob(".cache/skyward/*-rest/all.zip")) and len(agents(host)) == 1


def test_a_client_behind_a_cut_cable_keeps_neither_the_lock_nor_the_pool(lab: Lab) -> None:
    *hosts, far = lab.hosts
    with Client(
        lab,
        """
        @sky.function
        def rank():
            return sky.instance_info().rank

        options = sky.Options(**quiet, idle_timeout=4.0)
        with sky.Compute(provider=ssh, name="far", options=options) as compute:
            print(rank() @ compute, flush=True)  # from now on it holds the lock
            time.sleep(600)
        """,
        hosts=hosts,
        behind=far,
    ) as client:
        said = client.said()
        assert said == "[0, 1, 2]", said
        until(lambda: all(map(has_all, hosts)), "the end of the start")
        with sky.attach("far") as compute:
            far.unplug()
            running = rank() > compute  # takes no lock, and shows that our own cable is there
            assert running.result(60) in (0, 1, 2)
            seen: list[str] = []
            compute.pool.news.subscribe(lambda event: seen.append(getattr(event, "detail", "")), None)
            assert rank() @ compute == [0, 1, 2]
            holder = f"process {client.process.pid} ("
            assert any(holder in detail for detail in seen), seen
        assert client.process.poll() is None
        until(lambda: not any(map(agents, hosts)), "the end of the pool's lease")
        assert client.process.poll() is None, "nobody but the agents has ended it"
