"""What the amdgpu driver says of its GPUs, by the files of ``/sys`` that ``rocm-smi`` itself reads: to start that each
second would cost more than all the rest."""

# ruff: noqa: PTH118, PTH119, PTH208

from __future__ import annotations

import os

VENDOR = "0x1002"
CARDS = "sys/class/drm"
# Figure, file, and what it is divided by.
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


class Amd:
    """All GPUs of this machine that amdgpu drives.

    Args:
        root: where ``sys`` is.
    """

    def __init__(self, root: str = "/") -> None:
        self.devices: list[dict[str, str]] = []
        self._files: list[list[tuple[str, str, int]]] = []
        folder = os.path.join(root, CARDS)
        for card in sorted(_names(folder), key=lambda name: (len(name), name)):
            if card.startswith("card") and card[4:].isdigit():
                self._add(os.path.join(folder, card, "device"))

    def _add(self, device: str) -> None:
        if _read(os.path.join(device, "vendor")) != VENDOR or not _read(
            os.path.join(device, "gpu_busy_percent")
        ):
            return
        files = [(figure, os.path.join(device, name), unit) for figure, name, unit in _FILES]
        for sensors in _names(os.path.join(device, "hwmon")):
            files += [
                (figure, os.path.join(device, "hwmon", sensors, name), unit)
                for figure, name, unit in _SENSORS
            ]
        self._files.append(files)
        number = len(self.devices)
        told = _read(os.path.join(device, "unique_id"))
        model = _read(os.path.join(device, "product_name")) or "AMD GPU"
        bus = os.path.basename(os.path.realpath(device))
        self.devices.append(
            {"id": told or f"card{number}", "model": model, "number": str(number), "bus": bus}
        )

    def read(self, now: float) -> list[dict[str, float]]:
        """The figures of each now, in the order of :attr:`devices`."""
        return [
            {figure: int(text) / unit for figure, path, unit in files if (text := _read(path)).isdigit()}
            for files in self._files
        ]


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(200).decode("ascii", "replace").strip()
    except OSError:
        return ""
