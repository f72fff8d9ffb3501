"""A job file as it is written: its values, and the line on which each stands."""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.reader import ReaderError

from ...model.errors import JobFileError

LARGEST = 1 << 20  # characters
MOST = 20_000  # values, with all that aliases repeat
_PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_IMPOSSIBLE = re.compile("[\\0\\ud800-\\udfff]")
Place = tuple[str | int, ...]


class Document:
    """What a YAML text says.

    Args:
        text: it.
        name: of its file, for errors.

    Attributes:
        values: the mapping at its top.

    Raises:
        JobFileError: it is no YAML, no mapping, several documents, or too much.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self._lines: dict[Place, int] = {}
        if len(text) > LARGEST:
            raise JobFileError(f"{name} has {len(text):,} characters; a job file has at most {LARGEST:,}")
        try:
            trees = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 0
            words = f"{error.problem or error.context}"
            if "'\\t'" in words:
                words = "a tab stands where YAML wants spaces"
            raise self.error(words, line=line) from error
        except ReaderError as error:
            words = f"the character {chr(error.character)!r} may not stand in YAML"
            raise self.error(words, line=text.count("\n", 0, error.position) + 1) from error
        except (yaml.YAMLError, RecursionError) as error:
            raise self.error(f"it cannot be read as YAML: {error}".partition("\n")[0]) from error
        full = [tree for tree in trees if tree is not None and tree.value != ""]
        if len(full) > 1:
            raise self.error(
                "it has several documents (---), which is a pipeline of jobs: launch each from a file of its own",
                line=full[1].start_mark.line + 1,
            )
        self._count = 0
        self._loader = yaml.SafeLoader("")
        made = self._made(full[0], ()) if full else {}
        if not isinstance(made, dict):
            raise self.error(f"at its top stand keys with values, such as run: echo hello, not {_kind(made)}")
        self.values: dict[str, Any] = made

    def line(self, place: Place) -> int:
        """The line on which something stands, from 1: its own, or that of the nearest thing around it."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place, 1)

    def error(self, words: str, place: Place | None = None, line: int = 0) -> JobFileError:
        """An error that says where."""
        at = line or (self.line(place) if place is not None else 0)
        return JobFileError(f"{self.name}{f', line {at}' if at else ''}: {words}")

    def _made(self, node: yaml.Node, place: Place) -> Any:
        self._count += 1
        if self._count > MOST or len(place) > 50:
            raise self.error("it holds more than any job file needs", line=node.start_mark.line + 1)
        self._lines.setdefault(place, node.start_mark.line + 1)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN:
            raise self.error(f"{node.tag} means nothing here", line=node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self._made(each, (*place, number)) for number, each in enumerate(node.value)]
        try:
            value = self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            words = f"{node.value!r:.60} cannot be read: {getattr(error, 'problem', None) or error}"
            raise self.error(words, line=node.start_mark.line + 1) from error
        self._check_text(value, node)
        # A port is written 8080, and what 1:30 means to YAML, a number to the base of 60, nobody means by it.
        return (
            node.value
            if isinstance(value, int) and not isinstance(value, bool) and ":" in node.value
            else value
        )

    def _check_text(self, value: Any, node: yaml.Node) -> None:
        """No command, variable or path can have what some escapes of YAML mean."""
        if isinstance(value, str) and (odd := _IMPOSSIBLE.search(value)):
            words = f"the character {odd[0]!r} is in no text that a machine could be given"
            raise self.error(words, line=node.start_mark.line + 1)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for at, below in node.value:
            line = at.start_mark.line + 1
            if not isinstance(at, yaml.ScalarNode):
                raise self.error("a key is one word", line=line)
            key = str(at.value)
            self._check_text(key, at)
            if at.tag == "tag:yaml.org,2002:merge":
                merged = self._made(below, (*place, "<<"))
                for each in merged if isinstance(merged, list) else [merged]:
                    if not isinstance(each, dict):
                        raise self.error("<<: takes keys with values", line=line)
                    made = each | made
                continue
            if (*place, key) in self._lines and key in made:
                raise self.error(
                    f"{key} stands twice (also in line {self._lines[(*place, key)]}); keep one", line=line
                )
            self._lines[(*place, key)] = line
            made[key] = self._made(below, (*place, key))
        return made


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "nothing"}.get(type(value), type(value).__name__)
