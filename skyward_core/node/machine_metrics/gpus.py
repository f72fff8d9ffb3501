"""The GPUs' figures, read in a thread: a driver may hang for good, and the rest of the machine is measured all the
same."""

from __future__ import annotations

import threading
from time import monotonic, sleep
from typing import Protocol

from .amd import Amd
from .dcgm import Dcgm
from .kernel_log import XidLog, place

PATIENCE = 5.0  # seconds after which a driver does not answer


class Driver(Protocol):
    """NVIDIA's or AMD's."""

    @property
    def devices(self) -> list[dict[str, str]]: ...

    def read(self, now: float) -> list[dict[str, float]]: ...


class Gpus:
    """Those of this machine, as they were at the last reading; none where nothing drives any.

    Args:
        period: seconds between readings.

    Attributes:
        devices: what each is: id, model, number, place on the bus. Replaced when it is known.
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
        """The figures of each, in the order of :attr:`devices`, and why there are none, or ""."""
        now = monotonic()
        if self._over:
            return [], self._why
        if now - max(self._read_at, self._asked_at) > PATIENCE:
            return [], f"the GPUs' driver has not answered for {now - self._asked_at:.0f} s"
        return self._latest if self._read_at else [], ""

    def _serve(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001  whatever a driver does, the machine is measured, and this is told
            self._why = f"the GPUs cannot be measured: {type(error).__name__}: {error}"
        self._over = True

    def _follow(self) -> None:
        driver = _driver()
        if driver is None:
            return
        self.devices = driver.devices
        dcgm, log = Dcgm(), XidLog()
        while True:
            self._asked_at = now = monotonic()
            figures = driver.read(now)
            more = dcgm.read(now)
            self._xids |= log.read()
            for device, of_one in zip(self.devices, figures, strict=True):
                of_one |= more.get(device["number"], {})
                if (xid := self._xids.get(place(device["bus"]))) is not None:
                    of_one["xid"] = xid
            self._latest, self._read_at = figures, monotonic()
            sleep(self._period)


def _driver() -> Driver | None:
    try:
        import pynvml
    except ImportError:  # hosts without a driver are not sent it
        return _amd()
    from .nvidia import Nvidia

    try:
        nvidia = Nvidia(pynvml)
    except pynvml.NVMLError:
        return _amd()
    return nvidia if nvidia.devices else _amd()


def _amd() -> Driver | None:
    found = Amd()
    return found if found.devices else None
