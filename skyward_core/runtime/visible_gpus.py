"""The GPUs of this machine as the NVIDIA driver tells them (NVML)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from skyward_core.model.errors import PoolError


def devices() -> list[tuple[str, str]]:
    """What ``CUDA_VISIBLE_DEVICES`` calls each device here, and its model: one per GPU, and of a GPU that is cut, one
    per MIG slice.

    Where ``CUDA_VISIBLE_DEVICES`` is set already (by a scheduler, say), what it names and nothing else; a model is ""
    where the driver knows no such device.

    Raises:
        PoolError: the driver does not answer.
    """
    names = _visible_devices_setting()
    if names is None:
        with nvml() as pynvml:
            return [(uuid, model) for _, uuid, model, _ in _list_devices(pynvml)]
    try:
        with nvml() as pynvml:
            listed = [(number, uuid, model) for number, uuid, model, _ in _list_devices(pynvml)]
    except PoolError:  # what was given stands, whatever it is worth
        listed = []
    return [(name, next((model for *known, model in listed if _matches_name(name, *known)), "")) for name in names]


def iterate_visible_gpus(pynvml: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Of each device that :func:`devices` names and the driver knows: its number, which of a slice is that of its GPU
    and its own, its UUID, its model, and its NVML handle."""
    names = _visible_devices_setting()
    for each in _list_devices(pynvml):
        if names is None or any(_matches_name(name, *each[:2]) for name in names):
            yield each


def _visible_devices_setting() -> list[str] | None:
    """What ``CUDA_VISIBLE_DEVICES`` names; None where it is not set."""
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
    """Whether that is what CUDA understands by a name: the beginning of a UUID is enough."""
    return name == number if name.isdigit() else uuid.startswith(name)


@contextmanager
def nvml() -> Iterator[Any]:
    """pynvml, with a driver that answers.

    Raises:
        PoolError: there is none, or it does not answer.
    """
    try:
        import pynvml
    except ImportError as error:  # hosts without a driver are not sent it
        raise PoolError("no NVIDIA driver is here") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise PoolError(f"the NVIDIA driver does not answer ({error})") from error
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def is_in_mig_mode(gpu: object) -> bool:
    """Whether a GPU (NVML handle) is cut, or to be cut, into slices."""
    import pynvml

    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(gpu)
    except pynvml.NVMLError_NotSupported:
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def mig_slices(gpu: object) -> Iterator[object]:
    """NVML handles of a GPU's slices."""
    import pynvml

    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except pynvml.NVMLError_NotFound:
            continue  # indices may have gaps where instances were removed
