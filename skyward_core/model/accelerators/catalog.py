"""The catalogue of accelerators and the Accelerator value."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from skyward_core.model.errors import UsageError
from skyward_core.model.older_api_arguments import ignored

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


_COUNT = re.compile(r"(?P<rest>.*?)\s*:\s*(?P<count>[^:]*)")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_MIG = re.compile(r"(?P<rest>.*?)\s*/\s*(?P<mig>\S+)")
_MEMORY = re.compile(r"[-_ ]?\b(?P<gb>\d+(?:\.\d+)?)\s*gi?b\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Accelerators of one kind on a node. ``str()`` gives "A100-80GB:8", which ``parse`` takes back.

    Args:
        name: an accelerator of the catalogue, in any spelling that finds it; kept as the catalogue writes it.
        count: how many per node.
        memory_gb: memory of each in GB; None for whichever there is.
        mig: MIG profile that each is cut into; None for whole GPUs.
        part: of the only one, where less than the whole of it is asked for, such as 0.5; 1 for the whole.

    Raises:
        UsageError: no such accelerator, memory size or MIG profile, or a count below one.

    The figures (``bf16_tflops`` and others) hold for one device. Where several memory sizes fit what was
    asked, they are the least of those: what any machine found will have.
    """

    name: str
    count: int = 1
    memory_gb: float | None = None
    mig: str | None = None
    part: float = 1.0

    def __post_init__(self) -> None:
        entry = find_named(self.name)
        object.__setattr__(self, "name", entry.name)
        if not isinstance(self.count, bool) and isinstance(self.count, float):
            # Upstream's numbers are floats, of which less than one is a part of one.
            if 0 < self.count < 1:
                object.__setattr__(self, "part", self.count)
                object.__setattr__(self, "count", 1)
            elif self.count == int(self.count):
                object.__setattr__(self, "count", int(self.count))
        if not 0 < self.part <= 1 or (self.part < 1 and self.count != 1):
            raise UsageError(f"{self.part:g} of {self.count} {entry.name}: a part is one of a single accelerator")
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise UsageError(
                f"{self.count!r} is no number of {entry.name} per node: use a whole number from 1, or a part of one"
            )
        sizes = [variant.memory_gb for variant in entry.variants]
        if self.memory_gb is not None and self.memory_gb not in sizes:
            raise UsageError(f"{entry.name} comes with {_join_or(f'{s:g}GB' for s in sizes)}, not {self.memory_gb:g}GB")
        if self.mig is not None:
            object.__setattr__(self, "mig", self.mig.lower())
            if not self.variants:
                raise UsageError(self._missing_profile_message())

    def __str__(self) -> str:
        memory = "" if self.memory_gb is None else f"-{self.memory_gb:g}GB"
        mig = "" if self.mig is None else f"/{self.mig}"
        count = "" if self.count == 1 else f":{self.count}"
        count = count if self.part == 1 else f":{self.part:g}"
        return f"{self.name}{memory}{mig}{count}"

    def _missing_profile_message(self) -> str:
        entry = self.entry
        if not entry.mig:
            return f"{entry.name} has no MIG profiles in the catalogue; ask for it without mig={self.mig!r}"
        sized = [v for v in entry.variants if self.memory_gb in (None, v.memory_gb)]
        profiles = dict.fromkeys(profile for variant in sized for profile in variant.mig)
        of = entry.name if self.memory_gb is None else f"{entry.name}-{self.memory_gb:g}GB"
        return f"{of} has no MIG profile {self.mig!r}: it can be cut into {_join_or(profiles)}"

    @property
    def entry(self) -> Entry:
        """All that the catalogue knows of it."""
        return find_named(self.name)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The memory sizes that fit what was asked, smallest first."""
        return tuple(
            variant
            for variant in self.entry.variants
            if self.memory_gb in (None, variant.memory_gb) and (self.mig is None or self.mig in variant.mig)
        )

    @property
    def maker(self) -> str:
        """Who makes it: "NVIDIA", "AMD", "Google", "AWS" or "Intel"."""
        return self.entry.maker

    @property
    def architecture(self) -> str:
        """The maker's name of its architecture: "Ampere"."""
        return self.entry.architecture

    @property
    def has_cuda(self) -> bool:
        """Whether CUDA runs on it."""
        return self.entry.cuda is not None

    @property
    def capability(self) -> str | None:
        """Its CUDA compute capability, such as "8.0"; None without CUDA."""
        return self.entry.capability

    @property
    def cuda(self) -> CudaRange | None:
        """The CUDA toolkits that build for it; None without CUDA."""
        return self.entry.cuda

    @property
    def min_memory_gb(self) -> float:
        """Memory of one device in GB that any machine found will have."""
        return self.variants[0].memory_gb

    @property
    def bf16_tflops(self) -> float | None:
        """Dense bf16 TFLOP/s of one device; None where the maker gives none."""
        return self._least(lambda variant: variant.bf16_tflops)

    @property
    def fp16_tflops(self) -> float | None:
        """Dense fp16 TFLOP/s of one device; None where the maker gives none."""
        return self._least(lambda variant: variant.fp16_tflops)

    @property
    def bandwidth_gbs(self) -> float | None:
        """Memory bandwidth of one device in GB/s; None where the maker gives none."""
        return self._least(lambda variant: variant.bandwidth_gbs)

    @property
    def slices(self) -> int:
        """Devices that ranks see on a node: MIG instances where a profile was asked, whole GPUs otherwise."""
        if self.mig is None:
            return self.count
        return self.count * min(variant.mig[self.mig] for variant in self.variants)

    @classmethod
    def from_name(
        cls, name: str, *, count: float = 1, memory: str | float | None = None, mig: str | None = None
    ) -> Accelerator:
        """Accelerators of a kind, by its name.

        Args:
            name: in any spelling that finds it.
            count: how many per node; less than 1 for a part of one.
            memory: memory of each, "80GB" or 80; None for whichever there is.
            mig: MIG profile that each is cut into; None for whole GPUs.

        Raises:
            UsageError: no such accelerator, memory size or MIG profile, or a count that is none.
        """
        return cls(name, count, _gigabytes(memory), mig)  # type: ignore[arg-type]  # whole once it is made

    def with_count(self, count: float) -> Accelerator:
        """The same kind, another number of them.

        Args:
            count: how many per node; less than 1 for a part of one.

        Raises:
            UsageError: that is no number of them.
        """
        return replace(self, count=count, part=1.0)  # type: ignore[arg-type]  # whole once it is made

    def _least(self, figure: Callable[[Variant], float | None]) -> float | None:
        # One size without a figure leaves nothing that could be promised for all of them.
        figures = [figure(variant) for variant in self.variants]
        known = [value for value in figures if value is not None]
        return min(known) if len(known) == len(figures) else None


@dataclass(frozen=True, slots=True)
class Factory:
    """Makes ``Accelerator`` values of one kind; ``sky.accelerators.A100`` is one.

    Uncalled it stands for one accelerator per node, wherever an accelerator is asked for.

    Attributes:
        name: of the accelerator, as the catalogue writes it.
    """

    name: str

    def __call__(
        self,
        count: float = 1,
        *,
        memory: str | float | None = None,
        mig: str | None = None,
        form_factor: str | None = None,
    ) -> Accelerator:
        """Accelerators of this kind.

        Args:
            count: how many per node; less than 1 for a part of one, which is refused where accelerators are rented
                whole.
            memory: memory of each, "80GB" or 80; None for whichever there is.
            mig: MIG profile that each is cut into; None for whole GPUs.
            form_factor: "SXM" or "PCIe"; goes unheeded, and is told of.

        Raises:
            UsageError: no such memory size or MIG profile, or a count that is none.
        """
        ignored("providers do not tell one from the other; the catalogue names some, such as H100_PCIe")(
            f"sky.accelerators.{self.name}", "form_factor", form_factor
        )
        return Accelerator.from_name(self.name, count=count, memory=memory, mig=mig)


def factory(name: str) -> Factory:
    """The factory of an accelerator, by name.

    Args:
        name: in any spelling that finds it.

    Raises:
        UsageError: no such accelerator; the message names the nearest ones.
    """
    return Factory(find_named(name).name)


def factories(maker: str | None = None) -> dict[str, Factory]:
    """Every factory by its identifier.

    Args:
        maker: "NVIDIA", "AMD", "Google", "AWS" or "Intel"; None for all.
    """
    return {e.identifier: Factory(e.name) for e in entries() if maker is None or e.maker == maker}


def parse(text: str) -> Accelerator:
    """An accelerator from a string: ``NAME[-MEMORY][/MIG][:COUNT]``, in any case.

    "A100", "a100:8", "A100-80GB:4", "A100-80GB/3g.40gb", "NVIDIA A100-SXM4-80GB", "RTX 4090:2".

    Args:
        text: the string.

    Raises:
        UsageError: nothing in the catalogue is meant; the message names what is near.
    """
    rest, count, mig, memory = text.strip(), 1.0, None, None
    if found := _COUNT.fullmatch(rest):
        rest = found["rest"]
        if not _NUMBER.fullmatch(found["count"]):
            raise UsageError(f"{text!r}: {found['count']!r} is no number of accelerators; write {rest}:8 for eight")
        count = float(found["count"])
    if found := _MIG.fullmatch(rest):
        rest, mig = found["rest"], found["mig"]
    if found := _MEMORY.search(rest):
        rest, memory = rest[: found.start()] + rest[found.end() :], float(found["gb"])
    return Accelerator.from_name(rest, count=count, memory=memory, mig=mig)


def Custom(
    name: str,
    *,
    memory: str | float | None = None,
    count: float = 1,
    cuda_min: str | None = None,
    cuda_max: str | None = None,
) -> Accelerator:
    """Accelerators that the catalogue does not have, by what you know of them.

    Args:
        name: what it is called, where machines with it are had.
        memory: memory of each, "48GB" or 48; None where that does not matter.
        count: how many per node.
        cuda_min: the first CUDA toolkit that builds for it; None where CUDA does not run on it.
        cuda_max: the last one.

    Raises:
        UsageError: the memory is no size, or the count no number of accelerators.
    """
    cuda = CudaRange(cuda_min or "", cuda_max) if cuda_min or cuda_max else None
    add_custom(name, _gigabytes(memory or None) or 0.0, cuda)
    return Accelerator.from_name(name, count=count)


def resolve(value: Accelerator | Factory | Callable[[], Accelerator] | str | None) -> Accelerator | None:
    """What a person gave for an accelerator: a string is parsed, an uncalled factory stands for one per node.

    Args:
        value: what was given; None for no accelerator.

    Raises:
        UsageError: it is none of those, or nothing in the catalogue is meant.
    """
    match value:
        case None | Accelerator():
            return value
        case str():
            return parse(value)
        case Factory():
            return value()
        case _:
            raise UsageError(f"{value!r} is no accelerator: write accelerator='A100:8' or accelerators.A100(count=8)")


def _gigabytes(memory: str | float | None) -> float | None:
    if memory is None or isinstance(memory, int | float):
        return memory
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:gi?b)?\s*", memory, re.IGNORECASE)
    if found is None:
        raise UsageError(f"{memory!r} is no memory size; write '80GB'")
    return float(found[1])


def _join_or(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last
