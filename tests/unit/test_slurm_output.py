"""Parsing of Slurm output, recorded and generated, and allocation scripts."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import skyward_core as sky
from skyward_core.model import accelerators
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.offers_and_rental_plans import MachineRequirements
from skyward_core.model.provider_settings_schema import Setting
from skyward_core.providers.slurm import allocation, provider, slurm_commands
from skyward_core.providers.slurm.allocation import AllocationFolder, Submission
from skyward_core.providers.slurm.provider import limit_seconds, list_allocations, make_comment
from skyward_core.providers.slurm.slurm_commands import CommandFailed, NoSlurm, SlurmCommands

# Slurm 22.05.8, SLURM_TIME_FORMAT=%s
QUEUE = """\
5|RUNNING|n[1-2]|1795525075|1795528675|skyward-p.e92c9a41796cbb2a|skyward ledger 0123456789abcdef|None
6|PENDING||N/A|N/A|skyward-q.77d2531e55a78123|skyward ledger 0123456789abcdef|Resources
7|PENDING||N/A|N/A|skyward-r.77d2531e55a78124|(null)|PartitionTimeLimit
8|CANCELLED|n[1-2]|1795525075|1795525079|skyward-p.e92c9a41796cbb2a|(null)|None
9|NODE_FAIL|n[1-2]|1795525075|1795525079|skyward-s.e92c9a41796cbb2a|(null)|NodeDown
10|TIMEOUT|n1|1795525075|1795525135|skyward-t.e92c9a41796cbb2a|(null)|TimeLimit
"""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKVtHqlL4Ng7Lya5A0pX3FtlqV0eD0zB8c4Xl0b9yQ1n"


def test_squeue_output_is_parsed() -> None:
    found = slurm_commands.parse_jobs(QUEUE)
    assert [each.state for each in found[:3]] == ["RUNNING", "PENDING", "PENDING"]
    assert (found[0].nodes, found[0].start, found[0].end) == ("n[1-2]", 1795525075.0, 1795528675.0)
    assert found[1].start is None and found[1].wait_reason == "no nodes are free (Resources)"
    assert found[2].wait_reason.endswith("will never start; reduce time= (PartitionTimeLimit)")
    assert [each.has_ended for each in found] == [False, False, False, True, True, True]
    assert [each.end_reason for each in found[3:]] == [
        "allocation 8 ended: it was cancelled (scancel)",
        "allocation 9 ended: a node failed; NodeDown",
        "allocation 10 ended: its time limit was reached",
    ]


def test_sacct_state_explains_the_end_of_a_job() -> None:
    assert slurm_commands.job_end_reason("5", "TIMEOUT\n") == "allocation 5 ended: its time limit was reached"
    assert slurm_commands.job_end_reason("5", "CANCELLED by 1000\n") == "allocation 5 ended: it was cancelled (scancel)"
    assert slurm_commands.job_end_reason("5", "RUNNING\n") == slurm_commands.job_end_reason("5", "") == ""


def test_unknown_slurm_reason_is_shown_sanitized() -> None:
    (job,) = slurm_commands.parse_jobs("1|PENDING||N/A|N/A|a.b|c|Strange\x1b]0;owned\x07, (say|what)")
    assert job.wait_reason == "Strange, (say|what)"


@pytest.mark.parametrize(
    "line", ["nonsense", "x|RUNNING|n1|1|2|a|b|c", "1|running|n1|1|2|a|b|c", "1|RUNNING|n1;rm|1|2|a|b|c", "1|R"]
)
def test_invalid_squeue_line_is_rejected_unless_of_another_job(line: str) -> None:
    with pytest.raises(PoolError, match="invalid output line of squeue"):
        slurm_commands.parse_jobs(line)
    assert slurm_commands.parse_jobs(f"{line}\n1|RUNNING|n1|1|2|a|b|c", ours="skyward-") == []


@given(st.text())
def test_any_slurm_output_is_parsed_or_rejected(text: str) -> None:
    readers: list[Callable[[str], Any]] = [
        slurm_commands.parse_jobs,
        slurm_commands.parse_job_id,
        slurm_commands.parse_hostnames,
        slurm_commands.parse_partitions,
    ]
    for read in [*readers, lambda text: slurm_commands.parse_node_reports(text, 2)]:
        try:
            read(text)
        except PoolError as error:
            assert "\x1b" not in str(error) and "\n" not in str(error)


def test_job_number_is_parsed_from_sbatch_output() -> None:
    assert slurm_commands.parse_job_id("12\n") == "12"
    assert slurm_commands.parse_job_id("a site's greeting\n12;cluster\n") == "12"
    with pytest.raises(PoolError, match="printed no job number"):
        slurm_commands.parse_job_id("12 and more; rm")


def test_node_reports_are_parsed_and_must_be_complete() -> None:
    lines = [f"skyward-node {n} n{n} 10.0.0.{n} 2{n}001 me {KEY}" for n in (1, 0)]
    found = slurm_commands.parse_node_reports("\n".join(["a task prolog says this", *lines]), 2)
    assert [(each.index, each.address, each.port, each.user) for each in found] == [
        (0, "10.0.0.0", 20001, "me"), (1, "10.0.0.1", 21001, "me")
    ]  # fmt: skip
    with pytest.raises(PoolError, match="no report from node 1 of the allocation"):
        slurm_commands.parse_node_reports(lines[1], 2)
    with pytest.raises(PoolError, match="invalid report"):
        slurm_commands.parse_node_reports("\n".join([*lines, lines[0]]), 2)
    with pytest.raises(PoolError, match="node 1: n1 has no sshd: install the OpenSSH server on the nodes"):
        slurm_commands.parse_node_reports(
            f"{lines[1]}\nskyward-error 1 n1 has no sshd: install the OpenSSH server on the nodes", 2
        )


def test_partitions_and_their_gpus_are_parsed() -> None:
    values = [
        "short*|up|2|2|500|1:00:00|idle|gpu:a100:2(S:0-1),gpu:tesla_v100-sxm2-16gb:4",
        "?",
        "a|up|²|2|5|1|idle|(null)",
    ]
    short, fat = slurm_commands.parse_partitions("\n".join([*values, "fat|down|3+|64|1000+|infinite|mix|(null)"]))
    assert slurm_commands.select_partition([fat, short], None) == [short] and slurm_commands.select_partition(
        [fat], "fat"
    ) == [fat]
    assert short.gpus == (("a100", 2), ("tesla_v100-sxm2-16gb", 4))
    assert str(fat) == "3 nodes mix, each 64 CPUs, 0.9 GB, no GPU; time limit infinite" and not fat.is_up


@pytest.mark.parametrize(
    ("name", "memory", "there", "fitting"),
    [
        ("A100", None, ["a100", "a10", "h100"], ["a100"]),
        ("A10", None, ["a100", "nvidia_a10", "a10g"], ["nvidia_a10"]),
        ("A100", 80.0, ["a100_40gb", "nvidia_a100-sxm4-80gb"], ["nvidia_a100-sxm4-80gb"]),
        ("A100", None, ["a100_40gb", "a100_80gb"], ["a100_40gb", "a100_80gb"]),
        ("L4", None, ["l40s", ""], []),
    ],
)
def test_accelerator_matches_gpu_types_of_the_cluster(
    name: str, memory: float | None, there: list[str], fitting: list[str]
) -> None:
    assert slurm_commands.matching_gpu_types(name, memory, there) == fitting


def test_partitions_become_offers_without_prices() -> None:
    there = slurm_commands.parse_partitions("\n".join([
        "gpu|up|2|64|512000|1:00:00|mix|gpu:a100:8(S:0-1)", "gpu|up|1|64|512000|1:00:00|idle|gpu:a100:8(S:0-1)",
        "cpu|up|9|32|128000|1:00:00|idle|(null)", "old|down|9|32|128000|1:00:00|idle|gpu:a100:8",
    ]))  # fmt: skip
    plain = provider.select_offers(provider.make_offers(there, MachineRequirements(), "slurm"), MachineRequirements())
    assert [(each.region, each.instance_type, each.hourly) for each in plain] == [
        ("cpu", "32cpu-125gb", None), ("gpu", "64cpu-500gb", None)
    ]  # fmt: skip
    two = MachineRequirements(accelerator=accelerators.resolve("A100:2"), memory_gb=200)
    (offer,) = provider.select_offers(provider.make_offers(there, two, "slurm"), two)
    assert (offer.instance_type, offer.accelerator, offer.count) == ("64cpu-500gb-2xa100", "A100", 2)
    sixteen = MachineRequirements(accelerator=accelerators.resolve("A100:16"))
    with pytest.raises(
        UsageError, match="no Slurm node fits the request; the nearest: 64cpu-500gb-8xa100 in gpu has 8 A100"
    ):
        provider.select_offers(provider.make_offers(there, sixteen, "slurm"), sixteen)
    any_gpu = provider.make_offers(there, MachineRequirements(any_accelerator=True), "slurm")
    assert [(each.accelerator, each.count) for each in any_gpu] == [("a100", 8)]


@pytest.mark.parametrize(
    "wish", [{"regions": ("r",)}, {"max_hourly": 1.0}, {"allocation": "spot"}, {"architecture": "arm64"}, {"efa": True}]
)
def test_requirements_unsupported_by_slurm_are_rejected(wish: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="Slurm"):
        provider.reject_unsupported(MachineRequirements(**wish))
    with pytest.raises(UsageError, match=r"no regions \(got 'here'\)"):
        sky.Slurm().within(["here"])


def test_allocations_of_this_ledger_are_found_by_name_and_comment() -> None:
    found = list_allocations(slurm_commands.parse_jobs(QUEUE), "here", "0123456789abcdef")
    assert [(each.pool, each.ours) for each in found[:3]] == [("p", True), ("q", True), ("r", False)]
    assert make_comment("x") == "skyward ledger x"
    for name in ("skyward-p", "skyward-.abc", "other-p.abc", "skyward-p.a/b"):
        assert allocation.parse_job_name(name) is None
    assert allocation.parse_job_name(allocation.job_name("a-b", "0f")) == ("a-b", "0f")


def test_allocation_ends_only_with_all_its_machines() -> None:
    machines = [
        Machine(f"{job}/n{n}", n, "", "", extra={"job": job, "nodes": 2}) for job, n in (("1", 0), ("1", 1), ("2", 0))
    ]
    assert allocation.complete_allocations(machines) == ["1"]


@pytest.mark.parametrize(
    "wish",
    [
        {"partition": "a b"}, {"partition": "--wrap=x"}, {"account": ""}, {"time": "soon"},
        {"gres": "gpu:2 --wrap x"}, {"memory": "much"}, {"constraint": "a;b"}, {"cpus": 0}, {"host_keys": "never"},
        {"keys": "~/.ssh/id"}, {"login": "-oProxyCommand=x"},
    ],
)  # fmt: skip
def test_invalid_slurm_settings_are_rejected(wish: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        sky.Slurm(**wish)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("2:30", 150), ("1:00:05", 3605), ("2-0", 172800), ("1-2:30", 95400), ("0-0:1:7", 67)],
)
def test_time_limit_is_read_as_sbatch_does(time: str, seconds: int) -> None:
    assert limit_seconds(time) == seconds


def test_slurm_provider_round_trips_through_json() -> None:
    made = sky.Slurm(partition="gpu", login="me@login1:2222", keys=["~/.ssh/id"], time="1-0", constraint="a100&ib")
    assert sky.Slurm.from_json(made.to_json()) == made
    assert all(isinstance(each, Setting) for each in made.settings)


def test_allocation_script_is_portable_shell_without_secrets(tmp_path: Path) -> None:
    text = allocation.make_script("p", KEY, allocation.Submission([], "p.01234567", 600, 120))
    assert "@" not in text.replace('"$@"', "") and "PRIVATE" not in text
    for shell in filter(shutil.which, ("dash", "bash", "busybox")):
        words = [shell, "sh", "-n"] if shell == "busybox" else [shell, "-n"]
        subprocess.run(words, input=text, text=True, check=True)


async def test_slurm_commands_get_no_user_variables_and_report_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_WRAP", "x")
    monkeypatch.setenv("HF_TOKEN", "secret")
    output = await SlurmCommands(None)("env")
    assert "SBATCH" not in output and "secret" not in output and "SLURM_TIME_FORMAT=%s" in output
    with pytest.raises(CommandFailed, match="no-such-program was not found on this machine: set login="):
        await SlurmCommands(None)("no-such-program")
    with pytest.raises(NoSlurm, match=r"is not configured: sh finds no slurm\.conf"):
        await SlurmCommands(None)("sh", "-c", "echo fatal: Could not establish a configuration source >&2; exit 1")
    with pytest.raises(CommandFailed, match=r"sh on this machine failed: wrong$"):
        await SlurmCommands(None)("sh", "-c", "printf '\\033[2Jwrong' >&2; exit 3")
    with pytest.raises(PoolError, match=r"sleep on this machine gave no answer within 0.2 s"):
        await SlurmCommands(None)("sleep", "30", seconds=0.2)


def test_slurm_login_keys_are_created_once_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    folder = AllocationFolder("p", "0123")
    assert not folder.is_never_submitted
    folder.create()
    assert folder.is_never_submitted
    public = folder.record_request()
    assert (
        public == folder.record_request() and public.startswith("ssh-ed25519 ") and folder.last_submitted_at is not None
    )
    assert folder.login_key.stat().st_mode & 0o077 == 0
    folder.record_answer(submitted=False)
    assert folder.last_submitted_at is None and folder.is_never_submitted
    folder.record_request()
    folder.record_answer(submitted=True)
    assert folder.last_submitted_at is None and not folder.is_never_submitted
    folder.write_known_hosts(slurm_commands.parse_node_reports(f"skyward-node 0 n0 10.0.0.1 2201 me {KEY}", 1))
    assert folder.known_hosts.read_text() == f"[10.0.0.1]:2201 {KEY}\n"
    (again,) = AllocationFolder.find_all("p")
    again.remove()
    assert not folder.path.exists()


class Queue:
    """Slurm commands of a cluster whose nodes are all in use."""

    def __init__(self) -> None:
        self.submitted: list[list[str]] = []

    @asynccontextmanager
    async def hold_connection(self) -> AsyncIterator[None]:
        yield

    async def __call__(self, program: str, *options: str, **_: Any) -> str:
        await asyncio.sleep(0.01)
        if program == "sbatch":
            self.submitted.append([each for each in options if each.startswith("--nodes")])
            return f"{len(self.submitted)}\n"
        lines = [f"{n}|PENDING||N/A|N/A|skyward-p.t|(null)|Resources\n" for n in range(1, len(self.submitted) + 1)]
        return "7|TIMEOUT|n1|1|2|skyward-p.t|(null)|TimeLimit\n" + "".join(lines)


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """Return the queue of a pool p with two of at most eight nodes, whose allocation 7 has ended."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(provider.Slurm, "_commands", queue := Queue())
    folder = AllocationFolder("p", "t")
    folder.create()
    folder.save_submission(Submission(["--nodes=2-8"], "p.t", 300, 120))
    folder.record_request()
    folder.record_answer(submitted=True)
    return queue


LAST = [Machine(f"7/n{n}", n, "", "", extra={"job": "7", "nodes": 2, "token": "t"}) for n in range(2)]


async def test_allocation_is_submitted_again_once_and_with_as_many_nodes(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def take(_: object, folder: AllocationFolder, id: str) -> list[str]:
        return [id, folder.submission.folder]

    monkeypatch.setattr(provider.Slurm, "_take_nodes", take)
    clients = [sky.Slurm()._move("p", token, last) for token, last in zip(("aa", "bb"), LAST, strict=True)]
    first, second = await asyncio.gather(*clients)
    assert first == second and first[0] == "1"
    assert queue.submitted == [["--nodes=2"]]


async def test_end_of_a_pool_cancels_the_wait_for_its_next_allocation(queue: Queue) -> None:
    slurm = sky.Slurm()
    waits = [asyncio.ensure_future(slurm.replace("p", "aa", node, [], [LAST[node]])) for node in range(2)]
    while not queue.submitted:
        await asyncio.sleep(0.01)
    ((moving, _),) = provider._moving.values()
    for node, is_last in ((0, False), (1, True)):
        waits[node].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits[node]
        assert moving.done() == is_last
    assert provider._moving == {}
