"""The catalogue of accelerators and lookups in it."""

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

# Words that device names carry (as NVML prints them) and that tell no two entries apart.
_NOISE = re.compile(
    r"\b(nvidia|tesla|geforce|amd|radeon|instinct|google|cloud|aws|intel|habana|corporation|blackwell|generation"
    r"|sxm\d?|oam|hbm\d?e?)\b"
)


@dataclass(frozen=True, slots=True)
class CudaRange:
    """CUDA toolkits that build for a part, both ends included.

    Attributes:
        min: the first toolkit, such as "11.0".
        max: the last one; None until a toolkit drops the part.
    """

    min: str
    max: str | None


@dataclass(frozen=True, slots=True)
class Variant:
    """One memory size of an accelerator. Figures are per device; None where the maker gives none.

    Attributes:
        memory_gb: device memory, as the maker counts gigabytes.
        bandwidth_gbs: peak memory bandwidth in GB/s.
        fp16_tflops: peak dense fp16 arithmetic in TFLOP/s, without sparsity.
        bf16_tflops: peak dense bf16 arithmetic in TFLOP/s, without sparsity.
        mig: instances per GPU by MIG profile; empty where there is no MIG.
    """

    memory_gb: float
    bandwidth_gbs: float | None
    fp16_tflops: float | None
    bf16_tflops: float | None
    mig: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """One accelerator of the catalogue.

    Attributes:
        name: how it is written, without spaces: "A100", "RTX-4090".
        maker: "NVIDIA", "AMD", "Google", "AWS" or "Intel".
        segment: "data centre", "workstation" or "consumer".
        architecture: the maker's name of it.
        capability: CUDA compute capability, such as "8.0"; None where there is no CUDA.
        cuda: toolkits that build for it; None where there is no CUDA.
        variants: its memory sizes, smallest first.
        sources: titles of the documents that the figures come from.
        aliases: other names that find it.
        note: how the figures were derived, where they are not the document's own.
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
        """The name of its factory: "RTX_4090"."""
        return self.name.replace("-", "_")

    @property
    def mig(self) -> dict[str, int]:
        """Instances per GPU by MIG profile, over all memory sizes; the largest's where several have it."""
        return {profile: count for variant in self.variants for profile, count in variant.mig.items()}


def key(name: str) -> str:
    """What is left of a name when spelling does not matter: "NVIDIA GeForce RTX 4090" is "rtx4090"."""
    return re.sub(r"[^a-z0-9]", "", _NOISE.sub(" ", name.lower().replace("_", "-")))


@cache
def entries() -> tuple[Entry, ...]:
    """Every accelerator of the catalogue, in its order: by maker, segment, age."""
    raw = pkgutil.get_data(__package__, "catalogue.json")
    if raw is None:
        raise UsageError(f"{__package__} holds no catalogue.json; install the package again")
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
    """The entry of a name; case, hyphens, spaces and the maker's name do not matter.

    Args:
        name: of an accelerator, or one of its aliases.

    Raises:
        UsageError: no such accelerator; the message names the nearest ones.
    """
    entry = _index().get(key(name))
    if entry is None:
        near = nearest(name)
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else 'sky.accelerators.search("80gb") finds names by what is known of them'
        )
        raise UsageError(f"no accelerator {name!r} in the catalogue: {hint}")
    return entry


def find_in_text(text: str) -> Entry | None:
    """The entry whose name stands in a driver's text ("NVIDIA H100 80GB HBM3"), the longest such; None for none.

    Args:
        text: the model, as a driver says it; of several, by commas, the first.
    """
    words = re.split(r"[\s-]+", text.partition(",")[0])
    spans = ((end - start, start, end) for start in range(len(words)) for end in range(start + 1, len(words) + 1))
    for _, start, end in sorted(spans, key=lambda span: (-span[0], span[1])):
        if (found := _index().get(key(" ".join(words[start:end])))) is not None:
            return found
    return None


def nearest(name: str) -> list[str]:
    """Names of up to three accelerators that look like another name, best first.

    Args:
        name: what somebody wrote.
    """
    from difflib import get_close_matches  # only ever needed for a typo

    index = _index()
    keys = get_close_matches(key(name), index, n=6, cutoff=0.6)
    return list(dict.fromkeys(index[match].name for match in keys))[:3]


def search(text: str) -> list[Entry]:
    """Accelerators whose name, alias, maker, segment, architecture or memory holds every word of a text.

    The order is the catalogue's, entries whose name starts with the text first.

    Args:
        text: the words, in any case; an empty text finds all.
    """
    words = text.lower().split()
    start = key(text)

    def haystack(entry: Entry) -> str:
        sizes = " ".join(f"{variant.memory_gb:g}gb" for variant in entry.variants)
        named = " ".join((entry.name, entry.identifier, entry.name.replace("-", " "), *entry.aliases))
        return f"{named} {entry.maker} {entry.segment} {entry.architecture} {sizes}".lower()

    found = [entry for entry in entries() if all(word in haystack(entry) for word in words)]
    return sorted(found, key=lambda entry: not key(entry.name).startswith(start))


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
def extra_entries() -> dict[str, Entry]:
    """Those that scripts name, by what is left of the name when spelling does not matter."""
    rows = (line.split() for line in _NAMED.split("\n") if line)
    return {
        key(name): _entry(name, maker, float(memory), None if cuda == "-" else CudaRange(cuda, None))
        for name, maker, memory, cuda in rows
    }


def add_custom(name: str, memory_gb: float, cuda: CudaRange | None) -> Entry:
    """One that a person describes; it is found by its name from then on, in this process.

    Args:
        name: what it is called.
        memory_gb: memory of each in GB; 0 where that is not known.
        cuda: the toolkits that build for it; None where CUDA does not run on it.
    """
    made = _entry(name, "", memory_gb, cuda)
    extra_entries()[key(name)] = made
    return made


def _entry(name: str, maker: str, memory_gb: float, cuda: CudaRange | None) -> Entry:
    variant = Variant(memory_gb, None, None, None, {})
    return Entry(name, maker, "other", "", None, cuda, (variant,), ())


def find_named(name: str) -> Entry:
    """The entry of a name; case, hyphens, spaces and the maker's name do not matter. Some have no figures, as the
    catalogue has none of them.

    Args:
        name: of an accelerator, or one of its aliases.

    Raises:
        UsageError: no such accelerator; the message names the nearest ones.
    """
    return extra_entries().get(key(name)) or find(name)
