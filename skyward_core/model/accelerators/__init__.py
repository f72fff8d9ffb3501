"""Accelerators: the catalogue, and a factory for each of its entries.

    from skyward_core import accelerators

    accelerators.H100(count=8, memory="80GB")
    accelerators.parse("A100-80GB:8")
    accelerators.search("hopper")

The catalogue is loaded at the first request for an accelerator, and factories derive from it. ``python -m
tests.accelerator_stubs`` generates ``__init__.pyi`` for editors and type checkers.
"""

from __future__ import annotations

from contextlib import suppress

from skyward_core.model.accelerators.accelerator import Accelerator, Custom, Factory, factories, factory, parse, resolve
from skyward_core.model.accelerators.catalog import CudaRange, Entry, Variant, nearest, search
from skyward_core.model.accelerators.catalog import entries as all
from skyward_core.model.accelerators.catalog import find_named as find
from skyward_core.model.errors import UsageError

__all__ = [
    "Accelerator",
    "CudaRange",
    "Custom",
    "Entry",
    "Factory",
    "Variant",
    "all",
    "factories",
    "factory",
    "find",
    "nearest",
    "parse",
    "resolve",
    "search",
]


def __getattr__(name: str) -> Factory:
    made = None if name.startswith("_") else factories().get(name)
    if made is None and name[:1].isupper():
        with suppress(UsageError):  # also accept the spellings of other API generations, such as "RTX4090"
            made = factory(name)
    if made is None:
        near = [] if name.startswith("_") else [n.replace("-", "_") for n in nearest(name)]
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    globals()[name] = made
    return made


def __dir__() -> list[str]:
    return [*__all__, *factories()]
