"""Peer of the benchmarks: Dask with processes, set up as its documentation describes, without its dashboard."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def dask_local(workers: int) -> Iterator[Any]:
    """Yield a client of a ``LocalCluster`` of ``workers`` processes with one thread each."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def dask_ssh(addresses: Sequence[str], user: str, key: str, known_hosts: str) -> Iterator[Any]:
    """Yield a client of an ``SSHCluster``: scheduler on the first host, one worker with one thread on each host."""
    from distributed import Client, SSHCluster

    with (
        SSHCluster(
            [addresses[0], *addresses],
            connect_options={"username": user, "client_keys": [key], "known_hosts": known_hosts, "config": None},
            worker_options={"nthreads": 1, "n_workers": 1, "dashboard": False},
            scheduler_options={"port": 0, "dashboard": False},
            remote_python=sys.executable,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(len(addresses))
        yield client
