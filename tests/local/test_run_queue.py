"""Jobs on some nodes of a pool: concurrent, queued and of several clients."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.waiting import wait_until

# Goes on until there is a file of its name.
JOB = """
name: {name}
num_nodes: {nodes}
workdir: .
run: |
  echo "$SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES and $(echo "$SKYPILOT_NODE_IPS" | wc -l) of $SKYWARD_WORLD_SIZE"
  while [ ! -e {name}.end ]; do sleep 0.05; done
"""


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("queue"))
    made.env["HOME"] = str(made.folder / "home")  # a job's shell reads its start-up file, and a person's may take locks
    made.write("up.yaml", "num_nodes: 3\nrun: 'true'\n")
    made("launch", "up.yaml", "-c", "q")
    yield made
    made("down", "--all", "-y", status=None)


_begun: list[Any] = []  # processes that launched this test's jobs


@pytest.fixture(autouse=True)
def empty_queue(cli: Cli) -> Iterator[None]:
    """Cancel runs that a failed test has left on the pool."""
    _begun.clear()
    yield
    if json.loads(found := cli("queue", "q", "--json", status=None).stdout or "{}").get("runs"):
        for row in json.loads(found)["runs"]:
            cli("cancel", row["run"], status=None)
        wait_until(lambda: not rows(cli), what="an empty queue")


def job(cli: Cli, name: str, nodes: int) -> Any:
    """Start the script's job in its own process."""
    cli.write(f"{name}.yaml", JOB.format(name=name, nodes=nodes))
    _begun.append(cli.begin("exec", "q", f"{name}.yaml"))
    return _begun[-1]


def exit_results() -> list[Any]:
    """Wait for these processes and return their statuses and output."""
    return [(each.returncode, each.stderr.read()) for each in _begun if each.poll() is not None]


def end_runs(cli: Cli, *names: str) -> None:
    for name in names:
        (cli.folder / f"{name}.end").touch()


def rows(cli: Cli) -> dict[str, Any]:
    return {each["name"]: each for each in cli.json("queue", "q")["runs"]}


def becomes(cli: Cli, **states: str) -> dict[str, Any]:
    """Wait until the queue has exactly these runs."""
    found: dict[str, Any] = {}

    def there() -> bool:
        found.clear()
        found.update(rows(cli))
        return {name: row["state"] for name, row in found.items()} == states

    wait_until(there, what=lambda: f"{states}: there is {found}; ended have {exit_results()}")
    return found


def test_jobs_run_concurrently_if_they_fit_and_queue_otherwise(cli: Cli) -> None:
    with job(cli, "first", 1) as first:
        becomes(cli, first="running")
        with job(cli, "second", 2) as second:
            both = becomes(cli, first="running", second="running")
            assert sorted(both["first"]["nodes"] + both["second"]["nodes"]) == [0, 1, 2]
            with job(cli, "wide", 2) as wide:
                becomes(cli, first="running", second="running", wide="waiting")
                with job(cli, "late", 1) as late:
                    found = becomes(cli, first="running", second="running", wide="waiting", late="waiting")
                    held = both["first"]["nodes"][0]
                    assert found["wide"]["reason"].startswith("queued: needs 2 nodes, 0 free; first (")
                    assert f") holds node {held} for 0:" in found["wide"]["reason"]
                    assert f"; behind wide ({found['wide']['run']})" in found["late"]["reason"]
                    # A node is free, and would do for the one that came later: it waits its turn all the same.
                    end_runs(cli, "first")
                    out = first.communicate()[0]
                    assert "r00" in out and "| 0 of 1 and 1 of 1" in out
                    found = becomes(cli, second="running", wide="waiting", late="waiting")
                    assert found["wide"]["reason"].startswith("queued: needs 2 nodes, 1 free; second (")
                    # Who was taken out is told so, and the next one has the turn.
                    assert cli.json("cancel", found["wide"]["run"])["state"] == "cancelled"
                    output = wide.communicate()[1]
                    assert f"run {found['wide']['run']} queued: needs 2 nodes, 0 free; first (" in output
                    assert f"run {found['wide']['run']} was cancelled" in output and wide.returncode != 0
                    becomes(cli, second="running", late="running")
                    end_runs(cli, "late", "second")
                    assert late.wait() == 0
                    lines = second.communicate()[0].splitlines()
                    assert sorted(line.split("| ")[1] for line in lines if "| " in line) == [
                        "0 of 2 and 2 of 2",
                        "1 of 2 and 2 of 2",
                    ]
    assert rows(cli) == {}


def test_queued_job_of_a_killed_client_is_dropped_and_running_continue(cli: Cli) -> None:
    with job(cli, "held", 2) as held:
        becomes(cli, held="running")
        with job(cli, "gone", 2) as gone:
            found = becomes(cli, held="running", gone="waiting")
            with job(cli, "next", 1) as following:
                becomes(cli, held="running", gone="waiting", next="waiting")
                gone.kill()
                gone.wait()
                becomes(cli, held="running", next="running")
                held.kill()
                held.wait()
                end_runs(cli, "next")
                assert following.wait() == 0
            becomes(cli, held="running")
    # All nodes are wanted: that is in the queue, too, behind the job whose client is gone.
    with cli.begin("exec", "q", "echo", "all") as every:
        found = becomes(cli, held="running", echo="waiting")
        assert found["echo"]["wants"] == 3
        end_runs(cli, "held")
        assert every.wait() == 0


@pytest.mark.proof("1 s of a processor")
def test_client_suspended_while_queued_prints_no_lines_of_other_runs(cli: Cli) -> None:
    cli.write("talks.yaml", JOB.format(name="talks", nodes=3) + "  echo the other\n")
    with cli.begin("exec", "q", "talks.yaml") as talks:
        becomes(cli, talks="running")
        with job(cli, "mine", 3) as mine:
            becomes(cli, talks="running", mine="waiting")
            os.kill(mine.pid, signal.SIGSTOP)
            end_runs(cli, "talks", "mine")
            assert talks.wait() == 0
            os.kill(mine.pid, signal.SIGCONT)
            out = mine.communicate()[0]
    assert mine.returncode == 0
    assert sorted(line.split("| ")[1] for line in out.splitlines() if "| " in line) == [
        f"{number} of 3 and 3 of 3" for number in range(3)
    ]


@pytest.mark.proof("1 s of a processor")
def test_failing_rank_ends_only_its_own_job(cli: Cli) -> None:
    cli.write("bad.yaml", "num_nodes: 2\nrun: '[ $SKYPILOT_NODE_RANK = 0 ] || exit 7; sleep 60'\n")
    with job(cli, "stays", 1) as handle:
        becomes(cli, stays="running")
        failed = cli("exec", "q", "bad.yaml", status=7)
        assert "ended with status 7" in failed.stderr
        assert cli("exec", "--nodes", "1", "q", "true").returncode == 0
        becomes(cli, stays="running")
        end_runs(cli, "stays")
        assert handle.wait() == 0


@pytest.mark.parametrize(
    "words, message",
    [
        (("exec", "--nodes", "4", "q", "true"), "true requests 4 nodes, but pool q has 3"),
        (("exec", "--nodes", "0,3", "q", "true"), "Pool q has no node 3: its nodes are 0 to 2"),
        (("exec", "--nodes", "1,1", "q", "true"), "neither a number of nodes nor a list of them"),
        (("exec", "--nodes", "1", "q", "up.yaml"), "hodes"),
        (("queue", "none"), "no pool 'none' is up"),
    ],
)
def test_invalid_node_selection_of_exec_is_rejected(cli: Cli, words: tuple[str, ...], message: str) -> None:
    cli.write("up.yaml", "num_nodes: 3\nrun: 'true'\n")
    done = cli(*words, status=None)
    assert done.returncode != 0 and message.replace("hodes", "Remove --nodes") in done.stderr
