"""Parser of Prometheus' text format from its own client."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Samples = list[tuple[dict[str, str], float]]


def parsed(text: str) -> dict[str, tuple[str, Samples]]:
    """Return the type and the samples of each metric family."""
    found = [
        (each.name, (each.type, [(sample.labels, sample.value) for sample in each.samples]))
        for each in text_string_to_metric_families(text)
    ]
    assert len(found) == len(dict(found)), "a family is begun twice"
    return dict(found)
