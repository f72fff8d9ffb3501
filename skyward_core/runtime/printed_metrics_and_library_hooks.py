"""Metrics of scripts that do not call ``sky.log``: numbers in printed lines, and calls of other logging libraries.

A line counts only if it consists of metrics, positions and punctuation alone, so numbers inside prose never become
metrics. Loaded by the first rank output of three lines, or by the import of a logging library.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any

REQUIRED_LINES = 3  # number of lines with the same pattern after which their metrics count
MAX_PATTERNS = 32  # maximum number of line patterns that are observed at the same time per rank
MAX_LINE = 1000  # maximum characters of a line that is searched for metrics
MAX_NAME = 64  # maximum characters of a metric's name
Progress = tuple[float, float, int]  # value, total and kind of a progress; see `_progress`

_NUMBER = (
    r"(?:[-+]?(?:\d{1,3}(?:,\d{3})+(?![,\d])(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
    r"|(?i:nan|[-+]?inf)(?=\b|ms\b))"
)
_UNIT = r"(?:\s?(?:%(?!\s*\|)|(?:[mnuµ]?s|secs?|seconds|min)\b|\w{1,8}/s(?:ec)?\b|/s\b)|[kKMGT](?:i?B)?\b|x\b)?"
_WORD = r"[A-Za-z_]\w*(?:[@./+-]\w+)*"
_NAME = rf"{_WORD}(?: {_WORD}){{0,5}}(?: ?\([a-z%/]+\))?"
_ENDS = r"(?![\w/:]|[.,-]\d|%)"
_TIME = r"\d+:\d\d(?::\d\d)*(?:\.\d+)?"
_MEAN = rf"(?:\s*\(\s*{_NUMBER}{_UNIT}\s*\))?"
_GROUPS = r"(?:train(?:ing)?|test(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?)"
_X = r"(?:(?:global|train)[ _]step|num_updates|step|iter(?:ation)?|it|update|timestep|epoch|batch|episode)"
_PUNCTUATION = re.compile(r"[\s,;|()\]*>•:·—=-]+")
_compiled = functools.cache(re.compile)  # Compiles a pattern on first use, because compiling all patterns takes 10 ms.
# Patterns of tokens: those that begin with a letter, and those that begin with a digit or a bracket.
_WORDED = "|".join((
    rf"(?i:(?P<phase>{_GROUPS}):?\s+\[?(?P<round>\d+)\]?)(?=\s*\[\s*\d)",
    rf"(?i:(?P<group>(?:{_GROUPS} )?)(?P<x>{_X}))\s*(?:(?P<sets>[:=])\s*)?(?:#\s*)?(?:\[\s*)?"
    r"(?P<xv>\d+(?:\.\d+)?(?:[eE][+]?\d+)?)(?:\s*/\s*(?P<xt>\d+))?\]?(?![\w/]|\.\d)",
    rf"(?P<name>{_NAME})(?:\s*[:=]\s*(?:\[?{_TIME}(?:\s*[</•]\s*{_TIME})?\]?"
    r"|(?P<part>\d+)\s*/\s*(?P<whole>\d+)(?:\s*\(\s*[\d.]+\s*%\s*\))?"
    rf"|(?P<value>{_NUMBER})(?P<unit>{_UNIT}){_ENDS}{_MEAN})"
    rf"|\s+(?P<value2>{_NUMBER})(?P<unit2>{_UNIT}){_ENDS}{_MEAN}"
    rf"(?=\s*[,|;\t]|\s*$|\s+-\s|  |\s+{_WORD}\s+{_NUMBER}))",
    rf"(?i:(?P<label>{_GROUPS}\b(?: set| step| phase)?))\s*[:|-]?",
    rf"(?P<other>{_WORD}(?: {_WORD})?)\s*:",
    r"(?P<eta>(?i:eta)\b)",
))  # fmt: skip
_NUMBERED = "|".join((
    rf"(?P<took>\[?{_TIME}<[^,\]]*(?:,(?P<speed>[^,\]]*))?[,\]])",
    rf"(?P<clock>\[?{_TIME}(?:\s*[</•]\s*{_TIME})?\]?)",
    r"(?P<bar>\d{1,3}%\s*(?:\|[^|]{0,300}\||[━╸╺─]{3,})|[━╸╺─]{3,}|\[[=>.# ]{5,}\])",
    r"(?P<pair>\[(?P<of>\d+),\s*(?P<at>\d+)\])",
    r"(?P<place>\[?\s*(?P<pv>\d+)\s*/\s*(?P<pt>\d+)(?![\d./])(?:\s*\(\s*[\d.]+%\s*\))?\s*\]?"
    r"(?:\s*(?:batch(?:es)?|samples|steps|iters|examples)\b)?)",
    rf"(?P<quantity>{_NUMBER}\s?(?:%|(?:[mnuµ]?s|min|h)\b(?:/(?:step|it|epoch)\b)?|\w{{0,8}}/s\b))",
    r"(?P<rest>\[)",
))  # fmt: skip
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_WRAPPED = re.compile(rf"(?:tensor|array|(?:np\.)?float(?:16|32|64)?)\(({_NUMBER})[^()]*\)")
_TEXT_FIELD = re.compile(
    r"""['"][\w/. -]+['"]:\s*(?:['"](?!nan|inf)[A-Za-z][^'"]*['"]|true|false|null|None|True|False)\s*,?"""
)
_QUOTES = str.maketrans("", "", "'\"{}")
_LOG_PREFIX = (
    r"\s*(?:I\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] |\[\d\d/\d\d \d\d:\d\d:\d\d [\w.]+\]: )?(?:\[[a-z]\w*\] (?=\[?\d{4}-))?"
    r"(?:\[?(?:\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d/\d{2,4}|\d\d:\d\d:\d\d)[\d:.,TZ +-]*\]?[\s|-]*)?"
    r"(?:\[?[Rr]ank ?\d+\]?:?\s*)?(?:(?:\[[\w.]+\]\s{0,2}(?:-\s?)?)*(?:[\w.]+ - )?\[?\bINFO\b\]?[\s:|\]-]*"
    rf"(?:(?!(?i:{_GROUPS}|{_X})\b)[\w.]+(?::\w+)*(?: - |\s*\| |: ?(?![\d.])|\] ?))?[\s-]*)?"
)
_REMARK = re.compile(r"\s\(([^()]*)\)\s*$")  # remark in parentheses at the end of a line
_EVALUATION = re.compile(r"val|test|eval")
_ETA = re.compile(r"\beta:?\s*(?:\d+ days?, )?\d+(?::\d\d)+,?", re.IGNORECASE)
_DIGIT = re.compile(r"\d|nan|inf")
_LINE_ENDS = re.compile(rb"[\r\n]+")
# A line without any of these texts is skipped, unless it may be a row of a table.
_CUES = (
    b"loss", b"acc", b"epoch", b"step", b"iter", b"update", b"episode", b"reward", b"ppl", b"perplexity", b"nll", b"f1",
    b"auc", b"bleu", b"rouge", b"mse", b"mae", b"psnr", b"iou", b"wer", b"cer", b"elbo", b"%|", b"=>", "━".encode(),
)  # fmt: skip
_DIGITS = b"0123456789"
MAX_REJECTED = 1024  # maximum number of remembered patterns of lines without metrics
# A metric name with one of these words marks its line as results of training. All other numbers in the line then become
# metrics, too.
_RESULTS = frozenset((
    "loss", "losses", "acc", "accuracy", "perplexity", "ppl", "nll", "reward", "f1", "auc", "bleu", "rouge", "mse",
    "rmse", "mae", "psnr", "ssim", "iou", "miou", "wer", "cer", "elbo", "map50", "mcc",
))  # fmt: skip
_SETTINGS = frozenset(
    (
        "scale",
        "weight",
        "weights",
        "coef",
        "fn",
        "type",
        "function",
        "lambda",
        "scaler",
        "threshold",
        "packet",
        "time",
        "steps",
    )
)
_HEADING = re.compile(rf"\W*(?i:{_X})[\s,|]+[A-Za-z_]")
_PROSE = frozenset((
    "the", "is", "a", "an", "of", "for", "with", "and", "in", "to", "was",
    "at", "from", "than", "that", "this", "it", "we",
    "you", "are", "by", "on", "or", "our", "has",
))  # fmt: skip
_STEPS = ("global_step", "num_updates", "step", "train_step", "iteration", "iter", "it", "update", "timestep")
_SCALES = {
    "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
}  # fmt: skip


class _Line:
    """Parsed content of a printed line: metrics, and its position in the training.

    Attributes:
        values: Metrics by name.
        xs: Steps and epochs by name, each with its total or 0.
        places: Positions such as ``[640/60000]``: value and total.
        group: "test" or similar, or "".
        prefix: Prefix of further names, if labels in the line have metrics each.
        is_bar: Whether the line is a progress bar.
        is_labelled: Whether the line has a label that does not belong to training.
        is_setting: Whether the position may be a setting, such as ``epoch: 10``.
    """

    __slots__ = ("group", "is_bar", "is_labelled", "is_setting", "places", "prefix", "values", "xs")

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.xs: dict[str, tuple[float, float]] = {}
        self.places: list[tuple[float, float]] = []
        self.group = self.prefix = ""
        self.is_bar = self.is_labelled = self.is_setting = False

    def add(self, name: str, text: str, unit: str) -> bool:
        """Add a metric to the line. Return False if its name is prose or its unit is invalid, to reject the line."""
        words = name.lower().split()
        if len(words) > 1 and not _PROSE.isdisjoint(words[1:] if words[0] == "number" else words):
            return words[:2] == ["number", "of"] and _PROSE.isdisjoint(words[2:])
        if words[-1] == "eta" or words == ["v_num"]:
            return True
        value, unit = float(text.replace(",", "")), unit.strip()
        is_other = unit.endswith(("s", "sec", "min")) or (unit == "%" and words[-1].endswith("loss"))
        if is_other and _is_result(_normalize(name)):
            # A value with such a unit is a duration, or a share of lost packets, not a result of training.
            return False
        value *= _SCALES.get(unit, 1.0) if len(unit) != 2 or unit[0] not in "KMGT" else _SCALES[unit[0]]
        if isfinite(value) or not any(map(str.isdigit, text)):  # Reject digits beyond the range of floats.
            name = _normalize(name)
            self.values.setdefault(name if _EVALUATION.search(name) else self.prefix + name, value)
        return True

    @property
    def result(self) -> str:
        """Name of the first metric in the line that is a result of training, such as a loss; "" if there is none."""
        return next(filter(_is_result, self.values), "")


def _normalize(name: str) -> str:
    return re.sub(r"[^a-z0-9_@./%+-]+", "_", name.lower()).strip("_")[:MAX_NAME]


def _is_result(name: str) -> bool:
    words = set(re.split(r"[_/. @+-]+", name))
    return not (words.isdisjoint(_RESULTS) and not name.endswith("loss")) and words.isdisjoint(_SETTINGS)


def parse_line(text: str) -> _Line | None:
    """Return the parsed content of a printed line; None if any part is neither a metric nor a position."""
    if not (5 <= len(text) <= MAX_LINE and _DIGIT.search(text)):
        return None
    text = _ETA.sub("", _WRAPPED.sub(r"\1", text))
    if "{" in text:
        text = _TEXT_FIELD.sub("", text)
    text = text.translate(_QUOTES)
    line = _Line()
    columns = text.split("|")
    if len(columns) > 3 and "%|" not in text:  # In a line with several columns, columns without a number are labels.
        for column in columns:
            if not _DIGIT.search(column) and (group := re.match(rf"(?i:\s*({_GROUPS})\b)", column)):
                _set_group(line, group[1])
        text = "|".join(part for part in columns if _DIGIT.search(part))
    prefix = _compiled(_LOG_PREFIX).match(text)
    at = prefix.end() if prefix is not None else 0
    while at < len(text):
        found = _PUNCTUATION.match(text, at)
        if found is None:
            is_word = text[at].isalpha() or text[at] == "_"
            found = _compiled(_WORDED if is_word else _NUMBERED).match(text, at)
            if found is None or not (_add_word if is_word else _add_number)(line, found):
                return None
        at = found.end()
    if line.prefix and not any(name.startswith(line.prefix) for name in line.values):
        line.group = line.prefix[:-1]
    return line


def _add_number(line: _Line, found: re.Match[str]) -> bool:
    kind, get = found.lastgroup, found.group
    if kind == "took":
        line.is_bar = True
        # A progress bar with bytes per second shows a download, not training.
        line.is_labelled |= bool(re.search(r"B/s|s/B", get("speed") or ""))
    elif kind == "pair":
        line.xs |= {"epoch": (float(get("of")), 0.0), "step": (float(get("at")), 0.0)}
    elif kind == "place":
        line.places.append((float(get("pv")), float(get("pt"))))
    elif kind == "bar":
        line.is_bar = True
    return True


def _add_word(line: _Line, found: re.Match[str]) -> bool:
    get = found.group
    if (name := get("name")) is not None:
        if (value := get("value")) is not None:
            return line.add(name, value, get("unit"))
        if (value := get("value2")) is not None:
            return name.count(" ") < 3 and line.add(name, value, get("unit2"))
        if (whole := get("whole")) is not None and float(whole) and "acc" in name.lower():
            line.add(name, str(float(get("part")) / float(whole)), "")
    elif (x := get("x")) is not None:
        _set_group(line, get("group"))
        line.is_setting |= bool(get("sets") and not get("xt"))
        line.xs.setdefault(_normalize(x), (float(get("xv")), float(get("xt") or 0)))
    elif (phase := get("phase")) is not None:
        _set_group(line, phase)
        line.xs["epoch"] = float(get("round")), 0.0
    elif (label := get("label")) is not None:
        _set_group(line, label)
    elif get("other") is not None:
        if line.is_labelled:
            return False
        line.is_labelled = True
    return True


def _set_group(line: _Line, label: str) -> None:
    word = label.strip().lower().split(" ")[0]
    group = next((each for each in ("train", "test", "val", "eval") if word.startswith(each)), "")
    if not line.values:
        line.group = group.removeprefix("train") or line.group
    elif group:
        if line.group and group != line.group:
            line.values = {f"{line.group}_{name}": value for name, value in line.values.items()}
            line.group = ""
        if not line.group:
            line.prefix = "" if group == "train" else f"{group}_"


class PrintedMetrics:
    """Finder of metrics and progress in the lines that one run prints on one rank."""

    def __init__(self) -> None:
        self._rests: dict[str, bytes] = {}
        self._patterns: dict[tuple[str, ...], _Pattern] = {}
        # epoch and total in the last heading of an epoch, such as "Epoch 3/40"
        self._epoch: tuple[float, float] | None = None
        self._has_epoch_zero = False
        self._rejected: set[int] = set()  # hashes of lines (without their digits) that contain no metrics
        self._columns: list[str] = []  # column names of the last printed table
        self._row = 0.0  # number in the first cell of the last table's latest row
        self._x: dict[str, float] = {}  # step and epoch of the last line whose metrics counted

    def feed(
        self, stream: str, data: bytes, since: float, until: float, gap: bool = False
    ) -> Iterator[tuple[float, dict[str, float], Progress | None]]:
        """Search further output. Yield the metrics and progress in it, each with its approximate time.

        Args:
            stream: Name of the stream. Each stream has its own unfinished line.
            data: The bytes.
            since, until: Times between which the bytes were printed.
            gap: Whether earlier bytes are missing, so that the first line is incomplete.
        """
        lines = _LINE_ENDS.split((b"" if gap else self._rests.get(stream, b"")) + data)
        self._rests[stream] = lines.pop()[-2 * MAX_LINE :]
        progress: Progress | None = None
        everything = b"\n".join(lines).lower()
        cues = [cue for cue in _CUES if cue in everything]
        for number, raw in enumerate(lines if cues or self._columns else ()):
            shape = hash(raw.translate(None, _DIGITS))
            if (shape in self._rejected and not self._columns) or len(raw) > 2 * MAX_LINE or (gap and not number):
                continue
            low, line = raw.lower(), None
            if self._columns or any(cue in low for cue in cues):
                text = _ESCAPES.sub("", raw.decode("utf-8", "replace"))
                line = self._table_row(text) or parse_line(text)
                remark = _REMARK.search(text) if line is None else None
                if remark is not None and re.search("[A-Za-z]{2} ", remark[1]):
                    # Ignore a remark in parentheses that consists of words.
                    line = parse_line(text[: remark.start()])
            if line is None:
                if len(self._rejected) >= MAX_REJECTED:
                    self._rejected.clear()
                self._rejected.add(shape)
            else:
                at = since + (until - since) * (number + 1) / len(lines)
                values = self._accept(line, at)
                progress = self._progress(line, bool(values)) or progress
                yield from ((*each, None) for each in values)
        if progress is not None:
            yield until, {}, progress

    def _table_row(self, text: str) -> _Line | None:
        """Return the content of a table row printed below a heading such as ``epoch  train_loss  accuracy``."""
        if not (self._columns or _HEADING.match(text)):
            return None
        cells = text.replace(",", " ").replace("|", " ").split()
        if len(cells) > 1 and not any(cell[0].isdigit() for cell in cells):
            names = [_normalize(cell) for cell in cells]
            distinct = all(names) and len(set(names)) == len(names)
            if distinct and re.fullmatch(_X, names[0]) and any(map(_is_result, names)):
                self._columns, self._row = names, 0.0
        names, line = self._columns, _Line()
        if not names or len(cells) < len(names):
            return None
        tail = re.search(r"\s(\d+)/(\d+)\s", " ".join(cells[len(names) :]))
        with suppress(ValueError):  # A cell that is not a number means that the line is not a row of the table.
            value, _, total = cells[0].partition("/")
            if float(value) < self._row:  # A smaller number than in the previous row means that the table has ended.
                self._columns = []
                return None
            self._row = float(value)
            line.xs[names[0]] = self._row, float(total or 0)
            for name, cell in zip(names[1:], cells[1:], strict=False):
                number = cell.rstrip(":KMG")
                if not re.fullmatch(_TIME, number):
                    line.add(name, number, cell[len(number) :].rstrip(":"))
            if tail is not None:
                line.places.append((float(tail[1]), float(tail[2])))
            return line if tail is not None or len(cells) == len(names) else None
        return None

    def _accept(self, line: _Line, at: float) -> list[tuple[float, dict[str, float]]]:
        """Return the metrics of a line with its step and epoch, once three lines had the same pattern.

        The first two lines are returned together with the third.
        """
        if len(line.places) > 1 and "epoch" not in line.xs:
            # Of several positions, the first one is the epoch, as in "Train: 1/3 (33%) [0/323 (0%)]".
            line.xs["epoch"] = line.places.pop(0)
        epoch, result = line.xs.get("epoch"), line.result
        self._has_epoch_zero |= epoch is not None and epoch[0] == 0
        if epoch is not None and not (line.values or line.places or line.is_bar or line.group or line.is_setting):
            self._epoch = epoch
        if not result or (line.is_labelled and not line.xs):
            return []
        prefix = f"{line.group}_" if line.group and not _EVALUATION.search(result) else ""
        key = (prefix, result, *line.xs, "/" if line.places else "")
        pattern = self._patterns.get(key)
        if pattern is None:
            if len(self._patterns) >= MAX_PATTERNS:
                waiting = next((each for each, known in self._patterns.items() if not known.is_accepted), None)
                if waiting is None:
                    return []
                del self._patterns[waiting]
            pattern = self._patterns[key] = _Pattern()
        x = pattern.position(line, self._epoch, self._has_epoch_zero)
        values = {prefix + name: value for name, value in line.values.items()} | (x or self._x)
        if values == pattern.shown:  # Ignore a progress bar that was only drawn again.
            return []
        pattern.shown = values
        found = pattern.add(at, values, x, line.values[result])
        if found and x:
            self._x = x
        return found

    def _progress(self, line: _Line, is_metric: bool) -> Progress | None:
        """Return value, total and kind of the whole run's progress, as far as a line shows it.

        Kinds are 2 for epochs, 1 for steps, 0 for bars. A position within an epoch is the run's progress only if the
        number of epochs is known.
        """
        if line.group or line.is_labelled:
            return None
        epoch = line.xs.get("epoch", self._epoch)
        inner = line.places[-1] if line.places else None
        step = next((line.xs[name] for name in _STEPS if name in line.xs and line.xs[name][1]), None)
        if epoch is not None and epoch[1]:
            value, total = inner or step or (0.0, 0.0)
            part = value / total if total else float(bool(line.values))
            whole = epoch[1] + self._has_epoch_zero
            return min(epoch[0] - (not self._has_epoch_zero) + min(part, 1.0), whole), whole, 2
        if epoch is None and step is not None:
            return *step, 1
        if epoch is None and inner is not None and inner[1] and (line.is_bar or is_metric):
            return *inner, 0
        return None


class _Pattern:
    """Lines with the same first result and the same kinds of positions. Their metrics count after three such lines.

    The steps of these lines must increase. Without steps, the values must differ.

    Attributes:
        is_accepted: Whether three lines were seen.
        shown: Metrics of the last line.
    """

    __slots__ = ("_before", "_epoch", "_seen", "_step", "is_accepted", "shown")

    def __init__(self) -> None:
        self.is_accepted = False
        self.shown: dict[str, float] = {}
        # lines that do not count yet: position, result, time, metrics
        self._seen: list[tuple[float, float, float, dict[str, float]]] = []
        # epoch and step of the last line, and number of steps of all earlier epochs
        self._epoch = self._step = self._before = 0.0

    def position(self, line: _Line, heading: tuple[float, float] | None, has_epoch_zero: bool) -> dict[str, float]:
        """Return the step and the epoch of a line. If steps begin again in each epoch, add the steps of earlier epochs.

        If the line has a position within an epoch, the epoch is the number of completed epochs, with a fraction.
        """
        epoch = line.xs.get("epoch")
        place = line.places[-1] if line.places and line.places[-1][1] else None
        step = next((line.xs[name] for name in (*_STEPS, "batch", "episode") if name in line.xs), None)
        if step is not None and step[1] and epoch is not None:
            place, step = place or step, None
        if epoch is None and (place or step):
            epoch = heading
        found = {}
        if epoch is not None:
            found["epoch"] = epoch[0]
            if place is not None:
                found["epoch"] += min(place[0] / place[1], 1.0) - (not has_epoch_zero and epoch[0] >= 1)
        elif step is None and place is not None and not line.group:
            step = place
        if step is not None:
            if epoch is not None and epoch[0] < self._epoch:
                self._before = 0.0  # A smaller epoch means that the training began again.
            elif step[0] < self._step and (step is place if epoch is None else epoch[0] > self._epoch):
                self._before += step[1] or self._step
            self._step, self._epoch = step[0], epoch[0] if epoch is not None else 0.0
            found["step"] = step[0] + self._before
        return found

    def add(
        self, at: float, values: dict[str, float], x: Mapping[str, float], result: float
    ) -> list[tuple[float, dict[str, float]]]:
        """Add a line of this pattern. Return the metrics that count now: none before the third line."""
        if self.is_accepted:
            return [(at, values)]
        place = x.get("step", x.get("epoch"))
        last = self._seen[-1][0] if self._seen else -1.0
        if place is not None and place == last:
            return []
        if place is not None and place < last:
            self._seen = []
        self._seen = [*self._seen[-REQUIRED_LINES:], (last if place is None else place, result, at, values)]
        differ = place is not None or len({repr(each[1]) for each in self._seen}) > 1
        self.is_accepted = differ and len(self._seen) >= REQUIRED_LINES
        return [each[2:] for each in self._seen] if self.is_accepted else []


def patch_library(record: Callable[[dict[str, Any], float | None, Progress | None, str], None], module: Any) -> None:
    """Pass metrics that user code gives to a logging library to ``record``, too. The library's behavior is unchanged.

    Args:
        record: Receives metrics, step, progress and the name of the library.
        module: A module of `HOOKS`, after its import.
    """
    for path, read in HOOKS[module.__name__]:
        owner_name, _, name = path.partition(".")
        owner = getattr(module, owner_name, None)
        original = vars(owner).get(name) if isinstance(owner, type) else None
        if callable(original):
            setattr(owner, name, _forwarding(original, read, record, module.__name__.partition(".")[0]))


def _forwarding(
    original: Callable[..., Any],
    read: Callable[..., tuple[Any, ...]],
    record: Callable[[dict[str, Any], float | None, Progress | None, str], None],
    library: str,
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        found: tuple[Any, ...] = ()
        with suppress(Exception):
            # The library may reject these arguments, or have other parameters in another version.
            found = read(*args, **kwargs)
        value = original(*args, **kwargs)
        if found:
            with suppress(Exception):  # Some values may not be numbers.
                metrics, step, progress = (*found, None)[:3]
                record(_flat_numbers(metrics), None if step is None else float(step), progress, library)
        return value

    import inspect  # imported late, because the import would delay the start of each worker

    # Set the signature explicitly, because `inspect.getfullargspec` ignores `__wrapped__`.
    vars(call)["__signature__"] = inspect.signature(original)
    return call


def _flat_numbers(metrics: Mapping[Any, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of nested mappings. Values of other types, such as images, are omitted."""
    found: dict[str, float] = {}
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _flat_numbers(value, f"{name}.")
        elif isinstance(value, int | float) or hasattr(value, "item"):
            with suppress(TypeError, ValueError, RuntimeError):  # An array of several values has no single number.
                found["".join(filter(str.isprintable, name))[:MAX_NAME]] = float(
                    value.item() if hasattr(value, "item") else value
                )
    return found


def _scalar(
    writer: Any, tag: str, scalar_value: Any, global_step: Any = None, *rest: Any, **kwargs: Any
) -> tuple[Any, ...]:
    return {tag: scalar_value}, global_step


def _scalars(
    writer: Any, main_tag: str, tag_scalar_dict: Any, global_step: Any = None, *rest: Any, **kwargs: Any
) -> tuple[Any, ...]:
    return {f"{main_tag}/{key}": value for key, value in tag_scalar_dict.items()}, global_step


def _wandb(run: Any, data: Any, step: Any = None, *rest: Any, **kwargs: Any) -> tuple[Any, ...]:
    return dict(data), run.step if step is None else step


def _mlflow(
    client: Any, run_id: Any, key: str, value: Any, timestamp: Any = None, step: Any = None, *rest: Any, **kwargs: Any
) -> tuple[Any, ...]:
    return {key: value}, step


def _mlflow_batch(client: Any, run_id: Any, metrics: Any = (), *rest: Any, **kwargs: Any) -> tuple[Any, ...]:
    if not isinstance(metrics, list | tuple):
        # Do not read an iterator, because it would be exhausted before the library reads it.
        return ()
    return {each.key: each.value for each in metrics}, next((each.step for each in metrics), None)


def _lightning(logger: Any, metrics: Any, step: Any = None) -> tuple[Any, ...]:
    return dict(metrics), step


def _huggingface(handler: Any, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> tuple[Any, ...]:
    return dict(logs), state.global_step, (float(state.global_step), float(state.max_steps), 1)


def _keras(callbacks: Any, epoch: int, logs: Any = None) -> tuple[Any, ...]:
    epochs = float((callbacks.params or {}).get("epochs") or 0)
    progress = (epoch + 1.0, epochs, 2) if epochs else None
    return {**(logs or {}), "epoch": epoch + 1}, None, progress


# Module of a library -> methods of its classes that log metrics, each with a function that returns metrics, step and
# progress from the arguments. All of a library's interfaces call these methods: ``wandb.log``, for example, is
# `Run.log`.
HOOKS: dict[str, tuple[tuple[str, Callable[..., tuple[Any, ...]]], ...]] = {
    "torch.utils.tensorboard.writer": (("SummaryWriter.add_scalar", _scalar), ("SummaryWriter.add_scalars", _scalars)),
    "tensorboardX.writer": (("SummaryWriter.add_scalar", _scalar), ("SummaryWriter.add_scalars", _scalars)),
    "wandb.sdk.wandb_run": (("Run.log", _wandb),),
    "mlflow.tracking.client": (("MlflowClient.log_metric", _mlflow), ("MlflowClient.log_batch", _mlflow_batch)),
    "lightning.pytorch.loggers.csv_logs": (("CSVLogger.log_metrics", _lightning),),
    "pytorch_lightning.loggers.csv_logs": (("CSVLogger.log_metrics", _lightning),),
    "transformers.trainer_callback": (("CallbackHandler.on_log", _huggingface),),
    "keras.src.callbacks.callback_list": (("CallbackList.on_epoch_end", _keras),),
}
