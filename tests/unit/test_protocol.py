"""Generated protocol files, and schemas for every sent frame kind."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import skyward_core
from tests.protocol_page import PAGE, TABLES, TYPES, descriptions, page, types
from tests.support.sources import nodes_of

ROOT = Path(skyward_core.__file__).parent
OF_JOURNAL = {"given", "ended"}  # an agent writes them down for the one after it, and tells nobody


def test_generated_protocol_files_are_current() -> None:
    for path, text in ((PAGE, page()), (TYPES, types())):
        assert path.read_text(encoding="utf-8") == text, f"run python -m tests.protocol_page to write {path.name}"


def test_every_frame_kind_has_a_description() -> None:
    described = descriptions()
    for title, _, _, forms in TABLES:
        for kind, form in forms.items():
            assert re.match("[A-Z].*[.]$", described[form], re.DOTALL), f"{title}: {kind} says {described[form]!r}"


def test_every_sent_frame_kind_is_in_a_schema_table() -> None:
    known = {kind for *_, forms in TABLES for kind in forms}
    assert _sent() - OF_JOURNAL == known


def _sent() -> set[str]:
    """Return the values of "t" in the dictionaries that the code creates."""
    found = set()
    for path in ROOT.rglob("*.py"):
        if path.name == "frame_schemas_and_size_limits.py":
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "t" and isinstance(value, ast.Constant):
                        found.add(str(value.value))
    return found
