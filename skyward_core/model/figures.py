"""What machines are measured at: each figure's name, unit and meaning, for whoever shows or explains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["%", "B", "B/s", "W", "°C", "MHz", ""]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        unit: "" for a number of things.
        whole: the figure that it is a part of.
    """

    unit: Unit
    help: str
    whole: str = ""


NODE: dict[str, Figure] = {
    "cpu": Figure("%", "processor time used, of all cores together"),
    "memory_used": Figure("B", "memory in use, without what can be freed at once", "memory_total"),
    "memory_total": Figure("B", "memory of the machine"),
    "cpu_pressure": Figure("%", "of the last 10 s, in which something waited for a processor"),
    "memory_pressure": Figure("%", "of the last 10 s, in which something waited for memory"),
    "io_pressure": Figure("%", "of the last 10 s, in which something waited for a disk"),
    "net_in": Figure("B/s", "received over the network"),
    "net_out": Figure("B/s", "sent over the network"),
    "disk_read": Figure("B/s", "read from disks"),
    "disk_write": Figure("B/s", "written to disks"),
    "spool_free": Figure("B", "free on the disk where logs and results wait"),
}
GPU: dict[str, Figure] = {
    "util": Figure("%", "of the time, in which something ran on the GPU"),
    "sm_active": Figure("%", "of the multiprocessors' time in which they worked (DCGM)"),
    "tensor_active": Figure("%", "of the tensor cores' time in which they worked (DCGM)"),
    "mem_busy": Figure("%", "of the time, in which its memory was read or written"),
    "mem_used": Figure("B", "memory in use on the GPU", "mem_total"),
    "mem_total": Figure("B", "memory of the GPU"),
    "power": Figure("W", "power drawn", "power_limit"),
    "power_limit": Figure("W", "power that it may draw"),
    "temp": Figure("°C", "temperature of the GPU"),
    "sm_clock": Figure("MHz", "clock of the multiprocessors"),
    "mem_clock": Figure("MHz", "clock of the memory"),
    "throttle": Figure("", "why it runs slower than it could, as NVML's bits; 0: it does not"),
    "pcie_in": Figure("B/s", "received over PCIe"),
    "pcie_out": Figure("B/s", "sent over PCIe"),
    "nvlink_in": Figure("B/s", "received over NVLink"),
    "nvlink_out": Figure("B/s", "sent over NVLink"),
    "ecc": Figure("", "errors of its memory that could not be corrected, since the driver was loaded"),
    "ecc_corrected": Figure("", "those that were corrected"),
    "processes": Figure("", "processes that compute on it"),
    "xid": Figure("", "the last error that the driver wrote into the kernel's log (Xid)"),
    "lost": Figure("", "1: the driver has lost the GPU"),
}
# By unit, the least difference from all others that is worth a word.
APART: dict[Unit, float] = {"%": 10.0, "°C": 10.0, "W": 30.0}
# NVML's bits of "throttle".
_REASONS = (
    (0x04, "power cap"),
    (0x08, "hardware slowdown"),
    (0x20, "too hot"),
    (0x40, "too hot (hardware)"),
    (0x80, "power brake"),
)


def throttle_words(bits: float) -> str:
    """Why a GPU runs slower than it could, or ""."""
    found = int(bits)
    return ", ".join(words for bit, words in _REASONS if found & bit)
