"""The GPUs of this machine as the NVIDIA driver tells them (NVML)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..model.errors import PoolError


def devices() -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES`` calls each device here: one per GPU, and of a GPU that is cut, one per MIG slice.

    Where ``CUDA_VISIBLE_DEVICES`` is set already (by a scheduler, say), what it names and nothing else.

    Raises:
        PoolError: the driver does not answer.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name.strip() and name.strip() != "-1"]
    with nvml() as pynvml:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            whole = not in_mig_mode(gpu)
            found += [str(pynvml.nvmlDeviceGetUUID(part)) for part in ([gpu] if whole else mig_slices(gpu))]
        return found


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


def in_mig_mode(gpu: object) -> bool:
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
