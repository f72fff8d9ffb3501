"""Accelerators of which the catalogue has no figures: those that scripts name all the same, and a person's own."""

from __future__ import annotations

from functools import cache

from .catalogue import CudaRange, Entry, Variant, key

# Name, maker, memory in GB, and the first CUDA toolkit that builds for it.
_NAMED = """
A100X NVIDIA 80 11.0
B100 NVIDIA 192 12.8
CMP-50HX NVIDIA 10 10.0
RTX-3060-Laptop NVIDIA 6 11.1
RTX-4070-Laptop NVIDIA 8 11.8
RTX-5090-Laptop NVIDIA 24 12.8
RTX-A5000-Pro NVIDIA 24 11.1
MI300B AMD 192 -
RadeonPro-V710 AMD 28 -
Pro-V710 AMD 28 -
RX-7800XT AMD 16 -
RX-7900XT AMD 20 -
RX-7900XTX AMD 24 -
RX-9060XT AMD 16 -
RX-9070XT AMD 16 -
TPU-v2-8 Google 64 -
TPU-v3-8 Google 128 -
TPU-v3-32 Google 512 -
TPU-v4-64 Google 1024 -
TPU-v5e-4 Google 64 -
TPU-v5p-8 Google 380 -
"""


@cache
def named() -> dict[str, Entry]:
    """Those that scripts name, by what is left of the name when spelling does not matter."""
    rows = (line.split() for line in _NAMED.split("\n") if line)
    return {
        key(name): _entry(name, maker, float(memory), None if cuda == "-" else CudaRange(cuda, None))
        for name, maker, memory, cuda in rows
    }


def own(name: str, memory_gb: float, cuda: CudaRange | None) -> Entry:
    """One that a person describes; it is found by its name from then on, in this process.

    Args:
        name: what it is called.
        memory_gb: memory of each in GB; 0 where that is not known.
        cuda: the toolkits that build for it; None where CUDA does not run on it.
    """
    made = _entry(name, "", memory_gb, cuda)
    named()[key(name)] = made
    return made


def _entry(name: str, maker: str, memory_gb: float, cuda: CudaRange | None) -> Entry:
    variant = Variant(memory_gb, None, None, None, {})
    return Entry(name, maker, "other", "", None, cuda, (variant,), ())
