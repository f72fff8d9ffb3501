"""A pool's Dask cluster: its client, and the refusal of other users."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

import skyward_core as sky
from skyward_core.plugins.built_in.dask import Dask

if find_spec("distributed") is None:  # which each process of a run would load to collect this file
    pytest.skip("distributed is not installed", allow_module_level=True)


@sky.function
def from_within() -> int:
    from distributed import Client

    with Client(set_as_default=False) as client:
        return int(client.submit(lambda: 7).result())


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


def test_dask_client_finds_a_worker_in_each_rank(pool: sky.Compute) -> None:
    names = [worker["name"] for worker in pool.dask.scheduler_info(n_workers=-1)["workers"].values()]
    assert sorted(name.partition(".")[0] for name in names) == ["rank-0", "rank-1"]
    assert pool.dask.submit(lambda: sky.instance_info().world_size).result() == 1
    assert (from_within() >> pool) == 7


def test_dask_maps_and_groups_are_runs_of_the_pool(pool: sky.Compute) -> None:
    before = set(pool.pool.view.runs)
    assert list(pool.map(abs, range(-3, 0))) == [3, 2, 1]
    assert sky.gather(from_within(), from_within()) >> pool == (7, 7)
    assert [run.kind for run in pool.pool.view.runs.values() if run.id not in before] == ["map", "gather"]
    with sky.attach(pool.name) as other:
        assert other.dask.submit(abs, -1).result() == 1


def test_dask_plugin_rejects_invalid_threads_and_port() -> None:
    with pytest.raises(sky.UsageError, match="threads must be 1 or more"):
        sky.plugins.dask(threads=0)
    with pytest.raises(sky.UsageError, match="port must be"):
        sky.plugins.dask(port=80)


def test_dask_refuses_other_users_of_the_host(pool: sky.Compute) -> None:
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
def test_dask_dashboard_requires_its_secret() -> None:
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
def test_dask_port_in_use_is_named_in_the_error() -> None:
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
