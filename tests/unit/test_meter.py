"""The process that measures a machine, as its agent sees to it: it may hang or die, and readers come and go."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skyward_core.node.agent import metrics_sampler_process
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.gpu_list import resolve_ranks_per_gpu
from skyward_core.node.agent.metrics_sampler_process import SamplerProcess
from skyward_core.node.bootstrap.host_inspection import find_node_processes
from skyward_core.node.machine_metrics.sampler import SampleFiles
from skyward_core.protocol.frame_codec import Header
from tests.support.agent_parts import Node, Speaker
from tests.support.waiting import until


class Reader:
    """A client that asks for figures from a byte on."""

    def __init__(self, meter: SamplerProcess, at: int = 0, speaker: Speaker | None = None) -> None:
        self.speaker = speaker or Speaker(Connection(lambda *_: None, lambda _: None))
        self.frames = self.speaker.socket.frames
        self.task = asyncio.create_task(meter.stream(self.speaker.connection, at))

    def values(self) -> list[int]:
        return [json.loads(line)["n"] for _, body in self.frames for line in body.splitlines()]

    def whys(self) -> list[str]:
        return [header["why"] for header, _ in self.frames if "why" in header]


class Metered(Node):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.meter = SamplerProcess(self.state.config)
        self.record = SampleFiles(self.state.config.paths.samples, size=200)

    @property
    def processes(self) -> list[int]:
        return list(find_node_processes(self.state.config.folder))


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Metered]:
    monkeypatch.setattr(metrics_sampler_process, "PERIOD", 0.01)
    monkeypatch.setattr(metrics_sampler_process, "PROGRESS_POLL", 0.5)
    monkeypatch.setattr(metrics_sampler_process, "RESTART_DELAYS", (0.01, 0.02))
    found = Metered(tmp_path)
    yield found
    found.meter.stop()


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured: what is read was written by the test."""
    monkeypatch.setattr(SamplerProcess, "ensure_running", lambda self: None)


async def test_who_comes_later_sees_the_past_and_goes_on_where_it_was(node: Metered, idle: None) -> None:
    for n in range(3):
        node.record.append({"n": n})
    reader = Reader(node.meter)
    await until(lambda: reader.values() == [0, 1, 2])
    node.record.append({"n": 3})
    await until(lambda: reader.values() == [0, 1, 2, 3])
    header, body = reader.frames[-1]
    again = Reader(node.meter, header["at"] + len(body), reader.speaker)
    node.record.append({"n": 4})
    await until(reader.task.done)  # the same connection asked again, and is sent all once
    await until(lambda: again.values() == [0, 1, 2, 3, 4])


async def test_what_is_kept_no_more_is_passed_over_and_another_machines_cursor_too(node: Metered, idle: None) -> None:
    for n in range(100):
        node.record.append({"n": n})
    late = Reader(node.meter)
    await until(lambda: late.values()[-1:] == [99])
    assert 1 < len(late.values()) < 60
    assert late.values() == list(range(late.values()[0], 100))
    assert late.frames[0][0]["at"] > 0
    other = Reader(node.meter, 1 << 40)
    await until(lambda: other.values() == late.values())


async def test_a_process_that_ends_is_started_again_and_readers_are_told(node: Metered) -> None:
    reader = Reader(node.meter)
    await until(lambda: reader.frames)
    (pid,) = node.processes
    os.kill(pid, signal.SIGKILL)
    await until(lambda: node.processes and pid not in node.processes)
    await until(lambda: reader.whys() == ["what measures it has ended"])
    await until(lambda: reader.frames[-1][1])


async def test_one_that_is_stopped_is_replaced(node: Metered) -> None:
    reader = Reader(node.meter)
    await until(lambda: reader.frames)
    (pid,) = node.processes
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: node.processes and pid not in node.processes)
    await until(lambda: [why for why in reader.whys() if "has said nothing for" in why])
    node.meter.stop()
    await until(lambda: not node.processes)


async def test_what_cannot_be_started_is_told_and_given_up(node: Metered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    reader = Reader(node.meter)
    await until(lambda: [why for why in reader.whys() if why.endswith("; it is not started again")])


async def test_nothing_is_measured_before_somebody_asks(node: Metered) -> None:
    told: Header = {}
    assert (node.processes, told) == ([], {})
    node.meter.stop()
    node.meter.ensure_running()
    assert node.processes == []


async def test_a_folder_of_packages_may_have_a_colon_in_its_name(
    node: Metered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Path(metrics_sampler_process.__file__).parents[2]
    folder = tmp_path / "14:55"
    folder.mkdir()
    (folder / ours.name).symlink_to(ours)
    monkeypatch.setattr(sys, "path", [str(folder), *(each for each in sys.path if Path(each) != ours.parent)])
    reader = Reader(node.meter)
    await until(lambda: any(body for _, body in reader.frames) or reader.whys())
    assert not reader.whys()
    # A child that counts GPUs finds its packages by that path alone, too.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o700)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    config = node.state.config.replace(python=str(python), path=[str(folder)])
    assert resolve_ranks_per_gpu(config).devices == ["GPU-a"]
