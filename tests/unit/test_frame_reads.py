"""Typed access to frame keys outside ``protocol/``.

No key of an untyped header is read or set, and no ``get`` or ``in`` names a key that frames of its kind do not have.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args, is_typeddict

import pytest

import skyward_core
from tests import protocol_page
from tests.support.sources import nodes_of

ROOT = Path(skyward_core.__file__).parent
UNTYPED = {"Header", "AnyHeader"}
# File -> how many such places it may still have; numbers only ever fall.
LEFT: dict[str, int] = {}

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Nodes = tuple[ast.AST, ...]  # all of a file, its module first


def module(nodes: Nodes) -> ast.Module:
    first = nodes[0]
    assert isinstance(first, ast.Module)
    return first


def names_in(tree: ast.AST | None) -> set[str]:
    """Return the names and attributes in an expression."""
    found = set()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


def is_untyped(annotation: ast.expr | None) -> bool:
    """Check whether an annotation contains the untyped header. A function that takes one does not count."""
    if annotation is None:
        return False
    if isinstance(annotation, ast.Subscript) and names_in(annotation.value) & {"Callable"}:
        return False
    if isinstance(annotation, ast.Name):
        return annotation.id in UNTYPED
    return any(is_untyped(each) for each in ast.iter_child_nodes(annotation) if isinstance(each, ast.expr))


def sources(trees: Iterable[Nodes]) -> set[str]:
    """Return the functions that return untyped headers, and the attributes that hold them."""
    found = set()
    for nodes in trees:
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_untyped(node.returns):
                found.add(node.name)
            elif isinstance(node, ast.AnnAssign) and is_untyped(node.annotation):
                if isinstance(node.target, ast.Attribute):
                    found.add(node.target.attr)
            elif isinstance(node, ast.ClassDef):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and is_untyped(field.annotation):
                        found |= names_in(field.target)
    return found


@cache
def parts(scope: Scope) -> tuple[list[ast.AST], list[Scope]]:
    """Return the nodes of a scope without those of nested scopes, and the nested scopes."""
    left: list[ast.AST] = [*scope.body] if isinstance(scope.body, list) else [scope.body]
    own: list[ast.AST] = []
    within: list[Scope] = []
    while left:
        node = left.pop()
        if isinstance(node, SCOPES):
            within.append(node)
        else:
            own.append(node)
            left += ast.iter_child_nodes(node)
    return own, within


BINDING = (ast.Assign, ast.For, ast.AsyncFor, ast.comprehension, ast.NamedExpr)


def bound(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def untyped_names(scope: Scope, outer: set[str], giving: set[str]) -> set[str]:
    """Return a function's names for untyped headers, or for containers of them."""
    typed: set[str] = set()
    found: set[str] = set()
    if not isinstance(scope, ast.Module):
        arguments = scope.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            (found if is_untyped(argument.annotation) else typed).add(argument.arg)
    own, _ = parts(scope)
    for node in own:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            (found if is_untyped(node.annotation) else typed).add(node.target.id)
    known = (outer - typed) | found
    binding = [node for node in own if isinstance(node, BINDING)]
    while True:
        more = set()
        for node in binding:
            if isinstance(node, ast.Assign):
                pairs = [(target, node.value) for target in node.targets]
            elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                pairs = [(node.target, node.iter)]
            else:
                pairs = [(node.target, node.value)]
            for target, value in pairs:
                if gives_untyped_header(value, known, giving):
                    more |= bound(target) - typed
        if more <= known:
            return known
        known |= more


def gives_untyped_header(value: ast.expr, known: set[str], giving: set[str]) -> bool:
    """Check whether an expression is or contains an untyped header, directly or from a call that returns one."""
    match value:
        case ast.Name(name):
            return name in known
        case ast.Attribute(_, name):
            return name in giving
        case ast.Await(inner) | ast.Starred(inner):
            return gives_untyped_header(inner, known, giving)
        case ast.Call(ast.Attribute(of, name)):
            return name in giving or (
                name in ("popleft", "get", "values", "pop") and gives_untyped_header(of, known, giving)
            )
        case ast.Call(ast.Name(name)):
            return name in giving
        case ast.Subscript(of, ast.Constant(str())):
            return False  # that read is found itself
        case ast.Subscript(of):
            return gives_untyped_header(of, known, giving)
        case ast.BinOp(left, ast.BitOr(), right):
            return gives_untyped_header(left, known, giving) or gives_untyped_header(right, known, giving)
        case ast.Tuple(parts) | ast.List(parts):
            return any(gives_untyped_header(part, known, giving) for part in parts)
    return False


def reads(tree: ast.Module, giving: set[str]) -> Iterator[int]:
    """Return the lines that read or set a constant key of an untyped header."""

    def look(scope: Scope, outer: set[str]) -> Iterator[int]:
        known = untyped_names(scope, outer, giving)
        own, within = parts(scope)
        for node in own:
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.slice, ast.Constant)
                and isinstance(node.slice.value, str)
                and gives_untyped_header(node.value, known, giving)
            ):
                yield node.lineno
        for inner in within:
            yield from look(inner, known)

    yield from look(tree, set())


@cache
def trees() -> dict[str, Nodes]:
    return {str(path.relative_to(ROOT)): nodes_of(path) for path in sorted(ROOT.rglob("*.py"))}


def test_frame_keys_are_read_only_from_typed_frames() -> None:
    all_of_it = trees()
    giving = sources(all_of_it.values())
    found = {
        name: lines
        for name, nodes in all_of_it.items()
        if not name.startswith("protocol/") and (lines := sorted(reads(module(nodes), giving)))
    }
    assert {name: len(lines) for name, lines in found.items()} == LEFT, found


def found_in(text: str) -> list[int]:
    nodes = tuple(ast.walk(ast.parse(text)))
    return sorted(reads(module(nodes), sources([nodes]) | {"feed"}))


def test_check_finds_reads_from_untyped_frames() -> None:
    assert found_in("def f(header: Header):\n header['t']\n") == [2]
    assert found_in("def f(header: AnyHeader):\n def g():\n  return header['t']\n") == [3]
    assert found_in("for header, _ in decoder.feed(data):\n header['t']\n") == [2]
    assert found_in("def f() -> tuple[Header, bytes]: ...\nheader, body = f()\nheader['t']\n") == [3]
    assert found_in("async def f() -> AnyHeader: ...\nasync def g():\n (await f())['t']\n") == [3]
    assert found_in("class A:\n told: Header\n def f(self):\n  self.told['t'] = 1\n") == [4]
    assert found_in("def f(header: Header):\n if told := header:\n  told['t']\n") == [3]


def test_check_ignores_reads_from_typed_frames() -> None:
    assert found_in("def f(header: FromAgent):\n header['t']\n") == []
    assert found_in("header: FromAgent\nfor header, _ in decoder.feed(data):\n header['t']\n") == []
    assert found_in("def f(tell: Callable[[Header], dict]):\n tell()['t']\n") == []
    assert found_in("def f(header: Header):\n header[key]\n") == []


# -- what type checkers let pass -------------------------------------------------------------------------


def keys_of(made: Any) -> set[str]:
    if is_typeddict(made):
        return {*made.__required_keys__, *made.__optional_keys__}
    return {key for one in get_args(made) for key in keys_of(one)}


TYPES: dict[str, Any] = {}
# Its classes name later ones, so their annotations stay text.
exec(compile(protocol_page.TYPES.read_text(), "frame_types.pyi", "exec", annotations.compiler_flag), TYPES)
KEYS = {name: keys for name, made in TYPES.items() if (keys := keys_of(made))}


def said_keys(annotation: ast.expr) -> set[str] | None:
    """Return the keys of the frames in an annotation. None if it names other types, too."""
    match annotation:
        case ast.Name(name):
            return KEYS.get(name)
        case ast.Constant(None):
            return set()
        case ast.BinOp(left, ast.BitOr(), right):
            one, other = said_keys(left), said_keys(right)
            return None if one is None or other is None else one | other
    return None


def fields(trees: Iterable[Nodes]) -> dict[str, set[str]]:
    """Return the attributes that always hold frames of one kind, and the keys of that kind."""
    found: dict[str, set[str] | None] = {}
    for nodes in trees:
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                annotated = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                annotated = [node]
            else:
                continue
            for each in annotated:
                name = each.target.attr if isinstance(each.target, ast.Attribute) else "".join(bound(each.target))
                keys, before = said_keys(each.annotation), found.get(name, set())
                found[name] = None if keys is None or before is None else keys | before
    return {name: keys for name, keys in found.items() if keys}


def unknown_keys(tree: ast.Module, held: dict[str, set[str]]) -> Iterator[tuple[int, str]]:
    """Return the places that request a key which frames of that kind do not have."""

    def look(scope: Scope, outer: dict[str, set[str] | None]) -> Iterator[tuple[int, str]]:
        known = dict(outer)
        if not isinstance(scope, ast.Module):
            for argument in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs):
                known[argument.arg] = said_keys(argument.annotation) if argument.annotation else None
        own, within = parts(scope)
        for node in own:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                known[node.target.id] = said_keys(node.annotation)

        def keys(of: ast.expr) -> set[str] | None:
            match of:
                case ast.Name(name):
                    return known.get(name)
                case ast.Attribute(_, name):
                    return held.get(name)
            return None

        for node in own:
            match node:
                case ast.Call(ast.Attribute(of, "get" | "pop"), [ast.Constant(str() as key), *_]):
                    pass
                case ast.Compare(ast.Constant(str() as key), [ast.In() | ast.NotIn()], [of]):
                    pass
                case _:
                    continue
            found = keys(of)
            if found and key not in found:
                yield node.lineno, key
        for inner in within:
            yield from look(inner, known)

    yield from look(tree, {})


def test_no_frame_is_read_for_a_key_that_its_kind_lacks() -> None:
    all_of_it = trees()
    held = fields(all_of_it.values())
    assert held.keys() >= {"welcome", "header"}
    found = {name: unknown for name, nodes in all_of_it.items() if (unknown := list(unknown_keys(module(nodes), held)))}
    assert found == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(header: AgentItem):\n header.get('sek')\n", [(2, "sek")]),
        ("def f(header: AgentItem | AgentRun):\n 'sek' in header or header.get('total')\n", [(2, "sek")]),
        ("def f(header: Header):\n header.get('sek')\n", []),
        ("class A:\n welcome: AgentWelcome\ndef f(a):\n a.welcome.get('nodes')\n", [(4, "nodes")]),
        ("answer: PeersAnswer\nanswer.get('error')\nanswer.get('errors')\n", [(3, "errors")]),
    ],
)
def test_check_finds_keys_that_the_frame_kind_lacks(text: str, found: list[tuple[int, str]]) -> None:
    nodes = tuple(ast.walk(ast.parse(text)))
    assert list(unknown_keys(module(nodes), fields([nodes]))) == found
