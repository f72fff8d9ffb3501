"""Machines of a pool are measured: from a real agent into a script, also one that comes later; and how that ends."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.pool.machine_metrics import AGENT_TOO_OLD
from tests.support.cli import Cli
from tests.support.fake_driver import compiled, needs_compiler
from tests.support.faults import agent_pids
from tests.support.processes import descendants, exists
from tests.support.prometheus_parser import parsed
from tests.support.sessions import new_session
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False)


@sky.function
def train(steps: int) -> int:
    for step in range(steps):
        sky.log(loss=1.0 / (1 + step))
    return steps


def samplers(agent: int) -> list[int]:
    found = []
    for pid in descendants(agent):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"machine_metrics" in line:
            found.append(pid)
    return found


@needs_compiler
def test_a_run_its_gpus_and_who_comes_later(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpus").write_text("util=98 watts=650\nutil=12 throttle=64\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(compiled(tmp_path)))
    monkeypatch.setenv("FAKE_GPUS", "ww")
    monkeypatch.setenv("FAKE_GPU_FILE", str(tmp_path / "gpus"))
    with sky.Compute(name="measured", nodes=1, options=QUIET) as compute:
        (agent,) = agent_pids(compute)
        assert samplers(agent) == [], "nobody has asked"
        future = train(5) > compute
        assert future.result() == 5
        wait_until(lambda: "util" in compute.metrics().names)
        machine = compute.metrics()
        assert [curve.latest for curve in machine.of("util")] == [98, 12]
        assert {curve.model for curve in machine.of("util")} == {"NVIDIA H100 80GB HBM3"}
        assert {"cpu", "memory_used", "spool_free"} <= set(machine.names)
        assert machine.notes == []
        (loss,) = future.metrics().of("loss")
        assert (loss.rank, len(loss), loss.latest) == (0, len(loss.at), 0.2)
        with pytest.raises(sky.UsageError, match="has no known run nosuch"):
            compute.metrics("nosuch")
        with new_session() as session:
            first = machine.of("memory_used")[0].at[0]
            view = session.start_sampling("measured").result()
            assert view.machines is not None
            assert view.machines.nodes[0].host.trace("memory_used").at[0] == first, "the past is there"
        (sampler,) = samplers(agent)
    wait_until(lambda: not exists(sampler))


def test_a_sampler_that_is_stopped_ends_with_its_agent_that_is_killed(home: Path) -> None:
    with sky.Compute(name="killed", nodes=1, options=QUIET) as compute:
        assert compute.metrics().of("memory_used")
        (agent,) = agent_pids(compute)
        (sampler,) = samplers(agent)
        os.kill(sampler, signal.SIGSTOP)
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: not exists(sampler))
        # Another agent follows, and goes on where the samples of the first one ended.
        wait_until(lambda: agent_pids(compute) not in ([], [agent]))
        before = len(compute.metrics().of("memory_used")[0])
        wait_until(lambda: len(compute.metrics().of("memory_used")[0]) > before)


def test_an_agent_of_an_older_release_is_told_apart(home: Path) -> None:
    with sky.Compute(name="older", nodes=1, options=QUIET) as compute:
        compute.pool.links[0].welcome["knows"] = ["stacks"]  # as one greets that knows nothing of it
        found = compute.metrics()
        assert (len(found), found.notes) == (0, [f"node 0: {AGENT_TOO_OLD}"])
        assert train(1) @ compute == [1]


def test_the_command_line_shows_machines_and_writes_what_there_is(home: Path, cli: Cli, tmp_path: Path) -> None:
    with sky.Compute(name="shown", nodes=2, options=QUIET) as compute:
        train(3) @ compute
        table = cli("top", "shown", "--once").stdout.splitlines()
        assert [line.split()[0] for line in table if line] == ["node", "n0", "n1"]
        told = json.loads(cli("top", "shown", "--once", "--json").stdout)
        assert all(node["figures"]["memory_total"] > 0 for node in told["nodes"])
        found = parsed(cli("metrics", "shown", "--prometheus").stdout)
        assert {labels["rank"] for labels, _ in found["skyward_rank_number"][1]} == {"0", "1"}
        cli("metrics", "shown", "-o", str(tmp_path / "all.csv"))
        names = {row["name"] for row in csv.DictReader((tmp_path / "all.csv").open())}
        assert "loss" in names
        again = cli("metrics", "shown", "-o", str(tmp_path / "all.csv"), status=2)
        assert "already exists" in again.stderr
    assert [curve["name"] for curve in json.loads(cli("metrics", "shown", "--json").stdout)["curves"]] == ["loss"] * 2
