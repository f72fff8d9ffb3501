"""``Accelerator``: accelerators of a node as a value, with factories and a parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from skyward_core.model.accelerators.catalog import CudaRange, Entry, Variant, add_custom, entries, find_named
from skyward_core.model.deprecated_and_unknown_arguments import ignored
from skyward_core.model.errors import UsageError

_COUNT = re.compile(r"(?P<rest>.*?)\s*:\s*(?P<count>[^:]*)")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_MIG = re.compile(r"(?P<rest>.*?)\s*/\s*(?P<mig>\S+)")
_MEMORY = re.compile(r"[-_ ]?\b(?P<gb>\d+(?:\.\d+)?)\s*gi?b\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Accelerators of one type on a node. ``str()`` returns text such as "A100-80GB:8", which ``parse`` accepts.

    The specifications (``bf16_tflops`` and others) describe one device. If several memory sizes match, each
    specification is the minimum over these sizes, which every matching machine reaches.

    Args:
        name: Name of an accelerator in the catalogue, in any known spelling. Stored as the catalogue writes it.
        count: Number per node.
        memory_gb: Memory of each in GB. None for any size.
        mig: MIG profile of each slice. None for whole GPUs.
        part: Requested fraction of a single accelerator, such as 0.5; 1 for the whole.

    Raises:
        UsageError: If the accelerator, memory size or MIG profile is unknown, or the count is less than one.
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
            # Older generations use float counts; a count below 1 is a fraction of one accelerator.
            if 0 < self.count < 1:
                object.__setattr__(self, "part", self.count)
                object.__setattr__(self, "count", 1)
            elif self.count == int(self.count):
                object.__setattr__(self, "count", int(self.count))
        if not 0 < self.part <= 1 or (self.part < 1 and self.count != 1):
            raise UsageError(f"{self.part:g} of {self.count} {entry.name}: a fraction requires a count of 1")
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise UsageError(
                f"{self.count!r} is not a number of {entry.name} per node. Use a whole number from 1, or a fraction."
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
            return f"{entry.name} has no MIG profiles in the catalogue. Remove mig={self.mig!r}."
        sized = [v for v in entry.variants if self.memory_gb in (None, v.memory_gb)]
        profiles = dict.fromkeys(profile for variant in sized for profile in variant.mig)
        of = entry.name if self.memory_gb is None else f"{entry.name}-{self.memory_gb:g}GB"
        return f"{of} has no MIG profile {self.mig!r}. Use {_join_or(profiles)}."

    @property
    def entry(self) -> Entry:
        """Entry of the catalogue."""
        return find_named(self.name)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Matching memory sizes, smallest first."""
        return tuple(
            variant
            for variant in self.entry.variants
            if self.memory_gb in (None, variant.memory_gb) and (self.mig is None or self.mig in variant.mig)
        )

    @property
    def maker(self) -> str:
        """Maker: "NVIDIA", "AMD", "Google", "AWS" or "Intel"."""
        return self.entry.maker

    @property
    def architecture(self) -> str:
        """The maker's name of the architecture, such as "Ampere"."""
        return self.entry.architecture

    @property
    def has_cuda(self) -> bool:
        """Whether the accelerator supports CUDA."""
        return self.entry.cuda is not None

    @property
    def capability(self) -> str | None:
        """CUDA compute capability, such as "8.0". None without CUDA."""
        return self.entry.capability

    @property
    def cuda(self) -> CudaRange | None:
        """CUDA toolkits that support the accelerator. None without CUDA."""
        return self.entry.cuda

    @property
    def min_memory_gb(self) -> float:
        """Minimum memory of one device in GB."""
        return self.variants[0].memory_gb

    @property
    def bf16_tflops(self) -> float | None:
        """Dense bf16 TFLOP/s of one device. None if not published."""
        return self._least(lambda variant: variant.bf16_tflops)

    @property
    def fp16_tflops(self) -> float | None:
        """Dense fp16 TFLOP/s of one device. None if not published."""
        return self._least(lambda variant: variant.fp16_tflops)

    @property
    def bandwidth_gbs(self) -> float | None:
        """Memory bandwidth of one device in GB/s. None if not published."""
        return self._least(lambda variant: variant.bandwidth_gbs)

    @property
    def slices(self) -> int:
        """Number of devices that ranks see on a node: MIG slices if a profile is set, otherwise GPUs."""
        if self.mig is None:
            return self.count
        return self.count * min(variant.mig[self.mig] for variant in self.variants)

    @classmethod
    def from_name(
        cls, name: str, *, count: float = 1, memory: str | float | None = None, mig: str | None = None
    ) -> Accelerator:
        """Return accelerators by name.

        Args:
            name: Name of the accelerator, in any known spelling.
            count: Number per node. Less than 1 for a fraction of one accelerator.
            memory: Memory of each, "80GB" or 80. None for any size.
            mig: MIG profile of each slice. None for whole GPUs.

        Raises:
            UsageError: If the accelerator, memory size or MIG profile is unknown, or the count is invalid.
        """
        return cls(name, count, _gigabytes(memory), mig)  # type: ignore[arg-type]  # an int after __post_init__

    def with_count(self, count: float) -> Accelerator:
        """Return the same accelerator with another count.

        Args:
            count: Number per node. Less than 1 for a fraction of one accelerator.

        Raises:
            UsageError: If the count is invalid.
        """
        return replace(self, count=count, part=1.0)  # type: ignore[arg-type]  # an int after __post_init__

    def _least(self, figure: Callable[[Variant], float | None]) -> float | None:
        # If a memory size has no published value, the minimum over all sizes is unknown.
        figures = [figure(variant) for variant in self.variants]
        known = [value for value in figures if value is not None]
        return min(known) if len(known) == len(figures) else None


@dataclass(frozen=True, slots=True)
class Factory:
    """Factory of ``Accelerator`` values of one type, such as ``sky.accelerators.A100``.

    As an argument, a factory that is not called stands for one accelerator per node.

    Attributes:
        name: Name of the accelerator in the catalogue.
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
        """Return accelerators of this type.

        Args:
            count: Number per node. Less than 1 for a fraction of one accelerator, which providers that rent whole
                accelerators reject.
            memory: Memory of each, "80GB" or 80. None for any size.
            mig: MIG profile of each slice. None for whole GPUs.
            form_factor: "SXM" or "PCIe"; ignored with a warning.

        Raises:
            UsageError: If the memory size or MIG profile is unknown, or the count is invalid.
        """
        ignored("providers do not distinguish form factors; some have a catalogue entry, such as H100_PCIe")(
            f"sky.accelerators.{self.name}", "form_factor", form_factor
        )
        return Accelerator.from_name(self.name, count=count, memory=memory, mig=mig)


def factory(name: str) -> Factory:
    """Return the factory of an accelerator.

    Args:
        name: Name of the accelerator, in any known spelling.

    Raises:
        UsageError: If the accelerator is unknown. The message suggests similar names.
    """
    return Factory(find_named(name).name)


def factories(maker: str | None = None) -> dict[str, Factory]:
    """Return all factories by identifier.

    Args:
        maker: "NVIDIA", "AMD", "Google", "AWS" or "Intel". None for all.
    """
    return {e.identifier: Factory(e.name) for e in entries() if maker is None or e.maker == maker}


def parse(text: str) -> Accelerator:
    """Parse an accelerator from text: ``NAME[-MEMORY][/MIG][:COUNT]``, in any case.

    Examples: "A100", "a100:8", "A100-80GB:4", "A100-80GB/3g.40gb", "NVIDIA A100-SXM4-80GB", "RTX 4090:2".

    Args:
        text: The text.

    Raises:
        UsageError: If the accelerator is unknown. The message suggests similar names.
    """
    rest, count, mig, memory = text.strip(), 1.0, None, None
    if found := _COUNT.fullmatch(rest):
        rest = found["rest"]
        if not _NUMBER.fullmatch(found["count"]):
            raise UsageError(f"{text!r}: {found['count']!r} is not a number of accelerators. Write {rest}:8 for eight.")
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
    """Define an accelerator that the catalogue does not have.

    Args:
        name: Name, as the provider uses it.
        memory: Memory of each, "48GB" or 48. None if irrelevant.
        count: Number per node.
        cuda_min: First CUDA toolkit that supports the accelerator. None without CUDA.
        cuda_max: Last CUDA toolkit that supports the accelerator.

    Raises:
        UsageError: If the memory size or the count is invalid.
    """
    cuda = CudaRange(cuda_min or "", cuda_max) if cuda_min or cuda_max else None
    add_custom(name, _gigabytes(memory or None) or 0.0, cuda)
    return Accelerator.from_name(name, count=count)


def resolve(value: Accelerator | Factory | Callable[[], Accelerator] | str | None) -> Accelerator | None:
    """Return the accelerator of an argument. Text is parsed. A factory that is not called stands for one per node.

    Args:
        value: The argument. None for no accelerator.

    Raises:
        UsageError: If the value has another type, or if the accelerator is unknown.
    """
    match value:
        case None | Accelerator():
            return value
        case str():
            return parse(value)
        case Factory():
            return value()
        case _:
            raise UsageError(
                f"{value!r} is not an accelerator. Use accelerator='A100:8' or accelerators.A100(count=8)."
            )


def _gigabytes(memory: str | float | None) -> float | None:
    if memory is None or isinstance(memory, int | float):
        return memory
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:gi?b)?\s*", memory, re.IGNORECASE)
    if found is None:
        raise UsageError(f"{memory!r} is not a memory size. Write '80GB'.")
    return float(found[1])


def _join_or(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last
