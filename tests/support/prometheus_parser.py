"""Reads Prometheus' text format 0.0.4, and nothing that it does not allow."""

from __future__ import annotations

import re

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
_VALUE = re.compile(r"NaN|[+-]Inf|-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Samples = list[tuple[dict[str, str], float]]


def parsed(text: str) -> dict[str, tuple[str, Samples]]:
    """Family -> its type and samples.

    Raises:
        ValueError: it is not of this format: a family in two places, one sample twice, a label of no such form.
    """
    found: dict[str, tuple[str, Samples]] = {}
    helped: set[str] = set()
    family = ""
    if text and not text.endswith("\n"):
        raise ValueError("the last line has no end")
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            family = _name(line[7:].split(" ", 1)[0])
            if family in helped:
                raise ValueError(f"{family} is begun twice")
            helped.add(family)
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            if name != family or name in found or kind not in ("gauge", "counter", "untyped"):
                raise ValueError(f"no place for {line!r}")
            found[name] = (kind, [])
        else:
            name, labels, value = _sample(line)
            if name != family:
                raise ValueError(f"{name} is not among its own")
            if labels in [each for each, _ in found[name][1]]:
                raise ValueError(f"{line!r} is there twice")
            found[name][1].append((labels, value))
    return found


def _sample(line: str) -> tuple[str, dict[str, str], float]:
    name = line.split("{", 1)[0].split(" ", 1)[0]
    rest = line[len(_name(name)) :]
    labels: dict[str, str] = {}
    if rest.startswith("{"):
        at = 1
        while rest[at] != "}":
            match = _LABEL.match(rest, at)
            if match is None or match[1] in labels:
                raise ValueError(f"no label in {line!r}")
            labels[match[1]] = re.sub(r'\\[\\"n]', lambda found: _ESCAPES[found[0]], match[2])
            at = match.end() + (rest[match.end()] == ",")
        rest = rest[at + 1 :]
    if not rest.startswith(" ") or _VALUE.fullmatch(rest[1:]) is None:
        raise ValueError(f"no value in {line!r}")
    return name, labels, float(rest[1:])


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no name")
    return text
