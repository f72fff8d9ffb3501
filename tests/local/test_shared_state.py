"""Shared state of ranks and client on a real server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.plugins.built_in import shared_collections
from skyward_core.plugins.built_in.shared_collections import Shared
from skyward_core.plugins.plugin_server_start_and_stop import EXTRA_PATH
from skyward_core.plugins.redis_shared_state_client import SOCKET, private_folder
from tests.support.waiting import wait_until

pytest.importorskip("redis", reason="the package redis is not installed")
PATH = os.pathsep.join((os.environ["PATH"], EXTRA_PATH))
if not any(shutil.which(name, path=PATH) for name in shared_collections.PROGRAMS):
    pytest.skip("neither valkey-server nor redis-server is installed", allow_module_level=True)


@sky.function
def counted(times: int) -> list[int]:
    return [sky.counter("seen").increment() for _ in range(times)]


@sky.function
def takes_turns(times: int) -> None:
    """Increment a value with a pause between reading and writing, which only a lock makes safe."""
    totals = sky.dict("totals")
    for _ in range(times):
        with sky.lock("totals"):
            found = totals.get("all", 0)
            time.sleep(0.001)
            totals["all"] = found + 1


@sky.function
def meets(rounds: int) -> bool:
    """Check that no rank is a round ahead of another."""
    meeting, counter = sky.barrier("rounds"), sky.counter("rounds")
    world = sky.instance_info().world_size
    for each in range(rounds):
        counter.increment()
        meeting.wait(20)
        if counter.value < (each + 1) * world:
            return False
        meeting.wait(20)
    return True


@sky.function
def holds_and_dies() -> None:
    sky.lock("of the dead").acquire()
    os._exit(3)


@sky.function
def eats() -> list[int]:
    found = []
    while (item := sky.queue("work").get(timeout=0.5)) is not None:
        found.append(item)
    return found


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sky.Compute]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("work"))
        options = sky.Options(console=False, grace=5)
        with sky.Compute(provider=sky.Local(), nodes=2, plugins=[sky.plugins.shared()], options=options) as compute:
            yield compute
    assert not private_folder(plugin(compute).token).exists()


def plugin(pool: sky.Compute) -> Shared:
    return next(each for each in pool.plugins if isinstance(each, Shared))


def test_shared_counter_increments_are_unique(pool: sky.Compute) -> None:
    answer = counted(100) @ pool
    assert sorted(chain(*answer)) == list(range(1, 201))
    assert sky.counter("seen").value == pool.shared.counter("seen").value == 200
    with sky.attach(pool.name) as second:
        assert second.shared.counter("seen").value == 200


def test_shared_lock_has_one_holder_at_a_time(pool: sky.Compute) -> None:
    takes_turns(25) @ pool
    assert pool.shared.dict("totals")["all"] == 50


def test_ranks_meet_at_a_shared_barrier_repeatedly(pool: sky.Compute) -> None:
    assert meets(20) @ pool == [True, True]


def test_each_shared_queue_item_goes_to_one_rank(pool: sky.Compute) -> None:
    assert sky.queue("work").put(*range(100)) == 100
    assert sorted(chain(*(eats() @ pool))) == list(range(100))
    with pytest.raises(sky.UsageError, match="cannot contain None"):
        sky.queue("work").put(None)


def test_rank_that_times_out_at_a_barrier_leaves_it(pool: sky.Compute) -> None:
    @sky.function
    def comes_alone() -> int:
        missed = 0
        for _ in range(2):  # the second would be let through, had the first not left
            try:
                sky.barrier("alone", 2).wait(0.05)
            except TimeoutError:
                missed += 1
        return missed

    assert comes_alone() >> pool == 2
    with pytest.raises(sky.UsageError, match="inside a call"):
        sky.barrier("here")

    @sky.function
    def does_not_say() -> None:
        sky.barrier("of one rank").wait()

    with pytest.raises(sky.UsageError, match="number of participants"):
        does_not_say() >> pool


def test_shared_lock_of_a_dead_holder_expires(pool: sky.Compute) -> None:
    with pytest.raises(sky.RunError):
        holds_and_dies() >> pool
    lock = sky.lock("of the dead")
    assert lock.locked() and not lock.acquire(timeout=0)
    with pytest.raises(TimeoutError), sky.lock("of the dead", timeout=0.05):
        pass
    pool.shared._connection.get_client().pexpire("lock:of the dead", 200)  # as 30 s later
    assert lock.acquire(timeout=20)
    pool.shared._connection.get_client().delete("lock:of the dead")  # as after 30 s without a sign
    with pytest.raises(sky.PoolError, match="expired"):
        lock.release()
    with lock:
        assert lock.locked()
    assert not lock.locked()


def test_shared_dict_and_set_behave_like_builtins(pool: sky.Compute) -> None:
    held = sky.dict("table")
    held.update({"a": [1], ("b", 2): None, 1: "one"})
    held[True] = "true"
    assert len(held) == 4 and ("b", 2) in held and held[1] == "one" and held[True] == "true"
    assert held.get("none", 7) == 7 and held.setdefault("a", 8) == [1] and held.setdefault("c", 9) == 9
    assert held.pop("c") == 9 and held.pop("c", None) is None and dict(held.items())["a"] == [1]
    for missing in (lambda: held["c"], lambda: held.pop("c"), lambda: held.__delitem__("c")):
        with pytest.raises(KeyError):
            missing()
    with pytest.raises(sky.UsageError, match="dict keys"):
        held[frozenset()] = 1  # type: ignore[index]
    members = sky.set("table")
    assert members.add("x") and not members.add("x") and members.update(["x", "y"]) == 1
    assert set(members) == {"x", "y"} and "x" in members and len(members) == 2
    assert members.discard("x") and not members.discard("x") and members.pop() == "y"
    with pytest.raises(KeyError):
        members.pop()
    with pytest.raises(sky.PoolError, match="rejected the operation"):
        sky.counter("big").increment(2**63 - 1)
        sky.counter("big").increment()


def test_shared_state_server_is_private_and_password_protected(pool: sky.Compute) -> None:
    token = plugin(pool).token
    folder = private_folder(token)
    assert [path.name for path in folder.iterdir()] == [SOCKET]
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / SOCKET).stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(folder / SOCKET))
        stranger.sendall(b"GET counter:seen\r\n")
        assert stranger.recv(100).startswith(b"-NOAUTH")
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert token.encode() not in line.read_bytes()
        except OSError:
            continue  # it ended


def test_shared_state_server_ends_with_its_parent_and_is_restarted(pool: sky.Compute) -> None:
    sky.counter("before").increment()
    (process,) = [int(pid) for pid in servers(plugin(pool).token)]
    parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, 9)
    wait_until(lambda: not Path(f"/proc/{process}").exists(), what="the server's end")
    with pytest.raises(sky.PoolError, match="does not answer"):
        sky.counter("before").increment()
    wait_until(lambda: answers_calls(pool), what="another one")
    assert sky.counter("before").value == 0
    assert len(servers(plugin(pool).token)) == 1


def test_shared_state_server_ends_with_its_killed_parent() -> None:
    text = (
        "import sys\nfrom skyward_core.plugins.built_in.shared_collections import run_server as server\n"
        "with server(sys.argv[1], ('', '', ''), '127.0.0.1', 0):\n    print('up', flush=True)\n    sys.stdin.read()"
    )
    token = os.urandom(16).hex()
    holder = subprocess.Popen(
        [sys.executable, "-c", text, token], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "up\n"
        (process,) = servers(token)
        holder.kill()
        wait_until(lambda: not servers(token), what=f"the end of process {process}")
    finally:
        holder.kill()
        holder.communicate()
        shutil.rmtree(private_folder(token))


def answers_calls(pool: sky.Compute) -> bool:
    try:
        return len(counted(1) @ pool) == 2
    except sky.SkywardError:
        return False


def servers(token: str) -> list[str]:
    """Return the processes that have the socket of the pool's server."""
    path = str(private_folder(token) / SOCKET)
    inodes = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(path)
              and line.split()[3] == "00010000"}  # fmt: skip
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        open_here: list[Path] = []
        with suppress(OSError):  # it has ended
            open_here = list((process / "fd").iterdir())
        for each in open_here:
            with suppress(OSError):  # it was closed
                if str(each.readlink()).removeprefix("socket:[").removesuffix("]") in inodes:
                    found.add(process.name)
    return sorted(found)
