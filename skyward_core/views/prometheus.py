"""The newest numbers as Prometheus' text format (version 0.0.4), for a scraper or a textfile collector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isinf, isnan

from skyward_core.model.metric_series import GPU_METRIC_DEFINITIONS, NODE_METRIC_DEFINITIONS, Curve

PREFIX = "skyward"
NUMBERS = f"{PREFIX}_rank_number"  # what ranks log: names of theirs are no names of metrics, so that they are labels
# Units as Prometheus wants them written.
_UNITS = {
    "%": "percent",
    "B": "bytes",
    "B/s": "bytes_per_second",
    "W": "watts",
    "°C": "celsius",
    "MHz": "megahertz",
}


def format_prometheus(curves: Iterable[Curve], labels: Mapping[str, str]) -> str:
    """The newest value of each curve.

    Args:
        labels: of all, such as the pool's name and the run's id.
    """
    families: dict[str, tuple[str, list[tuple[dict[str, str], float]]]] = {}
    for curve in curves:
        name, help = _family(curve)
        own = {
            "name": curve.name if name == NUMBERS else "",
            "rank": "" if curve.rank is None else str(curve.rank),
            "node": "" if curve.node is None else str(curve.node),
            "gpu": "" if curve.gpu is None else str(curve.gpu),
            "model": curve.model,
        }
        labelled = {**labels, **{key: value for key, value in own.items() if value}}
        families.setdefault(name, (help, []))[1].append((labelled, curve.latest))
    return "".join(_lines(families))


def _lines(families: Mapping[str, tuple[str, list[tuple[dict[str, str], float]]]]) -> Iterator[str]:
    for name, (help, samples) in sorted(families.items()):
        yield f"# HELP {name} {_escaped(help)}\n# TYPE {name} gauge\n"
        for labels, value in samples:
            inside = ",".join(f'{key}="{_quoted(text)}"' for key, text in labels.items())
            yield f"{name}{{{inside}}} {_number(value)}\n"


def _family(curve: Curve) -> tuple[str, str]:
    if curve.rank is not None:
        return NUMBERS, "what ranks log, by name"
    of, known = (
        ("node", NODE_METRIC_DEFINITIONS.get(curve.name))
        if curve.gpu is None
        else ("gpu", GPU_METRIC_DEFINITIONS.get(curve.name))
    )
    if known is None:  # an agent of a newer release knows more
        plain = "".join(each if each.isascii() and each.isalnum() else "_" for each in curve.name)
        return f"{PREFIX}_{of}_{plain}", "a figure that this release does not know"
    unit = _UNITS.get(known.unit)
    return f"{PREFIX}_{of}_{curve.name}" + (f"_{unit}" if unit else ""), known.help


def _number(value: float) -> str:
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
