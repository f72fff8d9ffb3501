"""Names of files on a node: one definition, compatible with earlier releases."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, TypeGuard

import skyward_core
from skyward_core.protocol import node_paths
from skyward_core.protocol.node_paths import ERR, MARKS, METRICS, OUT, NodePaths, log_stem
from skyward_core.protocol.validators import is_log_name
from tests.support.sources import nodes_of

ROOT = Path(skyward_core.__file__).parent
FILES = {
    getattr(NodePaths("/n"), name).rpartition("/")[2]
    for name, kind in vars(NodePaths).items()
    if isinstance(kind, property | node_paths.PathBelow)
} - {"kept.n", "ended.n"}
BEGINNINGS = (*(f"/{name}" for name in FILES), "agent.", "kept.json", "app.log", "/pools", "worker.", "kept.", "ended.")
KEYS = {"blobs", "epoch", "spool"}  # of frames, too: names of files only where a path is made of them
ENDINGS = (OUT, ERR, MARKS, METRICS)


def spelled(path: Path) -> list[str]:
    """Return the file names on nodes that a module contains as literals, without texts for users."""
    nodes = nodes_of(path)
    data = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    constants = [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in data
    ]
    parts = [node.right.value for node in nodes if is_path(node)]
    return [part for part in parts if part in KEYS] + [
        text
        for text in constants
        if text in ENDINGS or text in FILES - KEYS or (" " not in text and text.startswith(BEGINNINGS))
    ]


def is_path(node: ast.AST) -> TypeGuard[Any]:
    """Check whether an expression is ``folder / "name"``."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant)


def test_only_node_paths_module_contains_node_file_names() -> None:
    ours = Path(node_paths.__file__)
    found = {str(path.relative_to(ROOT)): spelled(path) for path in ROOT.rglob("*.py") if path != ours}
    assert {path: names for path, names in found.items() if names} == {}
    assert set(spelled(ours)) >= set(ENDINGS), "the search finds them where they are"


def test_node_paths_are_compatible_with_earlier_releases() -> None:
    paths = NodePaths("/root/pools/p.1")
    assert [getattr(paths, name) for name in ("lock", "state", "errors", "socket", "spool", "blobs")] == [
        f"/root/pools/p.1/{name}" for name in ("agent.lock", "agent.json", "agent.err", "agent.sock", "spool", "blobs")
    ]
    assert (paths.journal, paths.epoch) == ("/root/pools/p.1/spool/journal", "/root/pools/p.1/spool/epoch")
    assert (paths.retained_folder, paths.exit_reason) == ("/root/pools/kept.p.1", "/root/pools/ended.p.1")
    assert NodePaths(paths.retained_folder).retained_folder == paths.retained_folder, "what is kept is not kept twice"
    assert paths.worker(3, 1) == "/root/pools/p.1/worker.3.1"


def test_log_stems_make_valid_log_names() -> None:
    for rank, number in ((0, 0), (7, 2), (1234, 0), (1234567, 9999)):
        assert all(is_log_name(log_stem(rank, number) + ending) for ending in ENDINGS)
    assert (log_stem(3, 0), log_stem(3, 1)) == ("r003", "r003.1")
