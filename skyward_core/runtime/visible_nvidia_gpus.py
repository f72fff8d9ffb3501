"""NVIDIA GPUs that this process may use (``CUDA_VISIBLE_DEVICES``), as reported by the driver (NVML)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from skyward_core.model.errors import PoolError


def devices() -> list[tuple[str, str]]:
    """Return name (as in ``CUDA_VISIBLE_DEVICES``) and model of each GPU that this process may use.

    In MIG mode, the devices of a GPU are its MIG slices. If ``CUDA_VISIBLE_DEVICES`` is set, for example by a
    scheduler, only its devices are returned. A model is "" if the driver does not know the device.

    Raises:
        PoolError: If the driver does not answer.
    """
    names = _visible_devices_setting()
    if names is None:
        with nvml() as pynvml:
            return [(uuid, model) for _, uuid, model, _ in _list_devices(pynvml)]
    try:
        with nvml() as pynvml:
            listed = [(number, uuid, model) for number, uuid, model, _ in _list_devices(pynvml)]
    except PoolError:  # Without a driver that answers, return the devices of the variable without models.
        listed = []
    return [(name, next((model for *known, model in listed if _matches_name(name, *known)), "")) for name in names]


def iterate_visible_gpus(pynvml: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Yield the number, UUID, model and NVML handle of each GPU or MIG slice that this process may use.

    The number of a MIG slice consists of the number of its GPU and its own number.
    """
    names = _visible_devices_setting()
    for each in _list_devices(pynvml):
        if names is None or any(_matches_name(name, *each[:2]) for name in names):
            yield each


def _visible_devices_setting() -> list[str] | None:
    """Return the devices in ``CUDA_VISIBLE_DEVICES``. None if it is not set."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return None
    return [name for name in map(str.strip, given.split(",")) if name and name != "-1"]


def _list_devices(pynvml: Any) -> Iterator[tuple[str, str, str, Any]]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        cut = is_in_mig_mode(gpu)
        for part, device in enumerate(mig_slices(gpu) if cut else [gpu]):
            number = f"{index}:{part}" if cut else str(index)
            yield number, str(pynvml.nvmlDeviceGetUUID(device)), str(pynvml.nvmlDeviceGetName(device)), device


def _matches_name(name: str, number: str, uuid: str) -> bool:
    """Check whether a name in ``CUDA_VISIBLE_DEVICES`` means a device. CUDA accepts a prefix of a UUID."""
    return name == number if name.isdigit() else uuid.startswith(name)


@contextmanager
def nvml() -> Iterator[Any]:
    """Return the module pynvml after its initialization.

    Raises:
        PoolError: If there is no driver, or if it does not answer.
    """
    try:
        import pynvml
    except ImportError as error:  # pynvml is missing, because hosts without an NVIDIA driver do not get it.
        raise PoolError("this machine has no NVIDIA driver") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise PoolError(f"the NVIDIA driver does not answer ({error})") from error
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def is_in_mig_mode(gpu: object) -> bool:
    """Check whether a GPU (NVML handle) is in MIG mode."""
    import pynvml

    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(gpu)
    except pynvml.NVMLError_NotSupported:
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def mig_slices(gpu: object) -> Iterator[object]:
    """Yield the NVML handles of a GPU's MIG slices."""
    import pynvml

    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        with suppress(pynvml.NVMLError_NotFound):  # Skip a number without a slice: removed slices leave gaps.
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
