"""Metrics of ranks and machines in the client's view, alerts, tables and files."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.pool.machine_metrics_recorder import AGENT_TOO_OLD
from skyward_core.views.problem_alerts_and_stragglers import find_alerts
from tests.support.cli import Cli
from tests.support.fake_driver import compiled, needs_compiler
from tests.support.faults import agent_pids
from tests.support.images import picture
from tests.support.processes import descendants, exists
from tests.support.prometheus_parser import parsed
from tests.support.sessions import new_session
from tests.support.waiting import wait_until


@sky.function
def train(steps: int) -> int:
    rank = sky.instance_info().rank
    for step in range(steps):
        sky.log(step=step, loss=rank + 1 / (step + 1))
    return rank


def test_metrics_of_all_ranks_are_complete_when_the_run_ends(pool: sky.Compute) -> None:
    train(500) @ pool
    run = list(pool.pool.view.runs)[-1]
    book = pool.pool.view.metrics
    for rank in range(4):  # they come in pieces
        last = {"step": 499, "loss": rank + 1 / 500}
        wait_until(lambda: book.latest(run, rank) == last, what=f"the last numbers of rank {rank}")  # noqa: B023
    assert book.ranks(run) == [0, 1, 2, 3]
    assert not [line for line in pool.pool.view.logs.rank(0).lines(0, 99) if "loss" in line]


def test_metrics_of_runs_and_slots_do_not_mix_and_reach_later_clients(home: Path) -> None:
    worker = sky.Worker(concurrency=2)
    options = sky.Options(console=False)
    with sky.Compute(name="nums", nodes=1, worker=worker, options=options) as compute:
        first, second = (train(3) & train(5)) >> compute, train(7) >> compute
        assert (first, second) == ((0, 0), 0)
        one, two = list(compute.pool.view.runs)
        book = compute.pool.view.metrics
        wait_until(lambda: book.latest(two, 0).get("step") == 6, what="the second run's numbers")
        wait_until(lambda: book.latest(one, 0).get("step") in (2, 4), what="the first run's last numbers")
        compute.pool.news.records.flush()
        other = Session()
        view = other.attach("nums").result(timeout=90)
        wait_until(lambda: view.metrics.latest(two, 0).get("step") == 6, what="numbers for a later client")
        other.detach()


@sky.function
def paint(data: bytes, until: Path) -> int:
    for step in (1, 2):
        sky.log_image("a/../b\x1b[2J", data, step=step)
    while not until.exists():
        time.sleep(0.02)
    return step


def test_images_are_visible_during_the_run_and_their_files_are_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", cli.env["SKYWARD_HOME"])
    monkeypatch.chdir(tmp_path)
    with sky.Compute(name="painted", nodes=2, options=sky.Options(console=False)) as compute:
        future = paint(picture(), tmp_path / "end") > compute
        view = compute.pool.view.metrics
        wait_until(lambda: [each.step for each in view.images(future.run)] == [2], what="the second image")
        (image,) = view.images(future.run)
        assert (image.name, image.preview) == ("a/../b", picture())
        assert image.path.startswith(f"images/{future.run}/a____b") and image.path.endswith("-2-0.png")
        assert (tmp_path / image.path).read_bytes() == picture()
        listed = {"name": image.name, "rank": image.rank, "step": 2, "path": image.path}
        compute.pool.news.records.flush()
        assert cli.json("metrics", future.run)["images"] == [listed]
        assert f"image a/../b, rank {image.rank}, step 2: {image.path}" in cli("metrics", future.run).stdout
        (tmp_path / "end").touch()
        assert future.result(60) == 2
    assert cli.json("metrics", future.run)["images"] == [listed], "after the pool has ended"


@pytest.mark.proof("1 s of a processor")
def test_run_command_ends_with_the_latest_metrics(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import skyward as sky\n@sky.function\ndef train():\n    sky.log(step=1234, loss=2.31449)\n")
    done = cli("run", str(script), "--nodes", "2")
    assert done.returncode == 0, done.stderr
    assert "last metrics (rank 0 of 2): step 1,234  loss 2.314" in done.stderr


@sky.function
def diverges(steps: int) -> int:
    rank = sky.instance_info().rank
    for step in range(steps):
        sky.log(step=step, loss=float("nan") if rank == 2 and step >= 3 else 1.0)
        time.sleep(0.06)  # below what is thinned
    return rank


def test_nan_loss_alert_names_rank_and_first_step(pool: sky.Compute) -> None:
    diverges(8) @ pool
    view = pool.pool.view
    run = view.runs[list(view.runs)[-1]]
    wait_until(lambda: view.metrics.latest(run.id, 2).get("step") == 7, what="the last numbers of rank 2")
    (alert,) = find_alerts(view, run, time.time())
    assert (alert.kind, alert.who, alert.words) == ("nan", "rank 2", "loss is NaN from step 3 on")
    assert run.opened_at <= alert.since <= time.time()


@sky.function
def diverged_and_waits(until: Path) -> None:
    sky.log(step=7, loss=float("nan"))
    while not until.exists():
        time.sleep(0.02)


@pytest.mark.proof("0.5 s of a processor")
def test_alerts_are_available_in_the_api_and_top_command(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", cli.env["SKYWARD_HOME"])
    with sky.Compute(name="amiss", nodes=1, options=sky.Options(console=False)) as compute:
        run = diverged_and_waits(tmp_path / "end") > compute
        wait_until(lambda: compute.pool.view.metrics.latest(run.run, 0), what="its number")
        found = [alert for alert in run.alerts() if alert.kind == "nan"]  # this machine may be short of memory
        assert [(alert.who, alert.words) for alert in found] == [("rank 0", "loss is NaN from step 7 on")]
        data = cli.json("top", "amiss", "--once")["alerts"]
        data = [alert for alert in data if alert["kind"] == "nan"]
        assert data == [{"run": run.run} | found[0].to_json() | {"since": data[0]["since"]}]
        assert f"! run {run.run}: nan: rank 0 since " in cli("top", "amiss", "--once").stdout
        with pytest.raises(sky.UsageError, match="has no run nothing"):
            compute.alerts("nothing")
        (tmp_path / "end").touch()
        run.result(60)
        assert [alert.kind for alert in run.alerts()] == ["nan"]


QUIET = sky.Options(console=False)


@sky.function
def prints(steps: int) -> int:
    child = "import sys; print('step 1000: loss 0.001', file=sys.stderr)"
    for step in range(steps):
        print(f"step {step}: loss {1 / (step + 1):.4f}")
    subprocess.run([sys.executable, "-c", child], check=True)
    print("step 2000: loss 0.0005", file=sys.stderr)
    return steps


@pytest.mark.parametrize("way", ["default", "option", "variable"])
def test_printed_metrics_are_recorded_unless_disabled(home: Path, way: str) -> None:
    options = sky.Options(console=False, collect_metrics=way != "option")
    image = sky.Image(env={"SKYWARD_COLLECT_METRICS": "0"} if way == "variable" else {})
    with sky.Compute(nodes=1, options=options, image=image) as compute:
        run = prints(5) > compute
        assert run.result(60) == 5
        book = compute.pool.view.metrics
        if way != "default":
            assert log_losses(1) @ compute == [1]  # the file with later metrics has arrived
            wait_until(lambda: book.names([*compute.pool.view.runs][-1]), what="the later metrics")
            assert book.names(run.run) == []
            return
        wait_until(lambda: book.latest(run.run, 0).get("step") == 2000, what="the last line")
        (loss,) = run.metrics().of("loss")
        assert list(loss.values)[:5] == [1.0, 0.5, 0.3333, 0.25, 0.2] and loss.origin == "from the log"


@sky.function
def log_losses(steps: int) -> int:
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
        if b"machine_metrics_sampler" in line:
            found.append(pid)
    return found


@needs_compiler
def test_machine_metrics_of_a_run_include_gpus_for_later_clients(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpus").write_text("util=98 watts=650\nutil=12 throttle=64\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(compiled(tmp_path)))
    monkeypatch.setenv("FAKE_GPUS", "ww")
    monkeypatch.setenv("FAKE_GPU_FILE", str(tmp_path / "gpus"))
    with sky.Compute(name="measured", nodes=1, options=QUIET) as compute:
        (agent,) = agent_pids(compute)
        assert samplers(agent) == [], "nobody has asked"
        future = log_losses(5) > compute
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


def test_frozen_sampler_ends_with_its_killed_agent(home: Path) -> None:
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


def test_metrics_of_an_older_agent_are_noted_as_unavailable(home: Path) -> None:
    with sky.Compute(name="older", nodes=1, options=QUIET) as compute:
        compute.pool.links[0].welcome["knows"] = ["stacks"]  # as one greets that knows nothing of it
        found = compute.metrics()
        assert (len(found), found.notes) == (0, [f"node 0: {AGENT_TOO_OLD}"])
        assert log_losses(1) @ compute == [1]


def test_top_and_metrics_commands_show_and_export_metrics(home: Path, cli: Cli, tmp_path: Path) -> None:
    with sky.Compute(name="shown", nodes=2, options=QUIET) as compute:
        log_losses(700) @ compute  # more than a screen shows
        (run,) = compute.pool.view.runs
        book = compute.pool.view.metrics
        wait_until(lambda: all(book.latest(run, rank).get("loss") == 1 / 700 for rank in (0, 1)), what="all values")
        assert len(book.trace(run, 0, "loss").at) < 700
        assert [len(curve) for curve in compute.metrics(run).of("loss")] == [700, 700]
        table = cli("top", "shown", "--once").stdout.splitlines()
        assert [line.split()[0] for line in table if line] == ["node", "n0-1"]
        report = json.loads(cli("top", "shown", "--once", "--json").stdout)
        assert all(node["figures"]["memory_total"] > 0 for node in report["nodes"])
        (listed,) = json.loads(cli("ls", "--json").stdout)["pools"][0]["runs"]
        assert listed["metrics"] == {"loss": 1 / 700}
        found = parsed(cli("metrics", "shown", "--prometheus").stdout)
        assert {labels["rank"] for labels, _ in found["skyward_rank_number"][1]} == {"0", "1"}
        cli("metrics", "shown", "-o", str(tmp_path / "all.csv"))
        with (tmp_path / "all.csv").open() as file:
            losses = [row["rank"] for row in csv.DictReader(file) if row["name"] == "loss"]
        assert sorted(losses) == ["0"] * 700 + ["1"] * 700
        again = cli("metrics", "shown", "-o", str(tmp_path / "all.csv"), status=2)
        assert "already exists" in again.stderr
    curves = json.loads(cli("metrics", "shown", "--json").stdout)["curves"]
    assert [(curve["name"], len(curve["values"])) for curve in curves] == [("loss", 700)] * 2


@sky.function
def log_until(path: str) -> None:
    while not Path(path).exists():
        sky.log(loss=0.5)
        time.sleep(0.05)


def test_metrics_command_serves_prometheus_until_the_run_ends(home: Path, cli: Cli, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with sky.Compute(name="served", nodes=2, options=QUIET) as compute:
        running = log_until(str(go)) > compute
        command = [sys.executable, "-m", "skyward_tui", "metrics", "served", "--prometheus", "--port", "0"]
        server = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "SKYWARD_HOME": str(home)}
        )
        try:
            assert server.stderr is not None
            url = next(word for line in server.stderr for word in line.split() if word.startswith("http://127.0.0.1:"))

            def scraped() -> Iterable[str]:
                with urllib.request.urlopen(url, timeout=10) as response:
                    return parsed(response.read().decode())

            wait_until(
                lambda: {"skyward_rank_number", "skyward_node_memory_total_bytes"} <= set(scraped()), what="both"
            )
            go.touch()
            running.result()
            assert server.wait(30) == 0
        finally:
            server.kill()
            server.wait()
        assert "tb/" in cli("metrics", "served", "--to", f"tensorboard:{tmp_path}/tb").stderr
        assert "--port needs --prometheus" in cli("metrics", "served", "--port", "1", status=2).stderr
