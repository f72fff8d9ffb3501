"""Prometheus' text format as its own client reads it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Samples = list[tuple[dict[str, str], float]]


def parsed(text: str) -> dict[str, tuple[str, Samples]]:
    """Family -> its type and samples."""
    found = [
        (each.name, (each.type, [(sample.labels, sample.value) for sample in each.samples]))
        for each in text_string_to_metric_families(text)
    ]
    assert len(found) == len(dict(found)), "a family is begun twice"
    return dict(found)
