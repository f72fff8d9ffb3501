"""Generator of the recording that ``skyward-tui --demo`` plays: ``python -m tests.demo`` creates it in three minutes.

The run is real: 32 ranks on four local nodes, with their events, lines, metrics and results. The ranks do not train a
model. The GPU metrics are generated to match the ranks' activity, and the recording states this. Information about this
machine is removed.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import skyward_core as sky
from skyward_core.client.replayable_recording_export import RecordingExporter, Timed
from skyward_core.pool import machine_metrics_recorder as machine_metrics
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.store.pool_folder import read_events
from skyward_core.store.recording_file import RecordingReader
from skyward_core.views import events as ev
from skyward_core.views import recording_entries
from skyward_tui.widgets.screen_frame_and_replay_line import DEMO
from tests.demo import train

NODES, GPUS = 4, 8
NOTE = "real run, simulated machines"
READING = 12.0  # seconds between the run that fails and the next
EVERY = 2.0  # seconds between two samples
TOTAL = 80 << 30  # bytes of a GPU's memory
HOT = 0x40  # NVML: too hot, by hardware


class DemoPacking(RecordingExporter):
    """Packing of the recording, with generated machine metrics."""

    def __init__(self, row: PoolRow, folder: Path) -> None:
        super().__init__(row, about={"note": NOTE})
        self._clean = lambda text: without_us(text, folder)

    def _figures(self) -> Iterator[Timed]:
        events = list(read_events(self._folder))
        at = next(event.at for event in events if isinstance(event, ev.PoolState) and event.state == "up")
        end = next(event.at for event in events if isinstance(event, ev.PoolEnded))
        cards = [[Card(node * GPUS + gpu) for gpu in range(GPUS)] for node in range(NODES)]
        first = True
        while at < end:
            function, since = working(events, at)
            for node in range(NODES):
                sample: dict[str, Any] = {"at": round(at, 2), "node": host(node, function)}
                if first:
                    model = "NVIDIA H100 80GB HBM3 (simulated)"
                    sample["devices"] = [{"id": f"GPU-{node}-{gpu}", "model": model} for gpu in range(GPUS)]
                sample["gpus"] = [card.sample(function, since) for card in cards[node]]
                line = json.dumps(sample, separators=(",", ":")).encode() + b"\n"
                yield at, recording_entries.machine_entry(at, node, line, 0.0)
            first = False
            at += EVERY


def working(events: list[ev.Event], at: float) -> tuple[str, float]:
    """Return the function that runs at a time, the number of its call, and the seconds since its start; "" if none
    runs.
    """
    function, since, times, run = "", 0.0, 0, ""
    for event in events:
        if event.at > at:
            break
        if isinstance(event, ev.RunOpened):
            times += event.function == "train"
            function, since, run = f"{event.function} {times}", event.at, event.run
        elif isinstance(event, ev.RunEnded) and event.run == run:
            function = ""
    return function, at - since


class Card:
    """Simulated GPU. ``rank`` is the rank that uses it."""

    def __init__(self, rank: int) -> None:
        self.rank, self.chance, self.temp = rank, random.Random(rank), 34.0

    def sample(self, function: str, since: float) -> dict[str, float]:
        util, memory, throttle = 0.0, 0.01, 0
        if function.startswith("warm_up"):
            util, memory = self.chance.uniform(30, 55), 0.08
        elif function.startswith("train"):
            util = self.chance.uniform(94, 99.5) if since > 2 else 25.0
            memory = 0.71 if function.endswith("1") else 0.42
            if function.endswith("1") and self.rank == train.FULL_RANK:
                memory += 0.27 * min(1.0, max(0.0, (since - 0.5 * train.FULL_AT) / (0.5 * train.FULL_AT)))
            if function.endswith("1") and self.rank == train.SLOW_RANK and since > train.SLOW_FROM:
                util, throttle = self.chance.uniform(58, 66), HOT
        temperature = 36 + 0.33 * util + 0.4 * (self.rank % 8) + (16 if throttle else 0)
        self.temp += (temperature - self.temp) * 0.2
        return {
            "util": round(util),
            "mem_used": round(memory * TOTAL / (1 << 28)) << 28,
            "mem_total": TOTAL,
            "power": round(80 + 5.9 * util * (0.8 if throttle else 1.0) + self.chance.uniform(-8, 8)),
            "power_limit": 700,
            "temp": round(self.temp),
            "sm_clock": 1110 if throttle else 1980 if util else 345,
            "throttle": throttle,
        }


def host(node: int, function: str) -> dict[str, float]:
    busy = function.startswith("train")
    wave = random.Random(f"{node} {function} {os.urandom(2)!r}").uniform(0.9, 1.1)
    return {
        "cpu": round((34 if busy else 3) * wave),
        "memory_used": round((410 if busy else 60) * wave) << 30,
        "memory_total": 2048 << 30,
        "net_in": round((23 if busy else 0) * wave * 1000) * 1_000_000,
        "net_out": round((23 if busy else 0) * wave * 1000) * 1_000_000,
        "disk_read": round((2.1 if busy else 0) * wave * 1000) * 1_000_000,
        "disk_write": 0,
        "spool_free": 640 << 30,
    }


def without_us(text: str, folder: Path) -> str:
    """Return a text without the names of this machine."""
    file = train.__file__ or ""
    for ours, theirs in (
        (file, "/home/demo/train.py"), (str(folder), "/home/demo"), (str(Path.cwd()), "/home/demo"),
        (str(Path(sky.__file__).parents[1]), "/opt/skyward"), (sys.prefix, "/opt/python"),
        (sys.base_prefix, "/opt/python"), (str(Path.home()), "/home/demo"),
    ):  # fmt: skip
        text = text.replace(ours, theirs) if len(ours) > 3 else text
    text = re.sub(rf"\w+@{re.escape(socket.gethostname())}\b", "demo@demo", text)
    return text.replace("tests.demo.", "")


def record(folder: Path) -> PoolRow:
    """Run the ranks on a pool, and return after the pool's end."""
    machine_metrics.LONG_RUN = math.inf  # what this machine is measured at has no place in it
    with sky.Compute(
        name="demo", nodes=NODES, worker=sky.Worker(ranks_per_node=GPUS), options=sky.Options(console=False)
    ) as compute:
        key = compute.pool.row.key
        train.warm_up() @ compute
        with suppress(sky.RunError):
            train.train() @ compute
        time.sleep(READING)  # for who wants to read why
        train.train(steps=40, batch_size=16) @ compute
    ledger = Ledger()
    row = ledger.find_pool(key)
    ledger.close()
    assert row is not None
    return row


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="sky") as place:
        folder = Path(place)
        os.environ["SKYWARD_HOME"] = str(folder / "home")
        os.chdir(folder)
        row = record(folder)
        made = folder / DEMO.name
        packed = DemoPacking(row, folder).write(made)
        entries = json.dumps(list(RecordingReader.read(made).entries()))
        for ours in (f"@{socket.gethostname()}", str(folder), str(Path(sky.__file__).parents[1]), sys.prefix):
            assert ours not in entries, f"{ours} is in it: {entries[max(0, entries.find(ours) - 200) :][:400]}"
        DEMO.write_bytes(made.read_bytes())
    print(f"{DEMO}: {packed.size:,} bytes, {packed.entries:,} entries")


if __name__ == "__main__":
    main()
