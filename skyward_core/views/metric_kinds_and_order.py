"""Kinds of metrics by name (loss, time, rate, score, counter), and their order in charts and rankings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Literal

from skyward_core.views.outliers_and_bands import Trace, median

Kind = Literal["loss", "time", "rate", ""]

_LOSS = re.compile(r"(^|[^a-z])(loss|nll|ppl|perplexity)($|[^a-z])")
_TIME = re.compile(
    r"(^|[^a-z])(step|iter|iteration|batch)([^a-z]?(time|seconds|duration)|[^a-z](ms|s|sec))$"
    r"|(^|_)(s|ms|sec|seconds)(/|_per_)(it|iter|step|batch)$"
)
_RATE = re.compile(r"(/|_per_)(s|sec|second)$|(^|[^a-z])throughput($|[^a-z])")
_ERROR = re.compile(r"(^|[^a-z])(err|error|mae|mse|rmse|wer|cer|fid)($|[^a-z])")
_SCORE = re.compile(
    r"(^|[^a-z])(acc|accuracy|score|reward|f1|auc|bleu|rouge|map|iou|precision|recall|r2|psnr)\d*($|[^a-z])"
)


def classify_metric(name: str) -> Kind:
    """Return the kind of a metric, guessed from its name: a loss, the time of a step, a rate, or ""."""
    lower = name.lower()
    if _LOSS.search(lower):
        return "loss"
    if _TIME.search(lower):
        return "time"
    return "rate" if _RATE.search(lower) else ""


def metric_direction(name: str) -> int:
    """Return -1 for a metric whose lower values are better, 1 for a metric whose higher values are better, else 0."""
    lower = name.lower()
    return -1 if _LOSS.search(lower) or _ERROR.search(lower) else int(_SCORE.search(lower) is not None)


def metric_rank(name: str) -> tuple[bool, int]:
    """Return the sort key of a metric by which runs can be ranked: losses first, then errors, then scores."""
    return classify_metric(name) != "loss", metric_direction(name)


def main_metric(names: Iterable[str]) -> str:
    """Return the name of the metric that describes a run best, or ""."""
    return min(filter(metric_direction, names), key=metric_rank, default="")


def run_value(by_rank: Mapping[int, float | None]) -> float | None:
    """Return the value of a metric that lists, headers, comparisons and JSON show for a run.

    This is the last value of rank 0; if rank 0 did not log the metric, the median of the last values of all ranks.
    """
    finite = [value for value in by_rank.values() if value is not None and isfinite(value)]
    return by_rank[0] if 0 in by_rank else median(finite) if finite else None


# Name of a progress metric -> kind of the progress, and names of the metric with its total.
TOTALS = {
    "step": (5, ("total", "total_steps", "max_steps", "num_steps")),
    "epoch": (4, ("epochs", "total_epochs", "max_epochs", "num_epochs")),
}
STEP_NAMES = ("step", "global_step", "iteration", "iter")
TOTAL_NAMES = frozenset(name for _, names in TOTALS.values() for name in names)
AXES = (*STEP_NAMES, "epoch")  # counters that can be the x axis of a chart, the preferred ones first
COUNTERS = frozenset({*AXES, *TOTAL_NAMES, "batch", "rank"})
_SURE = 8  # number of values that is needed to recognize a metric as a counter


def is_counter(name: str, trace: Trace) -> bool:
    """Check whether a metric is only a counter, so that its curve is useless.

    A counter has a typical name, or grows by a constant whole number.
    """
    if name.lower() in COUNTERS:
        return True
    values = trace.values
    if len(values) < _SURE:
        return False
    grows = values[1] - values[0]
    return (
        isfinite(grows)
        and grows > 0
        and grows.is_integer()
        and values[0].is_integer()
        and all(after - before == grows for before, after in pairwise(values))
    )


def sort_names(names: Sequence[str], trace_of: Callable[[str], Trace]) -> tuple[list[str], list[str]]:
    """Return the names of the metrics worth a chart, losses first, and the names of counters.

    Metrics that only grow are charted if there are no others, but never steps or epochs.
    """
    named = [name for name in names if name.lower() in COUNTERS]
    others = [name for name in names if name not in named]
    counts = [name for name in others if is_counter(name, trace_of(name))]
    charted = [name for name in others if name not in counts] or others
    counters = [name for name in names if name not in charted]
    return sorted(charted, key=lambda name: classify_metric(name) != "loss"), counters
