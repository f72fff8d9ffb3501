"""The Accelerator value, its factories, and its parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from skyward_core.model.accelerators.catalog import CudaRange, Entry, Variant, add_custom, entries, find_named
from skyward_core.model.errors import UsageError
from skyward_core.model.older_api_arguments import ignored

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
