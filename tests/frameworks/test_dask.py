"""One Dask cluster of a pool's ranks: its client, maps and groups by its scheduler, and who is kept out."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

import skyward_core as sky
from skyward_core.plugins.built_in.dask import Dask
from tests.support.waiting import wait_until

if find_spec("distributed") is None:  # which each process of a run would load to collect this file
    pytest.skip("distributed is not installed", allow_module_level=True)


@sky.function
def square(number: int) -> int:
    print("squares", number)
    return number * number


@sky.function
def refuses(number: int) -> int:
    if number == 40:
        raise LookupError(f"no {number}")
    return number


@sky.function
def from_within() -> int:
    from distributed import Client

    with Client(set_as_default=False) as client:
        return int(client.submit(lambda: 7).result())


@sky.function
def slowly(number: int) -> int:
    time.sleep(0.05)
    return number


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sky.Compute]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("work"))
        options = sky.Options(console=False, grace=10)
        plugins = [sky.plugins.dask(dashboard=False)]  # which would have Bokeh installed
        with sky.Compute(provider=sky.Local(), nodes=2, plugins=plugins, options=options) as compute:
            yield compute


def dask(pool: sky.Compute) -> Dask:
    return next(each for each in pool.plugins if isinstance(each, Dask))


def test_the_client_is_connected_and_finds_a_worker_in_each_rank(pool: sky.Compute) -> None:
    names = [worker["name"] for worker in pool.dask.scheduler_info(n_workers=-1)["workers"].values()]
    assert sorted(name.partition(".")[0] for name in names) == ["rank-0", "rank-1"]
    assert pool.dask.submit(lambda: sky.instance_info().world_size).result() == 1
    assert (from_within() >> pool) == 7


def test_a_map_and_a_group_are_one_run_each_with_logs_by_rank(pool: sky.Compute) -> None:
    before = set(pool.pool.view.runs)
    assert list(pool.map(square, range(500))) == [number * number for number in range(500)]
    assert sky.gather(square(2), refuses(3)) >> pool == (4, 3)
    assert sorted(sky.gather(square(2), square(3), stream=True) >> pool) == [4, 9]
    runs = [run for run in pool.pool.view.runs.values() if run.id not in before]
    assert [(run.kind, run.function) for run in runs] == [("map", "square")] * 3
    wait_until(lambda: {run.state for run in runs} == {"done"}, what="their ends")
    assert sum(task.items for task in runs[0].tasks.values()) == 500
    lines = [line for rank in (0, 1) for line in pool.pool.view.logs.for_run(runs[0].id).rank(rank).lines(0, 999)]
    assert sum("squares" in line for line in lines) == 500
    with sky.attach(pool.name) as other:
        assert other.view.runs[runs[0].id].state == "done"
        assert list(other.map(square, [3])) == [9]


def test_the_first_failure_ends_it_and_dask_tries_again_if_asked(pool: sky.Compute) -> None:
    with pytest.raises(LookupError, match="no 40") as caught:
        list(pool.map(refuses, range(1000)))
    assert isinstance(caught.value, sky.RunError)
    assert getattr(caught.value.__cause__, "__notes__", None) == ["while it worked on item 40 of the map"]
    run = pool.pool.view.runs[caught.value.run]
    wait_until(lambda: run.state == "failed", what="its end")
    assert run.root_cause is not None and run.root_cause.type == "LookupError"


def test_a_function_that_exits_ends_no_worker(pool: sky.Compute) -> None:
    def leaves(code: int) -> int:
        sys.exit(code)

    assert list(pool.map(leaves, [0, 0])) == [None, None]
    with pytest.raises(sky.RunError, match=r"sys.exit\(3\)"):
        list(pool.map(leaves, [3]))
    assert list(pool.map(abs, [-1])) == [1]


@pytest.mark.proof("1 s of a processor")
def test_what_ends_its_rank_is_not_done_anew_behind_the_map_that_failed(pool: sky.Compute) -> None:
    """Dask hands what a worker was at when it died to the next one, for as long as somebody wants it."""

    def ends(number: int) -> int:
        if number == 3:
            os._exit(9)
        return number

    with pytest.raises(sky.RunError, match="exited with status 9"):
        list(pool.map(ends, range(5)))
    assert list(pool.map(abs, range(3))) == [0, 1, 2]


@pytest.mark.proof("1 s of a processor")
def test_what_dask_cannot_do_is_done_or_refused_in_words(pool: sky.Compute) -> None:
    with pytest.raises(TimeoutError, match=r"timeout of 0\.02 s"):  # Dask stops no task: its ranks do it
        list(pool.map(slowly, range(2), timeout=0.02))
    values = pool.map(slowly, range(1000))
    assert next(values) == 0
    with pytest.raises(sky.UsageError, match="within a map that Dask does"):
        square(2) >> pool
    values.close()  # type: ignore[attr-defined]
    assert (square(2) @ pool) == [4, 4]
    with pytest.raises(sky.UsageError, match="threads must be 1 or more"):
        sky.plugins.dask(threads=0)
    with pytest.raises(sky.UsageError, match="port must be"):
        sky.plugins.dask(port=80)


def test_a_stranger_on_the_host_reaches_nothing(pool: sky.Compute) -> None:
    plugin, address = dask(pool), pool.dask.scheduler.address
    host, _, port = address.removeprefix("tls://").partition(":")
    assert plugin.papers[2] not in repr(plugin) and plugin.token not in repr(plugin)
    workers = pool.dask.scheduler_info(n_workers=-1)["workers"]
    assert all(each.startswith("tls://") for each in workers)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for at in (int(port), *(int(each.rpartition(":")[2]) for each in workers)):
        refused = pytest.raises(OSError)
        with refused, socket.create_connection((host, at), 10) as plain, context.wrap_socket(plain) as line:
            line.sendall(bytes(64))
            if not line.recv(1):
                raise ConnectionResetError
    web = f"http://127.0.0.1:{int(port) + 1}"
    for path in ("/", "/status", "/info/main/workers.html", "/json/counts.json", "/sitemap.json"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(web + path, timeout=10)
    with urllib.request.urlopen(f"{web}/{plugin.token}/health", timeout=10) as answer:
        assert answer.read() == b"ok"


@pytest.mark.proof("a package index with Bokeh; 12 s of a processor")
def test_the_dashboard_is_found_by_who_knows_its_secret() -> None:
    options = sky.Options(console=False, grace=10)
    with sky.Compute(provider=sky.Local(), plugins=[sky.plugins.dask()], options=options) as compute:
        assert compute.dask.submit(abs, -1).result() == 1
        address = compute.dashboard()
        with urllib.request.urlopen(address, timeout=30) as page:
            assert b"Bokeh" in page.read()
        plain = address.replace(f"/{dask(compute).token}", "")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(plain, timeout=30)


@pytest.mark.proof("1 s of a processor")
def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        plugin = sky.plugins.dask(port=taken.getsockname()[1], dashboard=False)
        options = sky.Options(console=False)
        with (
            sky.Compute(provider=sky.Local(), plugins=[plugin], options=options) as compute,
            pytest.raises(sky.RunError, match=r"plugin dask failed in around_app: PoolError: port \d+ of"),
        ):
            _ = compute.dask
