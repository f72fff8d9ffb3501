"""GPU metrics from NVML, DCGM and amdgpu, and Xid errors from the kernel log."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

# ruff: noqa: PTH118, PTH119, PTH208


VENDOR = "0x1002"
# Metric, its file in the GPU's folder of /sys, and the divisor that converts the file's unit.
_FILES = (
    ("util", "gpu_busy_percent", 1),
    ("mem_busy", "mem_busy_percent", 1),
    ("mem_used", "mem_info_vram_used", 1),
    ("mem_total", "mem_info_vram_total", 1),
)
_SENSORS = (
    ("power", "power1_average", 1_000_000),
    ("power", "power1_input", 1_000_000),
    ("power_limit", "power1_cap", 1_000_000),
    ("temp", "temp1_input", 1000),
    ("sm_clock", "freq1_input", 1_000_000),
    ("mem_clock", "freq2_input", 1_000_000),
)


class AmdGpus:
    """All GPUs of this machine that use the amdgpu driver.

    Args:
        root: Folder that contains ``sys``.
    """

    def __init__(self, root: str = "/") -> None:
        self.devices: list[dict[str, str]] = []
        self._files: list[list[tuple[str, str, int]]] = []
        folder = os.path.join(root, "sys/class/drm")
        for card in sorted(_list_names(folder), key=lambda name: (len(name), name)):
            if card.startswith("card") and card[4:].isdigit():
                self._add(os.path.join(folder, card, "device"))

    def _add(self, device: str) -> None:
        if _read_file(os.path.join(device, "vendor")) != VENDOR or not _read_file(
            os.path.join(device, "gpu_busy_percent")
        ):
            return
        files = [(figure, os.path.join(device, name), unit) for figure, name, unit in _FILES]
        for sensors in _list_names(os.path.join(device, "hwmon")):
            files += [(figure, os.path.join(device, "hwmon", sensors, name), unit) for figure, name, unit in _SENSORS]
        self._files.append(files)
        number = len(self.devices)
        unique_id = _read_file(os.path.join(device, "unique_id"))
        model = _read_file(os.path.join(device, "product_name")) or "AMD GPU"
        bus = os.path.basename(os.path.realpath(device))
        self.devices.append({"id": unique_id or f"card{number}", "model": model, "number": str(number), "bus": bus})

    def read(self, now: float) -> list[dict[str, float]]:
        """Return the metrics of each GPU in the order of :attr:`devices`."""
        return [
            {figure: int(text) / unit for figure, path, unit in files if (text := _read_file(path)).isdigit()}
            for files in self._files
        ]


def _list_names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(200).decode("ascii", "replace").strip()
    except OSError:
        return ""


# ruff: noqa: PTH117, PTH118


DCGM_FIELDS = {"1002": "sm_active", "1004": "tensor_active"}
MAX_STARTS = 5
RESTART_DELAY = 60.0  # seconds between two starts of the dcgmi monitor
MAX_AGE = 5.0  # seconds after which values of the dcgmi monitor are outdated
MAX_LINE_BYTES = 1 << 16  # maximum bytes of a line that the dcgmi monitor prints


class DcgmMonitor:
    """GPU metrics that DCGM's command-line monitor prints, by GPU number."""

    def __init__(self, folders: str = "") -> None:
        self._program = _find_program(folders or os.environ.get("PATH", ""))
        self._child: subprocess.Popen[bytes] | None = None
        self._tries, self._next_try = 0, 0.0
        self._partial_line = b""
        self._metrics: dict[str, tuple[float, dict[str, float]]] = {}

    def read(self, now: float) -> dict[str, dict[str, float]]:
        """Return the latest metrics without waiting for the monitor."""
        if not self._program:
            return {}
        if self._child is None:
            self._start_process(now)
        if self._child is not None:
            self._read_output(now)
        return {gpu: figures for gpu, (at, figures) in self._metrics.items() if now - at < MAX_AGE}

    def close(self) -> None:
        """Stop the monitor process."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()

    def _start_process(self, now: float) -> None:
        if self._tries >= MAX_STARTS or now < self._next_try:
            return
        self._tries += 1
        self._next_try = now + RESTART_DELAY
        self._partial_line = b""
        try:
            self._child = subprocess.Popen(
                [self._program, "dmon", "-e", ",".join(DCGM_FIELDS), "-d", "1000"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except OSError:
            return
        if self._child.stdout is not None:
            os.set_blocking(self._child.stdout.fileno(), False)

    def _read_output(self, now: float) -> None:
        child = self._child
        if child is None or child.stdout is None:
            return
        try:
            chunk = os.read(child.stdout.fileno(), MAX_LINE_BYTES)
        except BlockingIOError:
            return
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        for line in lines:
            if (parsed := parse_dcgm_line(line.decode("ascii", "replace"))) is not None:
                self._metrics[parsed[0]] = (now, parsed[1])
        if not chunk or len(self._partial_line) > MAX_LINE_BYTES:
            self.close()


def parse_dcgm_line(line: str) -> tuple[str, dict[str, float]] | None:
    """Parse a line of ``dcgmi dmon`` into GPU number and metrics in percent; None for other lines."""
    kind, *rest = line.split() or [""]
    if kind != "GPU" or len(rest) != 1 + len(DCGM_FIELDS):
        return None
    gpu, *values = rest
    if not (gpu.isascii() and gpu.isdigit() and len(gpu) < 4):
        return None
    figures = {}
    for name, text in zip(DCGM_FIELDS.values(), values, strict=True):
        try:
            share = float(text)
        except ValueError:  # dcgmi prints "N/A" for a metric that this GPU does not support.
            continue
        if 0 <= share <= 1:
            figures[name] = round(100 * share, 2)
    return gpu, figures


def _find_program(folders: str) -> str:
    for folder in folders.split(":"):
        path = os.path.join(folder, "dcgmi")
        if os.path.isabs(folder) and os.access(path, os.X_OK):
            return path
    return ""


KERNEL_LOG = "/dev/kmsg"
MAX_RECORDS_PER_READ = 1000  # maximum number of kernel log records per read; the next read continues there
RECORD = 8192  # maximum bytes of one kernel log record, as in the kernel
_BEFORE, _BEHIND = "NVRM: Xid (PCI:", "): "


class XidLog:
    """Reader of NVIDIA's Xid errors that the kernel logs after the reader's creation."""

    def __init__(self, path: str = KERNEL_LOG) -> None:
        self._file = -1
        with suppress(OSError):  # Without access to the log, or if it is not seekable, there are no records to skip.
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)

    def read(self) -> dict[str, int]:
        """Return the latest error of each GPU since the last call, by PCI address; see
        :func:`normalize_pci_address`."""
        found: dict[str, int] = {}
        for _ in range(MAX_RECORDS_PER_READ if self._file >= 0 else 0):
            try:
                record = os.read(self._file, RECORD)
            except BrokenPipeError:
                continue  # The kernel overwrote records before they were read. Continue with the oldest remaining one.
            except BlockingIOError:
                break
            except OSError:
                os.close(self._file)
                self._file = -1
                break
            if not record:
                break
            for line in record.decode("ascii", "replace").splitlines():
                if error := parse_xid(line):
                    found[error[0]] = error[1]
        return found


def parse_xid(line: str) -> tuple[str, int] | None:
    """Return PCI address and error number from a line of the kernel log; None for other lines."""
    _, has_prefix, rest = line.partition(_BEFORE)
    bus, has_suffix, rest = rest.partition(_BEHIND)
    number = rest.partition(",")[0].strip()
    if (
        not (has_prefix and has_suffix)
        or len(bus) > 20
        or not (number.isascii() and number.isdigit() and len(number) < 5)
    ):
        return None
    return normalize_pci_address(bus), int(number)


def normalize_pci_address(bus: str) -> str:
    """Normalize a PCI address: ``00000000:3B:00.0`` becomes ``0000:3b:00``."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest.partition('.')[0]}"


DRIVER_TIMEOUT = 5.0  # seconds after which a GPU driver counts as unresponsive


class GpuMetrics:
    """Latest metrics of this machine's GPUs, read in a background thread; none if there is no driver.

    Args:
        period: Seconds between readings.

    Attributes:
        devices: Id, model, number and PCI address of each GPU. Empty until the driver has answered.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self.devices: list[dict[str, str]] = []
        self._latest: list[dict[str, float]] = []
        self._asked_at = monotonic()
        self._read_at = 0.0
        self._over = False
        self._why = ""
        self._xids: dict[str, int] = {}
        threading.Thread(target=self._serve, name="gpus", daemon=True).start()

    def read(self) -> tuple[list[dict[str, float]], str]:
        """Return the metrics of each GPU in the order of :attr:`devices`, and the reason if there are none, or ""."""
        now = monotonic()
        if self._over:
            return [], self._why
        if now - max(self._read_at, self._asked_at) > DRIVER_TIMEOUT:
            return [], f"the GPU driver has not responded for {now - self._asked_at:.0f} s"
        return self._latest if self._read_at else [], ""

    def _serve(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001  # any error of a driver is reported, and the host's metrics continue
            self._why = f"cannot read GPU metrics: {type(error).__name__}: {error}"
        self._over = True

    def _follow(self) -> None:
        driver = _find_driver()
        if driver is None:
            return
        self.devices = driver.devices
        dcgm, log = DcgmMonitor(), XidLog()
        while True:
            self._asked_at = now = monotonic()
            figures = driver.read(now)
            more = dcgm.read(now)
            self._xids |= log.read()
            for device, of_one in zip(self.devices, figures, strict=True):
                of_one |= more.get(device["number"], {})
                if (xid := self._xids.get(normalize_pci_address(device["bus"]))) is not None:
                    of_one["xid"] = xid
            self._latest, self._read_at = figures, monotonic()
            sleep(self._period)


def _find_driver() -> NvidiaGpus | AmdGpus | None:
    try:
        import pynvml
    except ImportError:  # pynvml is missing, because hosts without an NVIDIA driver do not get it.
        return _find_amd()

    try:
        nvidia = NvidiaGpus(pynvml)
    except pynvml.NVMLError:
        return _find_amd()
    return nvidia if nvidia.devices else _find_amd()


def _find_amd() -> NvidiaGpus | AmdGpus | None:
    found = AmdGpus()
    return found if found.devices else None


Metrics = dict[str, float]

SLOW_EVERY = 10  # number of readings between two queries of slowly changing GPU metrics
ALL_LINKS = 0xFFFFFFFF
# NVML's bits of harmless throttle reasons: idle, application clocks, sync boost, display clocks.
IGNORED_THROTTLE = 0x1 | 0x2 | 0x10 | 0x100


class NvidiaGpus:
    """All NVIDIA GPUs of this machine.

    Raises:
        pynvml.NVMLError: If no driver answers.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._gpus: list[_Gpu] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):  # A GPU that has fallen off the bus cannot be opened.
                self._gpus.append(_Gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index), index))
        self._readings = 0

    @property
    def devices(self) -> list[dict[str, str]]:
        """Id, model and PCI address of each GPU."""
        return [gpu.about for gpu in self._gpus]

    def read(self, now: float) -> list[Metrics]:
        """Return the metrics of each GPU in the order of :attr:`devices`."""
        turn = self._readings
        self._readings += 1
        # Measuring PCIe throughput blocks for 20 ms, so one GPU is measured per reading.
        return [
            gpu.read(now, seldom=turn % SLOW_EVERY == 0, waits=turn % len(self._gpus) == number)
            for number, gpu in enumerate(self._gpus)
        ]


class _Gpu:
    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        self._nvml, self._handle, self._index = nvml, handle, index
        self._unsupported: set[str] = set()
        self._slow_metrics: Metrics = {}  # latest values of the slowly changing metrics
        self._links: tuple[float, list[int]] | None = None
        self.about = {
            "id": str(nvml.nvmlDeviceGetUUID(handle)),
            "model": str(nvml.nvmlDeviceGetName(handle)),
            "number": str(index),
            "bus": "",
        }
        self._query("bus", self._read_bus_address)

    def read(self, now: float, *, seldom: bool, waits: bool) -> Metrics:
        figures: Metrics = {}
        try:
            for name, question in _FAST_QUERIES.items():
                figures |= self._query(name, question, self._nvml, self._handle)
            figures |= self._query("nvlink", self._nvlink, now)
            if seldom:
                for name, question in _SLOW_QUERIES.items():
                    self._slow_metrics |= self._query(name, question, self._nvml, self._handle)
            if waits:
                self._slow_metrics |= self._query("pcie", _read_pcie, self._nvml, self._handle)
        except self._nvml.NVMLError_GpuIsLost:
            self._slow_metrics = {}
            return {"lost": 1}
        return figures | self._slow_metrics

    def _query(self, name: str, question: Callable[..., Metrics], *about: Any) -> Metrics:
        if name in self._unsupported:
            return {}
        nvml = self._nvml
        try:
            return question(*about)
        except nvml.NVMLError_GpuIsLost:
            raise
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
            self._unsupported.add(name)
        except nvml.NVMLError:
            pass  # Skip the value in this reading, because the error may be temporary.
        except (AttributeError, UnicodeDecodeError, nvml.NVMLLibraryMismatchError):
            # This version of pynvml or the driver does not support the value, or returned invalid text.
            self._unsupported.add(name)
        return {}

    def _read_bus_address(self) -> Metrics:
        address = self._nvml.nvmlDeviceGetPciInfo(self._handle).busId
        self.about["bus"] = address.decode("ascii", "replace") if isinstance(address, bytes) else str(address)
        return {}

    def _nvlink(self, now: float) -> Metrics:
        """Return a GPU's NVLink throughput in bytes per second over all links. NVML counts it in KiB."""
        nvml = self._nvml
        fields = [
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
        ]
        values = nvml.nvmlDeviceGetFieldValues(self._handle, fields)
        if any(value.nvmlReturn != 0 for value in values):
            raise nvml.NVMLError_NotSupported
        counts = [int(value.value.ullVal) for value in values]
        before, self._links = self._links, (now, counts)
        if before is None or now <= before[0] or any(new < old for new, old in zip(counts, before[1], strict=True)):
            return {}
        rates = [1024 * (new - old) / (now - before[0]) for new, old in zip(counts, before[1], strict=True)]
        return {"nvlink_out": round(rates[0]), "nvlink_in": round(rates[1])}


def _read_utilization(nvml: Any, gpu: Any) -> Metrics:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return {"util": rates.gpu, "mem_busy": rates.memory}


def _read_memory(nvml: Any, gpu: Any) -> Metrics:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    return {"mem_used": memory.used, "mem_total": memory.total}


def _read_pcie(nvml: Any, gpu: Any) -> Metrics:
    sent, received = (
        nvml.nvmlDeviceGetPcieThroughput(gpu, counter)
        for counter in (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
    )
    return {"pcie_out": sent * 1024, "pcie_in": received * 1024}


def _count_ecc_errors(nvml: Any, gpu: Any, kind: str) -> int:
    which = getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}")
    return int(nvml.nvmlDeviceGetTotalEccErrors(gpu, which, nvml.NVML_VOLATILE_ECC))


_FAST_QUERIES: dict[str, Callable[[Any, Any], Metrics]] = {
    "util": _read_utilization,
    "memory": _read_memory,
    "power": lambda nvml, gpu: {"power": nvml.nvmlDeviceGetPowerUsage(gpu) / 1000},
    "temperature": lambda nvml, gpu: {"temp": nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)},
    "sm_clock": lambda nvml, gpu: {"sm_clock": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)},
    "mem_clock": lambda nvml, gpu: {"mem_clock": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)},
    "throttle": lambda nvml, gpu: {"throttle": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) & ~IGNORED_THROTTLE},
}
_SLOW_QUERIES: dict[str, Callable[[Any, Any], Metrics]] = {
    "limit": lambda nvml, gpu: {"power_limit": nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000},
    "uncorrected": lambda nvml, gpu: {"ecc": _count_ecc_errors(nvml, gpu, "UNCORRECTED")},
    "corrected": lambda nvml, gpu: {"ecc_corrected": _count_ecc_errors(nvml, gpu, "CORRECTED")},
    "processes": lambda nvml, gpu: {"processes": len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu))},
}
