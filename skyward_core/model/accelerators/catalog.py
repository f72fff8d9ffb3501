"""Catalogue of accelerators, and searches in it."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from skyward_core.model.errors import UsageError

# Words in device names from NVML that are ignored, because they do not distinguish entries of the catalogue.
_NOISE = re.compile(
    r"\b(nvidia|tesla|geforce|amd|radeon|instinct|google|cloud|aws|intel|habana|corporation|blackwell|generation"
    r"|sxm\d?|oam|hbm\d?e?)\b"
)


@dataclass(frozen=True, slots=True)
class CudaRange:
    """CUDA toolkits that support a device, both ends included.

    Attributes:
        min: First toolkit, such as "11.0".
        max: Last toolkit. None if current toolkits support the device.
    """

    min: str
    max: str | None


@dataclass(frozen=True, slots=True)
class Variant:
    """One memory size of an accelerator. Specifications are per device; None if not published.

    Attributes:
        memory_gb: Device memory in GB, as makers count.
        bandwidth_gbs: Peak memory bandwidth in GB/s.
        fp16_tflops: Peak dense fp16 TFLOP/s, without sparsity.
        bf16_tflops: Peak dense bf16 TFLOP/s, without sparsity.
        mig: MIG slices per GPU by profile; empty without MIG.
    """

    memory_gb: float
    bandwidth_gbs: float | None
    fp16_tflops: float | None
    bf16_tflops: float | None
    mig: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """Accelerator of the catalogue.

    Attributes:
        name: Name without spaces: "A100", "RTX-4090".
        maker: "NVIDIA", "AMD", "Google", "AWS" or "Intel".
        segment: "data centre", "workstation" or "consumer".
        architecture: The maker's name of the architecture.
        capability: CUDA compute capability, such as "8.0". None without CUDA.
        cuda: Toolkits that support the accelerator. None without CUDA.
        variants: Memory sizes, smallest first.
        sources: Titles of the documents with the specifications.
        aliases: Other names.
        note: How specifications were derived, if a document does not state them.
    """

    name: str
    maker: str
    segment: str
    architecture: str
    capability: str | None
    cuda: CudaRange | None
    variants: tuple[Variant, ...]
    sources: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    note: str = ""

    @property
    def identifier(self) -> str:
        """Name of its factory, such as "RTX_4090"."""
        return self.name.replace("-", "_")

    @property
    def mig(self) -> dict[str, int]:
        """MIG slices per GPU by profile, over all memory sizes. If several sizes have a profile, the value of the
        largest size is used.
        """
        return {profile: count for variant in self.variants for profile, count in variant.mig.items()}


def key(name: str) -> str:
    """Return a name in a normalized form for comparison: "NVIDIA GeForce RTX 4090" becomes "rtx4090"."""
    return re.sub(r"[^a-z0-9]", "", _NOISE.sub(" ", name.lower().replace("_", "-")))


@cache
def entries() -> tuple[Entry, ...]:
    """Return all accelerators of the catalogue, ordered by maker, segment and age."""
    raw = pkgutil.get_data(__package__, "catalogue.json")
    if raw is None:
        raise UsageError(f"{__package__} has no catalogue.json. Reinstall the package.")
    data = json.loads(raw)
    cuda = {capability: CudaRange(**span) for capability, span in data["cuda"].items()}
    mig = {profile: MappingProxyType(table) for profile, table in data["mig"].items()}

    def variant(row: dict[str, Any]) -> Variant:
        return Variant(**{**row, "mig": mig[row["mig"]] if "mig" in row else MappingProxyType({})})

    def entry(row: dict[str, Any]) -> Entry:
        return Entry(
            **{
                **row,
                "cuda": cuda.get(row["capability"]),
                "variants": tuple(map(variant, row["variants"])),
                "sources": tuple(data["sources"][source] for source in row["sources"]),
                "aliases": tuple(row.get("aliases", ())),
            }
        )

    return tuple(map(entry, data["accelerators"]))


@cache
def _index() -> dict[str, Entry]:
    return {key(name): entry for entry in entries() for name in (entry.name, *entry.aliases)}


def find(name: str) -> Entry:
    """Return the entry of a name, ignoring case, hyphens, spaces and the maker's name.

    Args:
        name: Name or alias of an accelerator.

    Raises:
        UsageError: If the accelerator is unknown. The message suggests similar names.
    """
    entry = _index().get(key(name))
    if entry is None:
        near = nearest(name)
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else 'search for names and properties with sky.accelerators.search("80gb")'
        )
        raise UsageError(f"no accelerator {name!r} in the catalogue: {hint}")
    return entry


def find_in_text(text: str) -> Entry | None:
    """Return the entry with the longest name contained in a driver's text ("NVIDIA H100 80GB HBM3"), or None.

    Args:
        text: Model from a driver. In a comma-separated list, the first model counts.
    """
    words = re.split(r"[\s-]+", text.partition(",")[0])
    spans = ((end - start, start, end) for start in range(len(words)) for end in range(start + 1, len(words) + 1))
    for _, start, end in sorted(spans, key=lambda span: (-span[0], span[1])):
        if (found := _index().get(key(" ".join(words[start:end])))) is not None:
            return found
    return None


def nearest(name: str) -> list[str]:
    """Return up to three names of accelerators similar to a name, best first.

    Args:
        name: The name.
    """
    from difflib import get_close_matches  # imported late, because only a misspelled name needs the comparison

    index = _index()
    keys = get_close_matches(key(name), index, n=6, cutoff=0.6)
    return list(dict.fromkeys(index[match].name for match in keys))[:3]


def search(text: str) -> list[Entry]:
    """Return accelerators whose name, alias, maker, segment, architecture or memory contains every word of a text.

    Entries keep the catalogue's order, except that names starting with the text come first.

    Args:
        text: The words, in any case. An empty text matches all.
    """
    words = text.lower().split()
    start = key(text)

    def haystack(entry: Entry) -> str:
        sizes = " ".join(f"{variant.memory_gb:g}gb" for variant in entry.variants)
        named = " ".join((entry.name, entry.identifier, entry.name.replace("-", " "), *entry.aliases))
        return f"{named} {entry.maker} {entry.segment} {entry.architecture} {sizes}".lower()

    found = [entry for entry in entries() if all(word in haystack(entry) for word in words)]
    return sorted(found, key=lambda entry: not key(entry.name).startswith(start))


# Name, maker, memory in GB, and the first CUDA toolkit that supports the accelerator.
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
def extra_entries() -> dict[str, Entry]:
    """Return accelerators without specifications by normalized name. Scripts of older API versions use these names."""
    rows = (line.split() for line in _NAMED.split("\n") if line)
    return {
        key(name): _entry(name, maker, float(memory), None if cuda == "-" else CudaRange(cuda, None))
        for name, maker, memory, cuda in rows
    }


def add_custom(name: str, memory_gb: float, cuda: CudaRange | None) -> Entry:
    """Add a user-defined accelerator to this process's catalogue.

    Args:
        name: Name of the accelerator.
        memory_gb: Memory of each in GB; 0 if unknown.
        cuda: Toolkits that support it. None without CUDA.
    """
    made = _entry(name, "", memory_gb, cuda)
    extra_entries()[key(name)] = made
    return made


def _entry(name: str, maker: str, memory_gb: float, cuda: CudaRange | None) -> Entry:
    return Entry(name, maker, "other", "", None, cuda, (Variant(memory_gb, None, None, None, {}),), ())


def find_named(name: str) -> Entry:
    """Return the entry of a name, including entries without specifications.

    Case, hyphens, spaces and the maker's name are ignored.

    Args:
        name: Name or alias of an accelerator.

    Raises:
        UsageError: If the accelerator is unknown. The message suggests similar names.
    """
    return extra_entries().get(key(name)) or find(name)
