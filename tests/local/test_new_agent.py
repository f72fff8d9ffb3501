"""An agent is killed after the client that made the pool: what the next one knows of variables, plugins, secrets."""

from __future__ import annotations

import json
import os
import signal
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.api.attach_and_results import Attached
from skyward_core.store.ledger import Ledger
from skyward_core.store.pool_folder import PoolFolder
from tests.support.child import read_line
from tests.support.faults import agent_pids
from tests.support.forked_clients import script
from tests.support.processes import descendants, exists
from tests.support.waiting import wait_until

PLUGIN = """
    from contextlib import contextmanager
    from skyward_core.plugins import Plugin

    class Hush(Plugin):
        name = "hush"
        def secrets(self):
            return ["of-the-plugin"]
        @contextmanager
        def around_process(self, info):
            os.environ["ENTERED"] = f"by rank {info.rank}"
            yield
"""

MAKER = """
    @sky.function
    def say():
        print("the secret of-the-plugin and of-the-pool", flush=True)

    if __name__ == "__main__":
        image = sky.Image(env={"EXTRA": "1", "MY_TOKEN": "of-the-pool"})
        options = sky.Options(console=CONSOLE, grace=0.5, cluster=CLUSTER)
        with sky.Compute(nodes=NODES, name="left", options=options, image=image, plugins=[PLUGINS]) as compute:
            say() @ compute
            print(([link.welcome["pid"] for link in compute.pool.links]), flush=True)
            time.sleep(600)
"""


BLANKED = "the secret ************* and ***********"


@sky.function
def seen() -> tuple[str | None, str | None, int]:
    return os.environ.get("EXTRA"), os.environ.get("ENTERED"), os.getpid()


def left_behind(
    home: Path, nodes: int, *, cluster: bool = True, plugins: str = "Hush()", console: bool = False
) -> list[int]:
    """A pool whose maker was killed; gives its agents."""
    text = textwrap.dedent(PLUGIN) + textwrap.dedent(MAKER)
    given = {"NODES": nodes, "CLUSTER": cluster, "CONSOLE": console, "PLUGINS": plugins}
    for name, value in given.items():
        text = text.replace(name, str(value))
    client = script(home, text)
    while not (line := read_line(client)).startswith("["):
        pass  # what the rank printed
    agents: list[int] = json.loads(line)
    client.kill()
    client.communicate()
    (row,) = Ledger().live_pools()
    for log in PoolFolder(row.key).folder.rglob("r*.out"):
        log.unlink()  # as if it had died before that came: the agents show it to the next client
    return agents


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that none sees the end of another
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(exists(pid) for pid in pids), what="their end")


def replace_workers(compute: sky.Compute | Attached) -> None:
    """End the ranks' processes, and wait until their agents know."""
    pids = [pid for _, _, pid in seen() @ compute]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), what="their end")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("cluster", [True, False], ids=["gang", "standalone"])
def test_another_node_tells_what_the_dead_agent_knew(home: Path, cluster: bool) -> None:
    agents = left_behind(home, 2, cluster=cluster)
    kill(agents[1], *descendants(agents[1]))
    with sky.attach("left") as compute:
        assert compute.pool.links[1].welcome["pid"] != agents[1]
        assert [each[:2] for each in seen() @ compute] == [("1", "by rank 0"), ("1", "by rank 1")]
        assert compute.pool.view.detail == ""
        # What the ranks printed before is shown by the new agent as the old one would have.
        shown = [compute.pool.view.logs.rank(rank) for rank in (0, 1)]
        wait_until(lambda: all(log.lines(0, 9) for log in shown), what="what was printed")
        assert {line for log in shown for line in log.lines(0, 9)} == {BLANKED}
        assert compute.down().ok


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("cluster", [True, False], ids=["gang", "standalone"])
def test_the_workers_that_it_left_tell_where_there_is_no_other_node(home: Path, cluster: bool) -> None:
    (agent,) = left_behind(home, 1, cluster=cluster)
    kill(agent)
    with sky.attach("left") as compute:
        replace_workers(compute)
        assert [each[:2] for each in seen() @ compute] == [("1", "by rank 0")]
        assert compute.pool.view.detail == ""
        shown = compute.pool.view.logs.rank(0)
        wait_until(lambda: shown.lines(0, 9), what="what was printed")
        assert shown.lines(0, 9) == [BLANKED]
        assert compute.down().ok


def test_where_nobody_knows_any_more_that_is_said(home: Path) -> None:
    (agent,) = left_behind(home, 1)
    kill(agent, *descendants(agent))
    with sky.attach("left") as compute:
        assert "environment variables lost (EXTRA, MY_TOKEN)" in compute.pool.view.detail
        with pytest.raises(sky.RunError, match="The pool's plugins are lost"):
            seen() @ compute
        assert compute.down().ok


def test_a_pool_without_plugins_goes_on_without_its_variables(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (agent,) = left_behind(home, 1, plugins="", console=True)
    kill(agent, *descendants(agent))
    with sky.attach("left") as compute:
        assert [each[:2] for each in seen() @ compute] == [(None, None)]
        assert compute.down().ok
    assert "pool left: environment variables lost (EXTRA, MY_TOKEN)" in capsys.readouterr().err


@pytest.mark.proof("1 s of a processor")
def test_a_client_that_came_later_starts_an_agent_that_knows_it_all(home: Path) -> None:
    left_behind(home, 1)
    with sky.attach("left") as compute:
        agent = compute.pool.links[0].welcome["pid"]
        kill(agent, *descendants(agent))
        wait_until(lambda: compute.pool.links[0].welcome["pid"] != agent, what="a new agent")
        assert [each[:2] for each in seen() @ compute] == [("1", "by rank 0")]
        replace_workers(compute)
        assert [each[:2] for each in seen() @ compute] == [("1", "by rank 0")]
        assert compute.down().ok


def test_workers_that_it_left_stay_in_their_gang(home: Path) -> None:
    with sky.Compute(nodes=2, options=sky.Options(console=False)) as compute:
        before = seen() @ compute
        agent, _ = agent_pids(compute)
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: agent_pids(compute)[0] != agent, what="a new agent")
        assert seen() @ compute == before


def test_a_worker_that_greets_too_late_is_none_of_the_new_gang(home: Path) -> None:
    with sky.Compute(options=sky.Options(console=False)) as compute, ThreadPoolExecutor() as thread:
        ((*_, worker),) = seen() @ compute
        (agent,) = agent_pids(compute)
        os.kill(worker, signal.SIGSTOP)
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: agent_pids(compute) != [agent], what="a new agent")
        result = thread.submit(lambda: seen() @ compute)
        wait_until(lambda: compute.pool.links[0].epoch, what="a new gang")
        os.kill(worker, signal.SIGCONT)
        ((*_, after),) = result.result(60)
        assert after != worker
        assert not exists(worker)


@sky.function(timeout=1.5)
def sits(begun: Path) -> None:
    begun.touch()
    time.sleep(600)


def test_a_time_limit_outlives_the_agent_that_began_it(home: Path, tmp_path: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, grace=0.5)) as compute:
        (agent,) = agent_pids(compute)
        seen() @ compute  # what a worker has told just before is told again to the new agent
        future = sits(tmp_path / "begun") > compute
        wait_until((tmp_path / "begun").exists, what="that it runs")
        kill(agent)
        with pytest.raises(sky.RunError, match="ran longer than its timeout"):
            future.result(20)
        assert agent_pids(compute) != [agent]
