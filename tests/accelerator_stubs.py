"""Generator of ``__init__.pyi``, the stub file of the accelerator factories for editors and type checkers.

Run ``python -m tests.accelerator_stubs`` after every change of ``catalogue.json``. A test compares the two files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from skyward_core.model import accelerators
from skyward_core.model.accelerators.catalog import Entry, entries

WIDTH = 110  # the line length of the project's formatter, whose layout this follows
HEAD = '''"""Generated from catalogue.json by ``python -m tests.accelerator_stubs``; do not edit."""

from typing import Literal

from .accelerator import Accelerator as Accelerator
from .accelerator import Custom as Custom
from .accelerator import Factory as Factory
from .accelerator import factories as factories
from .accelerator import factory as factory
from .accelerator import parse as parse
from .accelerator import resolve as resolve
from .catalog import CudaRange as CudaRange
from .catalog import Entry as Entry
from .catalog import Variant as Variant
from .catalog import find as find
from .catalog import nearest as nearest
from .catalog import search as search

def all() -> tuple[Entry, ...]:
    """Return all accelerators of the catalogue, ordered by maker, segment and age."""
'''


def stubs() -> str:
    """Return the text of the stub file."""
    return HEAD + "\n" + "\n".join(map(_function, entries()))


def _function(entry: Entry) -> str:
    parameters = ["count: float = 1", "*"]
    parameters.append(_parameter("memory", [f"{v.memory_gb:g}GB" for v in entry.variants], " | float"))
    if entry.mig:
        parameters.append(_parameter("mig", entry.mig, ""))
    parameters.append("form_factor: str | None = None")
    line = f"def {entry.identifier}({', '.join(parameters)}) -> Accelerator:"
    if len(line) > WIDTH or "\n" in line:
        line = "\n".join([f"def {entry.identifier}(", *(f"    {p}," for p in parameters), ") -> Accelerator:"])
    return f'{line}\n    """{describe(entry)}"""\n'


def _parameter(name: str, values: Iterable[str], also: str) -> str:
    literals = [f'"{value}"' for value in values]
    line = f"{name}: Literal[{', '.join(literals)}]{also} | None = None"
    if len(line) + len("    ,") <= WIDTH:
        return line
    inner = "\n".join(f"        {literal}," for literal in literals)
    return f"{name}: Literal[\n{inner}\n    ]{also}\n    | None = None"


def describe(entry: Entry) -> str:
    """Return a one-line description of a catalogue entry: maker, architecture, memory sizes, peak arithmetic."""
    sizes = " or ".join(f"{variant.memory_gb:g} GB" for variant in entry.variants)
    figures = [variant.bf16_tflops or variant.fp16_tflops for variant in entry.variants]
    peak = f", {max(known):g} dense 16-bit TFLOP/s" if (known := [f for f in figures if f is not None]) else ""
    return f"{entry.maker} {entry.name} ({entry.architecture}): {sizes}{peak}."


if __name__ == "__main__":
    Path(accelerators.__file__).with_suffix(".pyi").write_text(stubs(), encoding="utf-8")
