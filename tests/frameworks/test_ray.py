"""A pool's Ray cluster. The tests are skipped without Ray, which is not a test dependency."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.plugins.built_in.ray import HEALTH_CHECK_OPTIONS, Ray, _check_tokens
from tests.support.processes import exists
from tests.support.waiting import wait_until


@sky.function
def uses_it() -> tuple[int, str, list[int]]:
    """Return what a driver sees of the cluster, and the cluster's processes on this machine."""
    import ray

    ray.init(log_to_driver=False)
    squares = ray.remote(lambda number: number * number)
    total = sum(ray.get([squares.remote(number) for number in range(10)]))
    ray.shutdown()
    ours = os.environ["RAY_ADDRESS"].rpartition(":")[2]
    pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    return (total, os.environ["RAY_ADDRESS"], [pid for pid in pids if ours in command(pid) and pid != os.getpid()])


def job(*words: str, token: str) -> subprocess.CompletedProcess[str]:
    """Run ``ray job`` with the given token."""
    program = [sys.executable, "-m", "ray.scripts.scripts", "job", *words]
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    return subprocess.run(program, env=env, capture_output=True, text=True, check=False)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.timeout(300)  # to refuse a stranger takes Ray half a minute
def test_ranks_join_one_ray_cluster_that_ends_with_the_pool() -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    options = sky.Options(grace=20, console=False)
    plugin = sky.plugins.ray()
    with sky.Compute(provider=sky.Local(), nodes=2, plugins=[plugin], options=options) as pool:
        total, address, pids = uses_it() >> pool
        assert total == 285 and pids
        sky.shell(f"test $RAY_ADDRESS = {address}") @ pool
        with pytest.raises(sky.RunError):  # a stranger, who has no token
            sky.shell(["python", "-c", "import ray; ray.init()"], env={"RAY_AUTH_TOKEN": "ab" * 32}) >> pool
        # From here, through what stands in for a tunnel: this machine's loopback.
        page = f"http://127.0.0.1:{int(address.rpartition(':')[2]) + 1}"
        text = job("submit", "--address", page, "--", "echo", "ran", "there", token=plugin.token)
        assert text.returncode == 0 and "ran there" in text.stdout, text
        assert job("list", "--address", page, token="").returncode != 0
    wait_until(lambda: not any(map(exists, pids)), what="the end of Ray's processes")


def test_ray_start_failure_is_named_in_the_error() -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        plugin = sky.plugins.ray(port=taken.getsockname()[1], dashboard=False)
        options = sky.Options(console=False)
        failed = pytest.raises(sky.RunError, match=r"plugin ray failed in around_app: PoolError: port \d+ of")
        with sky.Compute(provider=sky.Local(), plugins=[plugin], options=options) as pool, failed:
            uses_it() >> pool


@pytest.mark.parametrize(("found", "fine"), [("2.51.1", False), ("2.52.0", True), ("3.0.0rc1", True), ("1.13", False)])
def test_ray_without_token_authentication_is_refused(found: str, fine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: found)
    if fine:
        _check_tokens()
        return
    with pytest.raises(sky.PoolError, match=r"has no token authentication\. Use version 2\.52 or newer"):
        _check_tokens()


def test_ray_health_checks_detect_a_dead_host_within_35_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {name.removesuffix("_ms"): int(value) for name, value in HEALTH_CHECK_OPTIONS.items()}
    every, answer, times = (asked[f"health_check_{name}"] for name in ("period", "timeout", "failure_threshold"))
    dead_after = times * (every + answer)  # where no answer comes at all
    keepalive = asked["grpc_client_keepalive_time"] + asked["grpc_client_keepalive_timeout"]
    assert dead_after <= 35_000 and keepalive <= 35_000
    assert answer >= 5_000 and times > 1, "a busy machine answers late; a single line may break"
    monkeypatch.setenv("RAY_health_check_timeout_ms", "20000")  # by the image's env
    info = sky.InstanceInfo(pool="train", head_addr="10.0.0.1")
    assert Ray()._variables(info, 20000)["RAY_health_check_timeout_ms"] == "20000"


def test_ray_plugin_derives_equal_addresses_and_ports_on_all_nodes() -> None:
    made, other = Ray(), Ray()
    assert made.token != other.token and made.token not in repr(made) and made.secrets() == (made.token,)
    places = [sky.InstanceInfo(node=node, total_nodes=2, pool="train", head_addr="10.0.0.1") for node in (0, 1)]
    found = [made._variables(info, made.port_of(info.pool)) for info in places]
    assert found[0] == found[1] and re.fullmatch(r"10\.0\.0\.1:2\d{4}", found[0]["RAY_ADDRESS"])
    assert made.dashboard_at("train") == (int(found[0]["RAY_ADDRESS"].rpartition(":")[2]) + 1, "")
    assert Ray(dashboard=False).dashboard_at("train") is None
    assert found[0].items() >= {f"RAY_{name}": value for name, value in HEALTH_CHECK_OPTIONS.items()}.items()
    words: list[Any] = [made._start(info, 20000, Path("/tmp/x")) for info in places]
    assert "--head" in words[0] and "--address=10.0.0.1:20000" in words[1]
    assert not any(made.token in word for each in words for word in each), "arguments are seen by everybody"
    for port in (80, 65535):
        with pytest.raises(sky.UsageError, match="port must be"):
            sky.plugins.ray(port=port)
