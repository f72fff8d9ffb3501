"""Sampling of machine metrics, their histories and files, and their export to CSV, JSON, Parquet and Prometheus."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator
from itertools import count
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.model.errors import UsageError
from skyward_core.model.metric_definitions_series_and_export import (
    GPU_METRIC_DEFINITIONS,
    Curve,
    Curves,
)
from skyward_core.node import machine_metrics_sampler as sampler
from skyward_core.node import nvidia_and_amd_gpu_metrics as gpu_metrics
from skyward_core.node.machine_metrics_sampler import SampleFiles
from skyward_core.protocol.node_paths import sample_files
from skyward_core.store import pool_folder
from skyward_core.store.pool_folder import MetricsWriter, read_metrics
from skyward_core.views.machine_metrics import MAX_POINTS, MachineMetrics, MetricHistory
from skyward_core.views.pool_view import PoolView, build_curves
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_tui.metric_exporters import format_prometheus
from tests.support.fake_driver import compiled, needs_compiler
from tests.support.processes import exists
from tests.support.prometheus_parser import parsed
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
RUN = """
import os, sys
from skyward_core.node import nvidia_and_amd_gpu_metrics as gpu_metrics
from skyward_core.node.machine_metrics_sampler import main
gpu_metrics.DRIVER_TIMEOUT, log = 0.5, gpu_metrics.XidLog
gpu_metrics.XidLog = lambda: log(os.environ.get("FAKE_KMSG", gpu_metrics.KERNEL_LOG))
main(*sys.argv[1:3], "0.02")
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cards(received: int, sent: int) -> str:
    rest = "0 " * 6
    lines = [f"eth0: {received} 5 {rest}{sent} 7", f"br0: {received} 5 {rest}{sent} 7", f"lo: 9999 5 {rest}9999 7"]
    return "Inter-| Receive\n face |bytes\n" + "\n".join(lines) + "\n"


# -- the machine ---------------------------------------------------------------------------------------------


def test_host_metrics_and_rates_are_read_from_proc(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/stat": "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n",
            "proc/meminfo": "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n",
            "proc/pressure/memory": "some avg10=12.50 avg60=1.00 avg300=0.00 total=9\nfull avg10=0.00\n",
            "proc/net/dev": cards(1000, 500),
            "proc/diskstats": " 8 0 sda 1 0 100 0 1 0 10 0 0\n 8 1 sda1 1 0 100 0 1 0 10 0 0\n",
            "sys/class/net/eth0/device": "",
            "sys/block/sda/device": "",
        },
    )
    machine = sampler.HostMetrics(str(tmp_path), str(root))
    first = machine.read(10.0)
    room = first.pop("spool_free")
    assert first == {"memory_used": 600 * 1024, "memory_total": 1000 * 1024, "memory_pressure": 12.5}
    assert room > 0
    tree(
        root,
        {
            "proc/stat": "cpu  150 0 150 800 200 0 0 0 0 0\n",
            "proc/net/dev": cards(5000, 500),
            "proc/diskstats": " 8 0 sda 1 0 104 0 1 0 8 0 0\n",
        },
    )
    second = machine.read(12.0)
    assert (second["cpu"], second["net_in"], second["net_out"]) == (33.33, 2000.0, 0.0)
    assert second["disk_read"] == 4 * 512 / 2
    assert "disk_write" not in second  # it went back: a disk was taken out


@pytest.mark.parametrize("text", ["", "cpu", "cpu a b c d e", "\xff\xfe", "some avg10=x", "MemTotal: \n"])
def test_unreadable_host_metric_is_absent(tmp_path: Path, text: str) -> None:
    names = ("stat", "meminfo", "net/dev", "diskstats", "pressure/cpu")
    root = tree(tmp_path, {f"proc/{name}": text for name in names})
    machine = sampler.HostMetrics(str(tmp_path), str(root))
    assert [set(machine.read(at)) for at in (1.0, 2.0)] == [{"spool_free"}] * 2
    assert sampler.HostMetrics(str(tmp_path / "nowhere"), str(tmp_path / "nowhere")).read(1.0) == {}


# -- the record ----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 400), min_size=1, max_size=60), st.integers(100, 2000))
def test_sample_files_are_bounded_and_offsets_continue(sizes: list[int], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written = b""
        record = SampleFiles(folder, limit)
        for size in sizes:
            if size % 7 == 0:
                record = SampleFiles(folder, limit)  # another process goes on
            record.append({"x": "y" * size})
            written += json.dumps({"x": "y" * size}, separators=(",", ":")).encode() + b"\n"
        found = sample_files(folder)
        assert len(found) <= 2
        for start, name in found:
            data = Path(folder, name).read_bytes()
            assert written[start : start + len(data)] == data and data.endswith(b"\n")
        assert start + len(data) == len(written)


def test_truncated_sample_line_spoils_no_other(tmp_path: Path) -> None:
    SampleFiles(str(tmp_path)).append({"a": 1})
    (start, name), *_ = sample_files(str(tmp_path))
    with open(tmp_path / name, "ab") as file:
        file.write(b'{"b":')
    SampleFiles(str(tmp_path)).append({"c": 3})
    assert (start, (tmp_path / name).read_text()) == (0, '{"a":1}\n{"b":\n{"c":3}\n')


# -- what the kernel says ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("4,99,12,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.", ("0000:3b:00", 79)),
        ("NVRM: Xid (PCI:0000:3B:00): 13, Graphics Exception", ("0000:3b:00", 13)),
        ("NVRM: Xid (PCI:0000:3b:00): ٣, x", None),
        ("NVRM: Xid (PCI:0000:3b:00): 123456, x", None),
        (f"NVRM: Xid (PCI:{'0' * 50}): 79, x", None),
        ("", None),
    ],
)
def test_xid_error_and_gpu_address_are_parsed_from_the_kernel_log(line: str, error: object) -> None:
    assert gpu_metrics.parse_xid(line) == error


@given(st.text())
def test_any_kernel_log_line_is_parsed_safely(text: str) -> None:
    found = gpu_metrics.parse_xid(text)
    assert found is None or (len(found[0]) < 20 and 0 <= found[1] < 10_000)
    assert gpu_metrics.parse_xid(f"NVRM: Xid (PCI:0000:01:00): 7, {text}") == ("0000:01:00", 7)


# -- other drivers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("GPU 0     0.993     0.412", ("0", {"sm_active": 99.3, "tensor_active": 41.2})),
        ("GPU 3     N/A       0.5", ("3", {"tensor_active": 50.0})),
        ("GPU 0     nan       inf", ("0", {})),
        ("GPU 0     7.0       -1", ("0", {})),
        ("GPU 99999 0.1       0.1", None),
        ("", None),
    ],
)
def test_dcgmi_line_is_parsed_and_bounded(line: str, expected: object) -> None:
    assert gpu_metrics.parse_dcgm_line(line) == expected


@given(st.text())
def test_any_dcgmi_line_is_parsed_safely(text: str) -> None:
    found = gpu_metrics.parse_dcgm_line(text)
    assert found is None or all(0 <= share <= 100 for share in found[1].values())


def test_dcgmi_is_started_once_and_never_waited_for(tmp_path: Path) -> None:
    program = tmp_path / "dcgmi"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho "GPU 0 0.5 0.25"\necho noise\nexec sleep 100\n')
    program.chmod(0o755)
    found = gpu_metrics.DcgmMonitor(f"relative:{tmp_path}")
    try:
        wait_until(lambda: found.read(5.0) == {"0": {"sm_active": 50.0, "tensor_active": 25.0}})
        assert found.read(5.0 + gpu_metrics.MAX_AGE) == {}  # it hangs: what it said is old
        assert (tmp_path / "asked").read_text() == "dmon -e 1002,1004 -d 1000\n"
    finally:
        found.close()
    assert gpu_metrics.DcgmMonitor(str(tmp_path / "none")).read(1.0) == {}


def test_amd_gpu_metrics_are_read_from_driver_files(tmp_path: Path) -> None:
    device = "sys/class/drm/card1/device"
    root = tree(
        tmp_path,
        {
            f"{device}/vendor": "0x1002\n", f"{device}/gpu_busy_percent": "97\n", f"{device}/unique_id": "abc\n",
            f"{device}/mem_info_vram_used": "1024\n", f"{device}/hwmon/hwmon3/power1_average": "250000000\n",
            f"{device}/hwmon/hwmon3/temp1_input": "-1\n", "sys/class/drm/card0/device/vendor": "0x8086\n",
            "sys/class/drm/card1-DP-1/device/vendor": "0x1002\n",
        },
    )  # fmt: skip
    found = gpu_metrics.AmdGpus(str(root))
    assert [each["id"] for each in found.devices] == ["abc"]
    assert found.read(0.0) == [{"util": 97, "mem_used": 1024, "power": 250}]
    assert gpu_metrics.AmdGpus(str(tmp_path / "none")).devices == []


# -- the process ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver"))


class Sampling:
    """Sampler process and its output."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(folder / "m"), str(folder)],
            stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        )

    def samples(self) -> list[dict[str, Any]]:
        """Return all complete lines, oldest first."""
        text = b"".join((self.folder / "m" / name).read_bytes() for _, name in sample_files(str(self.folder / "m")))
        return [json.loads(line) for line in text.split(b"\n")[:-1]]

    @property
    def last(self) -> dict[str, Any]:
        return (self.samples() or [{}])[-1]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def sampling(tmp_path: Path, driver: Path) -> Iterator[Sampling]:
    (tmp_path / "gpus").write_text("util=98 watts=650 celsius=71 throttle=65 used=1024 ecc=2\nutil=3\n")
    env = {"LD_LIBRARY_PATH": str(driver), "FAKE_GPUS": "ww", "FAKE_GPU_MIB": "81920"}
    found = Sampling(tmp_path, env | {"FAKE_GPU_FILE": str(tmp_path / "gpus")})
    yield found
    found.kill()


@needs_compiler
def test_gpu_metrics_of_the_driver_and_its_failures_are_sampled(sampling: Sampling) -> None:
    wait_until(lambda: "gpus" in sampling.last, what=lambda: sampling.samples())
    first, second = sampling.last["gpus"]
    memory = {"mem_used": 1024 << 20, "mem_total": 81920 << 20}
    # Idle clocks are no reason to worry; what this driver lacks (clocks, links, limits) is absent.
    assert first == memory | {
        "processes": 0, "util": 98, "mem_busy": 0, "power": 650.0, "temp": 71, "throttle": 64, "ecc": 2,
    }  # fmt: skip
    assert second == {"processes": 0, "util": 3, "mem_busy": 0} | memory | {"mem_used": 0}
    assert first.keys() <= GPU_METRIC_DEFINITIONS.keys()
    reported = [sample["devices"] for sample in sampling.samples() if sample.get("devices")]
    assert reported == [
        [
            {"id": f"GPU-{n}", "model": "NVIDIA H100 80GB HBM3", "number": str(n), "bus": f"00000000:1{n}:00.0"}
            for n in (0, 1)
        ]
    ]
    (sampling.folder / "gpus").write_text("util=98\nlost\n")
    wait_until(
        lambda: sampling.last["gpus"][1] == {"lost": 1} and sampling.last["gpus"][0].get("util") == 98,
        what=lambda: sampling.last,
    )


@needs_compiler
def test_gpu_sample_combines_driver_dcgmi_and_kernel_log(tmp_path: Path, driver: Path) -> None:
    (tmp_path / "dcgmi").write_text('#!/bin/sh\necho "GPU 1 0.5 0.25"\nexec sleep 100\n')
    (tmp_path / "dcgmi").chmod(0o755)
    os.mkfifo(tmp_path / "kmsg")
    expected = (
        "util=98 watts=650 limit=700 celsius=71 smclock=1980 memclock=2619 throttle=64 used=1024 ecc=2 corrected=5 "
        "pids=12:500,13:0 pcieout=1000 pciein=2000"
    )
    (tmp_path / "gpus").write_text(f"util=3\n{expected} linkout=1000 linkin=1000\n")
    env = {
        "LD_LIBRARY_PATH": str(driver), "FAKE_GPUS": "ww", "FAKE_GPU_MIB": "81920", "FAKE_KMSG": str(tmp_path / "kmsg"),
        "FAKE_GPU_FILE": str(tmp_path / "gpus"), "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }  # fmt: skip
    found = Sampling(tmp_path, env)
    try:
        fields = {"sm_active": 50.0, "tensor_active": 25.0, "nvlink_in": 0}
        wait_until(
            lambda: "gpus" in found.last and fields.items() <= found.last["gpus"][1].items(), what=lambda: found.last
        )
        with open(tmp_path / "kmsg", "wb", buffering=0) as kernel:
            kernel.write(b"4,1,1,-;NVRM: Xid (PCI:0000:11:00): 79, pid=1, GPU has fallen off the bus.\n")
            wait_until(lambda: found.last["gpus"][1].get("xid") == 79)
        figures = found.last["gpus"][1]
        assert figures.keys() == GPU_METRIC_DEFINITIONS.keys() - {"lost"}
        for name, value in {
            "power": 650.0, "power_limit": 700.0, "temp": 71, "sm_clock": 1980, "mem_clock": 2619, "throttle": 64,
            "ecc": 2, "ecc_corrected": 5, "processes": 2, "pcie_out": 1000 << 10, "pcie_in": 2000 << 10,
        }.items():  # fmt: skip
            assert figures[name] == value, name
        assert not found.last["gpus"][0].keys() & {"xid", "sm_active", "nvlink_in", "sm_clock"}
        clock = count(1000, 1000)

        def rates() -> list[tuple[float, float]]:
            """Return the rates over all samples, because one sample shows only one step of the counters."""
            more = next(clock)
            # At once: what a driver once does not know it is not asked again.
            (tmp_path / "later").write_text(f"util=3\n{expected} linkout={1000 + more} linkin={1000 + 3 * more}\n")
            (tmp_path / "later").replace(tmp_path / "gpus")
            gpus = [sample["gpus"][1] for sample in found.samples() if "gpus" in sample]
            return [(gpu["nvlink_out"], gpu["nvlink_in"]) for gpu in gpus if gpu.get("nvlink_out")]

        # Three times as much came as went.
        wait_until(
            lambda: any(back == pytest.approx(3 * out, rel=0.01) for out, back in rates()), what=lambda: found.last
        )
    finally:
        found.kill()


@needs_compiler
def test_hanging_gpu_driver_does_not_stop_host_metrics(sampling: Sampling) -> None:
    wait_until(lambda: "gpus" in sampling.last)
    (sampling.folder / "gpus").write_text("hang\n")
    wait_until(lambda: "why" in sampling.last, what=lambda: sampling.last)
    assert "has not responded for" in sampling.last["why"] and "gpus" not in sampling.last
    assert sampling.last["node"]["memory_total"] > 0
    assert sampling.process.stdin is not None
    sampling.process.stdin.close()  # its agent ends
    assert sampling.process.wait(20) == 0


def test_host_metrics_are_sampled_without_a_gpu_driver(tmp_path: Path) -> None:
    found = Sampling(tmp_path, {"LD_LIBRARY_PATH": "/nowhere"})
    try:
        wait_until(lambda: "cpu" in found.last.get("node", {}))
        assert all(sample.keys() <= {"at", "node", "devices", "boot"} for sample in found.samples())
        os.kill(found.process.pid, signal.SIGSTOP)
        os.kill(found.process.pid, signal.SIGCONT)
        count = len(found.samples())
        wait_until(lambda: len(found.samples()) > count)
    finally:
        found.process.communicate()  # closes its standard input
    assert not exists(found.process.pid)


# What a pool's machines were measured at, as screens, scripts and other programs read it.


def sample(at: float, cpu: float = 1.0, **more: Any) -> bytes:
    return json.dumps({"at": at, "node": {"cpu": cpu}} | more).encode() + b"\n"


def test_machine_metrics_hold_latest_values_by_node_and_gpu() -> None:
    book = MachineMetrics()
    devices = [{"id": "GPU-0", "model": "H100"}, {"id": "GPU-1", "model": "\x1b[2JH100"}]
    book.feed(3, sample(10.0, 5.0, devices=devices, gpus=[{"util": 97}, {"util": 12, "temp": 60}]), ahead=100.0)
    book.feed(1, sample(10.5) + sample(11.5, 2.0))
    book.feed(3, sample(11.0, 6.0, gpus=[{"util": 98}, {"lost": 1}], why="no word \x1b[31m"), ahead=100.0)
    assert list(book.nodes) == [1, 3]
    assert book.latest("cpu") == {(1, None): 2.0, (3, None): 6.0}
    assert book.latest("util") == {(3, 0): 98.0}, "what is not among the newest is not of now"
    machine = book.nodes[3]
    assert machine.devices[0].model == "H100"
    assert "\x1b" not in machine.devices[1].model + machine.why
    assert list(machine.host.trace("cpu").at) == [110.0, 111.0]
    assert [list(part) for part in machine.gpus[1].trace("temp")] == [[110.0], [60.0]]
    assert machine.is_fresh(115.0) and not machine.is_fresh(160.0)


def test_metric_history_continues_after_the_clock_is_set_back() -> None:
    track = MetricHistory()
    for at in (100.0, 4000.0, 4001.0, 4000.9, 401.0, 402.0):
        track.add(at, {"cpu": at} if at > 400 else {})
    assert track.trace("cpu") == (array("d", [401.0, 402.0]), array("d", [401.0, 402.0]))
    assert track.span == (100.0, 402.0) and track.latest_at == 402.0


@given(st.lists(st.binary(max_size=60) | st.sampled_from([sample(1.0), b"[" * 2000, b'{"at":1e999,"node":{}}'])))
def test_invalid_sample_lines_are_skipped(lines: list[bytes]) -> None:
    book = MachineMetrics()
    book.feed(0, b"\n".join(lines))
    book.feed(0, sample(2.0, 3.0))
    assert book.latest("cpu") == {(0, None): 3.0}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=60), inner, max_size=4),
    )
)
def test_samples_with_any_values_are_read_safely(sample: Any) -> None:
    book = MachineMetrics()
    for each in (sample, {"at": 5, "node": sample, "gpus": sample, "devices": sample, "why": sample}, {"at": sample}):
        book.feed(0, json.dumps(each).encode())
    for _, _, track in book.tracks():
        assert all(type(value) is float for value in track.latest.values())
        assert all("\x1b" not in name for name in track.names)


@given(st.integers(1, 5 * MAX_POINTS))
def test_metric_history_is_bounded_and_spans_the_whole_time(count: int) -> None:
    track = MetricHistory()
    for at in range(count):
        track.add(float(at), {"a": at} | ({"b": 1.0} if at > count // 2 else {}))
    line = track.trace("a")
    assert len(line.at) == len(line.values) <= MAX_POINTS
    assert list(line.at) == list(line.values), "values keep their times"
    assert line.at[0] == 0 and line.at[-1] > count - 1 - max(1, 2 * count / MAX_POINTS)
    assert track.latest["a"] == count - 1
    assert all(at > count // 2 for at in track.trace("b").at)


# -- in one shape --------------------------------------------------------------------------------------------


def pool() -> Any:
    metrics, machines = MetricStore(), MachineMetrics()
    for rank in range(2):
        for step in range(3):
            metrics.add_values("r1", rank, 10.0 + step, {"loss": 1.0 / (1 + step)})
    metrics.add_values("r2", 0, 11.0, {"loss": 7.0})
    devices = [{"id": "x", "model": 'H100 "big"\\'}]
    for at in (5.0, 10.5, 12.0, 20.0):
        machines.feed(0, sample(at, at, devices=devices, gpus=[{"util": at, "throttle": 64}]))
    machines.set_silence_reason(1, "its agent is from an older release")
    return SimpleNamespace(metrics=metrics, machines=machines)


BOOK_RUN: Any = SimpleNamespace(id="r1", opened_at=10.0, ended_at=15.0)


def test_curves_of_a_run_have_metrics_of_its_ranks_and_machines() -> None:
    found = build_curves(pool(), BOOK_RUN)
    assert found.names == ["loss", "cpu", "util", "throttle"]
    assert [curve.rank for curve in found.of("loss")] == [0, 1]
    (util,) = found.of("util")
    assert (util.node, util.gpu, util.unit, list(util.at)) == (0, 0, "%", [10.5, 12.0])
    assert found.notes == ["node 1: its agent is from an older release"]
    assert [len(each) for each in build_curves(pool())] == [4, 4, 4], "of no run all of the time, and machines only"
    assert len(build_curves(PoolView("p"), BOOK_RUN)) == 0


def test_csv_export_escapes_formulas_and_json_export_has_no_nan() -> None:
    odd = Curve("=cmd()", rank=0)
    for at, value in enumerate((nan, inf, 1.0)):
        odd.at.append(at)
        odd.values.append(value)
    file = io.StringIO()
    Curves([odd]).to_csv(file)
    assert "\n'=cmd()," in file.getvalue()
    file = io.StringIO()
    Curves([odd]).to_json(file)
    assert json.loads(file.getvalue())[0]["values"] == [None, None, 1.0]


@pytest.mark.proof("1 s of a processor")
def test_parquet_export_requires_pyarrow(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        build_curves(pool(), BOOK_RUN).to_parquet(str(tmp_path / "x.parquet"))
    monkeypatch.undo()
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    build_curves(pool(), BOOK_RUN).to_parquet(str(tmp_path / "x.parquet"))
    assert parquet.read_table(tmp_path / "x.parquet").num_rows == sum(map(len, build_curves(pool(), BOOK_RUN)))


def test_prometheus_export_has_the_latest_value_of_each_series() -> None:
    text = format_prometheus(build_curves(pool(), BOOK_RUN), {"pool": "p", "run": "r1"})
    found = parsed(text)
    about = {"pool": "p", "run": "r1"}
    assert found["skyward_node_cpu_percent"] == ("gauge", [(about | {"node": "0"}, 12.0)])
    gpu = about | {"node": "0", "gpu": "0", "model": 'H100 "big"\\'}
    assert found["skyward_gpu_util_percent"] == ("gauge", [(gpu, 12.0)])
    assert found["skyward_gpu_throttle"] == ("gauge", [(gpu, 64.0)])
    assert [labels["rank"] for labels, _ in found["skyward_rank_number"][1]] == ["0", "1"]
    assert found["skyward_rank_number"][1][0][0]["name"] == "loss"


# -- for Prometheus ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.text(min_size=1), st.booleans(), st.floats()), unique_by=lambda each: each[:2]))
def test_prometheus_export_escapes_any_metric_name(named: list[tuple[str, bool, float]]) -> None:
    curves = []
    for name, of_rank, value in named:
        curve = Curve(name, rank=0) if of_rank else Curve("util", node=0, gpu=0, model=name)
        curve.at.append(1.0)
        curve.values.append(value)
        curves.append(curve)
    found = parsed(format_prometheus(curves, {}))
    ranks = found.get("skyward_rank_number", ("", []))[1]
    assert [labels["name"] for labels, _ in ranks] == [name for name, of_rank, _ in named if of_rank]


# What machines were measured at, on disk: bounded, in order, whoever died while writing; a full disk ends it, once.


def numbers(folder: Path) -> list[int]:
    return [entry["n"] for entry in read_metrics(folder)]


def test_metrics_of_consecutive_writers_are_read_in_order(tmp_path: Path) -> None:
    for client in range(3):
        writer = MetricsWriter(tmp_path, pytest.fail)
        for number in range(5):
            writer.put({"n": 5 * client + number})
        writer.close()
        writer.put({"n": 99})
    assert numbers(tmp_path) == list(range(15))


def test_truncated_metrics_files_are_read_up_to_the_damage(tmp_path: Path) -> None:
    for _ in range(3):
        writer = MetricsWriter(tmp_path, pytest.fail)
        writer.put({"n": 1})
        writer.close()
    first, second, _ = sorted(tmp_path.glob("figures-*"))
    first.write_bytes(first.read_bytes()[:9])
    second.write_bytes(second.read_bytes()[:-3])
    assert numbers(tmp_path) == [1]


def test_metrics_files_keep_beginning_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_folder, "METRICS_FILE_BYTES", 300)
    monkeypatch.setattr(pool_folder, "METRICS_TOTAL_BYTES", 1500)
    monkeypatch.setattr(pool_folder, "FLUSH_BYTES", 1)
    writer = MetricsWriter(tmp_path, pytest.fail)
    for number in range(200):
        writer.put({"n": number})
    writer.close()
    found = numbers(tmp_path)
    assert found[0] == 0 and found[-1] == 199 and len(found) < 100
    assert sum(path.stat().st_size for path in tmp_path.glob("figures-*")) < 2000
    assert found == sorted(found)


def test_full_disk_stops_the_metrics_writer_with_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(pool_folder, "FLUSH_BYTES", 1)
    writer = MetricsWriter(tmp_path, messages.append)
    writer.put({"n": 1})

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    for number in range(2, 5):
        writer.put({"n": number})
    writer.close()
    monkeypatch.undo()
    assert messages == ["stopped recording machine metrics: [Errno 28] No space left on device"]
    assert numbers(tmp_path) == [1]
