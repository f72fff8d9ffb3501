"""What an NVIDIA driver says of its GPUs (NVML). A figure that one of them does not have is not asked for again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Figures = dict[str, float]

SELDOM = 10  # readings between two that ask for what changes slowly
ALL_LINKS = 0xFFFFFFFF
# Reasons to run slower that are none to worry: idle, clocks that somebody has set, GPUs that keep step, displays.
HARMLESS = 0x1 | 0x2 | 0x10 | 0x100


class Nvidia:
    """All GPUs of this machine, and of those that are cut their slices.

    Raises:
        pynvml.NVMLError: no driver answers.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._gpus: list[_Gpu] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                self._gpus.append(_Gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index), index))
            except nvml.NVMLError:
                continue  # one that has fallen off the bus cannot even be opened
        self._readings = 0

    @property
    def devices(self) -> list[dict[str, str]]:
        """What each is: id, model, place on the bus."""
        return [gpu.about for gpu in self._gpus]

    def read(self, now: float) -> list[Figures]:
        """The figures of each now, in the order of :attr:`devices`."""
        turn = self._readings
        self._readings += 1
        # Rates of the bus are measured while one waits, a fiftieth of a second: one GPU's at a time.
        return [
            gpu.read(now, seldom=turn % SELDOM == 0, waits=turn % len(self._gpus) == number)
            for number, gpu in enumerate(self._gpus)
        ]


class _Gpu:
    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        self._nvml, self._handle, self._index = nvml, handle, index
        self._lacks: set[str] = set()
        self._kept: Figures = {}  # what is not asked for each time
        self._links: tuple[float, list[int]] | None = None
        self.about = {
            "id": str(nvml.nvmlDeviceGetUUID(handle)),
            "model": str(nvml.nvmlDeviceGetName(handle)),
            "number": str(index),
            "bus": "",
        }
        self._ask("bus", self._bus)

    def read(self, now: float, *, seldom: bool, waits: bool) -> Figures:
        figures: Figures = {}
        try:
            for name, question in _OFTEN.items():
                figures |= self._ask(name, question, self._nvml, self._handle)
            figures |= self._ask("nvlink", self._nvlink, now)
            if seldom:
                for name, question in _SELDOM.items():
                    self._kept |= self._ask(
                        name, lambda question=question: question(self._nvml, self._handle)
                    )
            if waits:
                self._kept |= self._ask("pcie", _pcie, self._nvml, self._handle)
        except self._nvml.NVMLError_GpuIsLost:
            self._kept = {}
            return {"lost": 1}
        return figures | self._kept

    def _ask(self, name: str, question: Callable[..., Figures], *about: Any) -> Figures:
        if name in self._lacks:
            return {}
        nvml = self._nvml
        try:
            return question(*about)
        except nvml.NVMLError_GpuIsLost:
            raise
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
            self._lacks.add(name)
        except nvml.NVMLError:
            pass  # not this time
        except (AttributeError, UnicodeDecodeError, nvml.NVMLLibraryMismatchError):
            self._lacks.add(name)  # a pynvml, or a driver, that does not know it; text that is none
        return {}

    def _bus(self) -> Figures:
        told = self._nvml.nvmlDeviceGetPciInfo(self._handle).busId
        self.about["bus"] = told.decode("ascii", "replace") if isinstance(told, bytes) else str(told)
        return {}

    def _nvlink(self, now: float) -> Figures:
        """Bytes a second over all links together; counted by the GPU in KiB."""
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
        if (
            before is None
            or now <= before[0]
            or any(new < old for new, old in zip(counts, before[1], strict=True))
        ):
            return {}
        rates = [1024 * (new - old) / (now - before[0]) for new, old in zip(counts, before[1], strict=True)]
        return {"nvlink_out": round(rates[0]), "nvlink_in": round(rates[1])}


def _utilisation(nvml: Any, gpu: Any) -> Figures:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return {"util": rates.gpu, "mem_busy": rates.memory}


def _memory(nvml: Any, gpu: Any) -> Figures:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    return {"mem_used": memory.used, "mem_total": memory.total}


def _throttle(nvml: Any, gpu: Any) -> Figures:
    return {"throttle": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) & ~HARMLESS}


def _pcie(nvml: Any, gpu: Any) -> Figures:
    sent, received = (
        nvml.nvmlDeviceGetPcieThroughput(gpu, counter)
        for counter in (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
    )
    return {"pcie_out": sent * 1024, "pcie_in": received * 1024}


def _ecc(kind: str) -> Callable[[Any, Any], int]:
    def errors(nvml: Any, gpu: Any) -> int:
        which = getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}")
        return int(nvml.nvmlDeviceGetTotalEccErrors(gpu, which, nvml.NVML_VOLATILE_ECC))

    return errors


_uncorrected, _corrected = _ecc("UNCORRECTED"), _ecc("CORRECTED")

_OFTEN: dict[str, Callable[[Any, Any], Figures]] = {
    "util": _utilisation,
    "memory": _memory,
    "power": lambda nvml, gpu: {"power": nvml.nvmlDeviceGetPowerUsage(gpu) / 1000},
    "temperature": lambda nvml, gpu: {"temp": nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)},
    "sm_clock": lambda nvml, gpu: {"sm_clock": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)},
    "mem_clock": lambda nvml, gpu: {"mem_clock": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)},
    "throttle": _throttle,
}
_SELDOM: dict[str, Callable[[Any, Any], Figures]] = {
    "limit": lambda nvml, gpu: {"power_limit": nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000},
    "uncorrected": lambda nvml, gpu: {"ecc": _uncorrected(nvml, gpu)},
    "corrected": lambda nvml, gpu: {"ecc_corrected": _corrected(nvml, gpu)},
    "processes": lambda nvml, gpu: {"processes": len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu))},
}
