"""The newest numbers as Prometheus' text format (version 0.0.4), for a scraper or a textfile collector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from skyward_core.model.metric_series import GPU_METRIC_DEFINITIONS, NODE_METRIC_DEFINITIONS, Curve

PREFIX = "skyward"
RANK_METRIC = f"{PREFIX}_rank_number"  # names that ranks log may be no names of metrics: they are labels
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
    """Return the newest value of each curve.

    Args:
        labels: Labels of all, such as the pool's name and the run's id.
    """
    # Late: for this alone.
    from prometheus_client import Metric, generate_latest
    from prometheus_client.registry import Collector

    families: dict[str, Metric] = {}
    for curve in curves:
        name, help = _family(curve)
        own = {
            "name": curve.name if name == RANK_METRIC else "",
            "rank": "" if curve.rank is None else str(curve.rank),
            "node": "" if curve.node is None else str(curve.node),
            "gpu": "" if curve.gpu is None else str(curve.gpu),
            "model": curve.model,
        }
        labelled = {**labels, **{key: value for key, value in own.items() if value}}
        families.setdefault(name, Metric(name, help, "gauge")).add_sample(name, labelled, curve.latest)

    class Newest(Collector):
        def collect(self) -> Iterable[Metric]:
            return [families[name] for name in sorted(families)]

    return generate_latest(Newest()).decode()


def _family(curve: Curve) -> tuple[str, str]:
    if curve.rank is not None:
        return RANK_METRIC, "what ranks log, by name"
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
