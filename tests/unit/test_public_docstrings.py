"""Docstrings and reference pages of public names."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.api.attach_and_results import Attached
from skyward_core.providers.provider import Provider

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")
ITEM = re.compile(r" {4}(\*{0,2}[\w.]+(?:, [\w.]+)*): \S")
PAGES = Path(__file__).parents[2] / "docs" / "reference" / "python"


def sections(doc: str) -> dict[str, list[str]]:
    """Return the names that each section of a docstring describes."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in doc.splitlines():
        if heading := SECTION.fullmatch(line):
            current = found.setdefault(heading[1], [])
        elif line and not line.startswith(" "):
            current = None
        elif current is not None and (item := ITEM.match(line)):
            current += item[1].split(", ")
    return found


def public() -> Iterator[str]:
    """Return all public names, including those of public modules."""
    for name in sky.__all__:
        if name == "DistributedSampler":  # loads torch, which every process that collects this file would do
            if find_spec("torch"):
                yield name
            continue
        yield name
        if inspect.ismodule(value := getattr(sky, name)):
            yield from (f"{name}.{inner}" for inner in value.__all__)
    yield "Attached"


def named(name: str) -> Any:
    return Attached if name == "Attached" else attrgetter(name)(sky)


def skyward_bases(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if base.__module__.startswith("skyward_core")]


def doc_of(value: Any) -> str:
    return inspect.getdoc(value) or ""


def docs_of(kind: type, name: str) -> list[str]:
    """Return the docstrings of a method: of its class, the base classes, and for providers of the protocols."""
    protocol = [Provider] if kind in (sky.Local, sky.SSH, sky.AWS, sky.Slurm) else []
    found = [vars(base)[name].__doc__ for base in (*skyward_bases(kind), *protocol) if name in vars(base)]
    return [inspect.cleandoc(text) for text in found if text]


def parameters(value: Any) -> list[str]:
    """Return parameters as docstrings write them, with their stars."""
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    taken = inspect.signature(value).parameters.values()
    return [stars.get(each.kind, "") + each.name for each in taken if each.name not in ("self", "cls")]


def own_attributes(kind: type) -> set[str]:
    """Return the public attributes that a class annotates or sets on its instances."""
    found: set[str] = set()
    for base in skyward_bases(kind):
        tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found |= {node.attr} if ast.unparse(node.value) == "self" else set()
        found |= set(vars(base).get("__annotations__", {}))
    return {name for name in found if not name.startswith("_")}


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name in sorted({name for base in skyward_bases(kind) for name in vars(base) if not name.startswith("_")}):
        value = inspect.getattr_static(kind, name)
        if isinstance(value, property):
            yield name, value
        elif name != "settings" and (inspect.isroutine(value) or isinstance(value, classmethod | staticmethod)):
            yield name, getattr(kind, name)  # providers' settings are a value that a descriptor makes


def wrong_in_call(value: Any, *docs: str) -> Iterator[str]:
    documented = next((documented["Args"] for doc in docs if "Args" in (documented := sections(doc))), [])
    if documented != parameters(value):
        yield f"Args are {documented}, and it takes {parameters(value)}"


def wrong_in_text(doc: str) -> Iterator[str]:
    if re.search(r":\w+:`", doc):
        yield "the reference shows a :role: as it stands; write ``name``"
    for name in sections(doc).get("Raises", []):
        if not any(hasattr(module, name) for module in (sky, sky.plugins, builtins)):
            yield f"Raises names {name}, which is nothing public"


def wrong_in_class(kind: type) -> Iterator[str]:
    args = set(sections(doc_of(kind)).get("Args", []))
    attributes = {name for base in skyward_bases(kind) for name in sections(doc_of(base)).get("Attributes", [])}
    real = own_attributes(kind)
    if undocumented := real - attributes - args:
        yield f"nothing tells of its attributes {sorted(undocumented)}"
    if more := {name for name in attributes - real if name not in dir(kind)}:
        yield f"Attributes tell of {sorted(more)}, which it does not have"
    for name, method in methods(kind):
        docs = docs_of(kind, name)
        problems = [] if docs else ["it has no docstring"]
        problems += [problem for doc in docs for problem in wrong_in_text(doc)]
        if not isinstance(method, property):
            problems += wrong_in_call(method, *docs)
        yield from (f"{name}: {problem}" for problem in problems)


def is_made_by_scripts(kind: type) -> bool:
    """Check whether scripts create a class. Errors and classes that only have an Attributes section are created
    here.
    """
    return not issubclass(kind, BaseException) and (
        "Args" in sections(doc_of(kind)) or "Attributes" not in sections(doc_of(kind))
    )


def wrong(value: Any) -> Iterator[str]:
    doc = doc_of(value)
    if not doc:
        yield "it has no docstring"
    yield from wrong_in_text(doc)
    if inspect.isclass(value):
        if is_made_by_scripts(value) and any("__init__" in vars(base) for base in skyward_bases(value)):
            yield from wrong_in_call(value, doc)
        yield from wrong_in_class(value)
    elif inspect.isroutine(value):
        yield from wrong_in_call(value, doc)
    elif not inspect.ismodule(value):
        yield from wrong_in_class(type(value))


@pytest.mark.parametrize("name", list(public()))
def test_docstring_documents_exactly_the_existing_parameters(name: str) -> None:
    assert list(wrong(named(name))) == []


def test_reference_shows_every_public_name_once() -> None:
    lines = [line for page in PAGES.glob("*.md") for line in page.read_text().splitlines()]
    shown = [line.removeprefix("::: skyward_core.") for line in lines if line.startswith("::: ")]
    assert len(shown) == len(set(shown))
    assert set(sky.__all__) <= set(shown)
