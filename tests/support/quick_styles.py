"""Cache of Textual's style rule matching, shared by equal widgets of all apps of this process.

Textual matches the rules for each widget several times per test, which takes a quarter of the time of an app's test.
The result depends only on the rules and on the types, classes, ids and pseudo-classes of the widget and its ancestors,
which form the key. Snapshots of all screens would reveal a wrong match.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode

Found = dict[tuple[Any, ...], Any]
FOUND: dict[tuple[int, ...], Known] = {}  # by the rules that may hold
# What is known of a whole sheet's nodes, by its rules, which are kept, so that none of another app has the id of one.
ALL_OF: dict[tuple[int, ...], tuple[tuple[RuleSet, ...], dict[Any, Candidates]]] = {}
SET: dict[int, tuple[Any, Any]] = {}  # what a new node has once rules are set, by the id of these, which are kept
FLAGS = ("_has_hover_style", "_has_focus_within", "_has_order_style", "_has_odd_or_even")
ALIKE: dict[str, DOMNode] = {}  # a part of a widget that has a class alone, by that


class Known:
    """Cached results of a set of rules.

    Attributes:
        found: Styles of widgets by :meth:`Candidates.key`.
        flags: Flags that Textual sets on any widget that the rules may match; None until they are known.
    """

    def __init__(self, rules: tuple[RuleSet, ...]) -> None:
        self._rules = rules  # kept, so that none of another app has the id of one of them
        self.found: Found = {}
        self.flags: tuple[Any, ...] | None = None


class Candidates:
    """Rules of a style sheet that may match some nodes.

    Args:
        rules: All rules of the style sheet.
        node: One of these nodes.
    """

    def __init__(self, rules: Iterable[RuleSet], by_name: dict[str, list[RuleSet]], node: DOMNode) -> None:
        may = {id(rule) for name in by_name.keys() & node._selector_names for rule in by_name[name]}
        chosen = tuple(rule for rule in rules if id(rule) in may)
        selectors = [each.selectors for rule in chosen for each in rule.selector_set]
        self.own = sorted({name for each in selectors for one in each for name in one.pseudo_classes})
        self.above = sorted({name for each in selectors for one in each[:-1] for name in one.pseudo_classes})
        self.known = FOUND.setdefault(tuple(map(id, chosen)), Known(chosen))

    def key(self, path: list[DOMNode], node: DOMNode) -> tuple[Any, ...]:
        """Return everything that determines which rules match a node, including its ancestors up to the app."""
        return (*(state(each, self.above) for each in path), state(node, self.own))


def state(node: DOMNode, pseudo_classes: list[str]) -> tuple[Any, ...]:
    """Return all properties of a node that selectors use."""
    known = node._PSEUDO_CLASSES
    holds = [name in known and bool(known[name](node)) for name in pseudo_classes]  # type: ignore[arg-type]
    return node._css_type_names, node._id, frozenset(node._classes), *holds


def candidates(sheet: Any, node: DOMNode) -> Candidates:
    by_name = sheet.rules_map
    if getattr(sheet, "_quick", (None,))[0] is not by_name:
        rules = tuple(sheet.rules)
        sheet._quick = by_name, ALL_OF.setdefault(tuple(map(id, rules)), (rules, {}))[1]
    known = sheet._quick[1]
    key = type(node), node._id, frozenset(node._classes)
    if (found := known.get(key)) is None:
        found = known[key] = Candidates(sheet.rules, by_name, node)
    return found  # type: ignore[no-any-return]


def match_once(patch: pytest.MonkeyPatch) -> None:
    """Cache rule matching until the patch is undone."""
    apply, replace_rules = Stylesheet.apply, Stylesheet.replace_rules.__func__  # type: ignore[attr-defined]
    noted: list[Any] = []  # what Textual has just found for the node that it was asked about

    def put(cls: Any, node: DOMNode, rules: Any, animate: bool = False) -> None:
        """Set the styles of a node. Textual sets each one by its property, even unchanged ones, and those of new nodes
        that nothing observes yet.
        """
        parent: Any
        base, parent = node.styles.base, node._parent
        if not base._rules and not node._is_mounted:
            if id(rules) not in SET:
                replace_rules(cls, node, rules, animate=animate)
                SET[id(rules)] = rules, base._rules.copy()
                return
            base._rules.update(SET[id(rules)][1])
            base._updates += 1
            if parent is not None:
                parent._nodes.updated()
        elif animate and ("transitions" in rules or node.app.animator._animations or node.app.animator._scheduled):
            replace_rules(cls, node, rules, animate=animate)
            return
        else:
            for key in base._rules.keys() | rules.keys():
                if base._rules.get(key) != rules.get(key):
                    setattr(base, key, rules.get(key))
        node.notify_style_update()

    def replaced(cls: Any, node: DOMNode, rules: Any, animate: bool = False) -> None:
        noted.append(rules)
        put(cls, node, rules, animate)

    def applied(self: Any, node: DOMNode, *, animate: bool = False, cache: Any = None) -> None:
        may, path = candidates(self, node), node.css_path_nodes
        key, known = may.key(path[:-1], node), may.known
        if known.flags is None or key not in known.found:
            noted.clear()
            with_parts, self._process_component_classes = self._process_component_classes, lambda node: None
            try:
                apply(self, node, animate=animate)
            finally:
                self._process_component_classes = with_parts
            known.found[key] = noted[-1] if noted else None
            known.flags = tuple(getattr(node, name) for name in FLAGS)
        else:
            for name, flag in zip(FLAGS, known.flags, strict=True):
                setattr(node, name, flag)
            if (rules := known.found[key]) is not None:
                put(type(self), node, rules, animate)
        parts(self, node, path)

    def parts(self: Any, node: DOMNode, path: list[DOMNode]) -> None:
        """Apply Textual's steps for component styles that have changed."""
        classes = node._get_component_classes()
        if not classes:
            return
        before, made_of = node._component_styles.copy(), node.__dict__.setdefault("_made_of", {})
        node._component_styles.clear()
        differs = False
        for name in sorted(classes):
            alike = ALIKE.get(name) or ALIKE.setdefault(name, DOMNode(classes=name))
            may = candidates(self, alike)
            rules = may.known.found.get(may.key(path, alike), noted)
            if name in before and rules is made_of.get(name, noted) and rules is not noted:
                node._component_styles[name] = before[name]
                continue
            part = DOMNode(classes=name)
            part._attach(node)
            self.apply(part)
            differs |= before.get(name) != part.styles
            node._component_styles[name] = part.styles
            made_of[name] = may.known.found[may.key(path, alike)]
        if differs:
            node.refresh()

    patch.setattr(Stylesheet, "apply", applied)
    patch.setattr(Stylesheet, "replace_rules", classmethod(replaced))
