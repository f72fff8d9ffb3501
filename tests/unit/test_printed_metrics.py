"""Metrics and progress in printed lines, calls of logging libraries, and their way into the views."""

from __future__ import annotations

import codecs
import importlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.runtime import metric_logging
from skyward_core.runtime.import_hooks_gc_pause_and_alias import call_when_imported
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, using
from skyward_core.runtime.metric_logging import LIBRARIES, MAX_OTHER_NAMES, OutputScan, log
from skyward_core.runtime.printed_metrics_and_library_hooks import HOOKS, MAX_PATTERNS, PrintedMetrics
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, apply
from skyward_core.views.rank_metrics_and_progress import MAX_PROGRESSES, MetricStore, ProgressTracker
from skyward_tui.app.app import SkywardApp
from skyward_tui.cli.follow_run import status_rows
from skyward_tui.screens.run import pool_status
from skyward_tui.text.number_time_and_run_state_format import progress_text

DATA = Path(__file__).parent / "printed_metrics"
Row = tuple[float, dict[str, float], Any]


def transcripts(name: str) -> list[tuple[str, str]]:
    """Return title and text of each transcript in a file. Escapes such as ``\\r`` are control characters."""
    parts = re.split(r"^=== (.*)\n", (DATA / name).read_text(), flags=re.MULTILINE)[1:]
    escape = re.compile(r"\\(?:[rtb]|x[0-9a-f]{2})")
    return [
        (title, escape.sub(lambda found: codecs.decode(found[0], "unicode_escape"), text))
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def read(text: str, size: int = 1 << 20) -> list[Row]:
    """Return the metrics of a text that arrives in pieces."""
    data, parser = text.encode(), PrintedMetrics()
    return [
        row for at in range(0, len(data), size) for row in parser.feed("out", data[at : at + size], float(at), at + 1.0)
    ]


def series(rows: list[Row], name: str, x: str) -> list[tuple[float, float]]:
    return [(values[x], values[name]) for _, values, _ in rows if name in values and x in values]


@pytest.mark.parametrize(("title", "text"), transcripts("training.txt"))
@pytest.mark.parametrize("size", [1 << 20, 7])
def test_loss_and_its_step_are_read_from_the_output_of_training_scripts(title: str, text: str, size: int) -> None:
    _, name, x, first, last, count = title.rsplit(" | ", 5)
    found = series(read(text, size), name, x)
    assert len(found) == int(count)
    for point, expected in ((found[0], first), (found[-1], last)):
        at, value = map(float, expected.split())
        assert point[0] == pytest.approx(at, abs=1e-6)
        assert point[1] == pytest.approx(value, abs=1e-6) or (isnan(value) and isnan(point[1]))
    assert [at for at, _ in found] == sorted(at for at, _ in found)


@pytest.mark.parametrize(("title", "text"), transcripts("other.txt"))
def test_no_metric_is_read_from_the_output_of_other_scripts(title: str, text: str) -> None:
    assert [values for _, values, _ in read(text * 3) if values] == []
    assert len(transcripts("other.txt")) >= 30


def test_metrics_count_from_the_third_line_of_a_pattern() -> None:
    lines = [f"step {step}: loss {1 / (step + 1):.3f}\n" for step in range(4)]
    assert [len(series(read("".join(lines[:many])), "loss", "step")) for many in range(5)] == [0, 0, 0, 3, 4]


@pytest.mark.parametrize(
    ("lines", "progress"),
    [
        (["step 76/120: loss 2.0"], (76, 120, 1)),
        (["Epoch 12/40", "[====>.....] 5/10"], (11.5, 40, 2)),
        (["Epoch 12/40 loss: 0.5"], (12, 40, 2)),
        (["epoch 12/40 loss=0.5 (rank 0 of 4: 0.4873)"], (12, 40, 2)),
        (["Epoch 1/4", " 5/10 ━━━━━━━━━━ 2s 1ms/step - loss: 0.5"], (0.5, 4, 2)),
        (["Epoch 0/9  ━━━━━━━━ 50/100 0:00:05 • 0:00:05 9.51it/s loss: 0.3"], (0.5, 10, 2)),
        (["Epoch [2/5], Step [300/600], Loss: 0.3"], (1.5, 5, 2)),
        (["  3%|▎         | 10/300 [00:05<02:25,  2.00it/s]"], (10, 300, 0)),
        (["Epoch 0:  45%|████▌     | 45/100 [00:00<00:00, 99.51it/s, loss=1.320]"], None),
        (["Epoch 3", "  3%|▎         | 10/300 [00:05<02:25,  2.00it/s]"], None),
        (["model.bin:  45%|████▌     | 45/100 [00:00<00:00, 99.51it/s]"], None),
        (["  3%|▎         | 10/300 [00:05<02:25,  2.00MB/s]"], None),
        (["Test: [ 10/196]  Loss: 0.5"], None),
        (["wrote 3/10 files"], None),
    ],
)
def test_progress_is_read_from_positions_with_a_known_total(lines: list[str], progress: Any) -> None:
    found = [done for _, _, done in read("".join(f"{line}\n" for line in lines)) if done is not None]
    assert (found[-1] if found else None) == progress


# -- the way into the views ------------------------------------------------------------------------------


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Writer without its thread, and empty output files."""
    for ending in ("out", "err"):
        (tmp_path / f"r000.{ending}").touch()
    metric_logging.start_writer(str(tmp_path / "r000.metrics"))
    monkeypatch.setattr(metric_logging._writer, "_thread", object())
    yield tmp_path
    metric_logging._writer = None


def stored(spool: Path) -> MetricStore:
    assert metric_logging._writer is not None
    metric_logging._writer.flush()
    store = MetricStore()
    if (path := spool / "r000.metrics").exists():
        store.feed("r000.metrics", 0, path.read_bytes())
    return store


def printed(spool: Path, scan: OutputScan, text: str, ending: str = "out") -> None:
    with (spool / f"r000.{ending}").open("a") as file:
        file.write(text)
    scan.note_output()


def losses(begin: int, end: int) -> str:
    return "".join(f"step {step}/100: loss {1 / (step + 1):.3f}, extra 5\n" for step in range(begin, end))


def test_printed_metrics_reach_views_and_the_summary_of_their_call(spool: Path) -> None:
    scan = OutputScan(str(spool / "r000"))
    scan.start_call("r1", 4)
    printed(spool, scan, losses(0, 2))
    scan.search()
    assert stored(spool).names("r1") == []
    printed(spool, scan, losses(2, 5), "out")
    scan.end_call("r1", 4)
    store = stored(spool)
    assert store.latest("r1", 0) == {"loss": 0.2, "extra": 5, "step": 4}
    assert store.origin("r1", "loss") == "from the log"
    assert metric_logging.pop_call_metrics("r1", 4)["loss"] == [0.2, 0.2, 1.0]
    scan.start_call("r2", 0)
    printed(spool, scan, losses(5, 7))
    scan.end_call("r2", 0)
    assert stored(spool).ranks("r2") == [], "each run has its own three lines"


def test_output_of_concurrent_calls_has_no_metrics(spool: Path) -> None:
    scan = OutputScan(str(spool / "r000"))
    scan.start_call("r1", 0)
    scan.start_call("r2", 0)
    printed(spool, scan, losses(0, 9))
    scan.end_call("r1", 0)
    scan.end_call("r2", 0)
    assert stored(spool).names("r1") == stored(spool).names("r2") == []


def test_flood_of_output_is_sampled_at_its_begin_and_end(spool: Path) -> None:
    scan = OutputScan(str(spool / "r000"))
    scan.start_call("r1", 0)
    printed(spool, scan, losses(0, 50_000))
    scan.end_call("r1", 0)
    trace = stored(spool).trace("r1", 0, "step")
    assert trace.values[0] == 0 and stored(spool).latest("r1", 0)["step"] == 49_999
    assert list(trace.at) == sorted(trace.at) and not [step for step in trace.values if 20_000 < step < 30_000]


def test_logged_name_replaces_the_printed_one(spool: Path) -> None:
    scan = OutputScan(str(spool / "r000"))
    with using(InstanceInfo(run="r1")):
        scan.start_call("r1", 0)
        printed(spool, scan, losses(0, 5))
        scan.search()
        log(loss=7.0)
        printed(spool, scan, losses(5, 9))
        scan.end_call("r1", 0)
        store = stored(spool)
    assert list(store.trace("r1", 0, "loss").values) == [7.0]
    assert (store.origin("r1", "loss"), store.origin("r1", "extra")) == ("", "from the log")


def test_many_distinct_printed_names_take_bounded_memory(spool: Path) -> None:
    scan = OutputScan(str(spool / "r000"))
    scan.start_call("r1", 0)
    for at in range(300):
        printed(spool, scan, "".join(f"step {step}: loss {step}, n{at}_{step} 1\n" for step in range(at, at + 3)))
        scan._room = 9.0
        scan.search()
    names = stored(spool).names("r1")
    assert "loss" in names and len(names) <= MAX_OTHER_NAMES + 2
    parser = PrintedMetrics()
    list(parser.feed("out", b"".join(b"loss_%d: %d\n" % (at, at) for at in range(10_000)), 0, 1))
    assert len(parser._patterns) <= MAX_PATTERNS
    list(parser.feed("out", b"x" * 1_000_000, 0, 1))
    assert len(parser._rests["out"]) < 10_000


@given(st.text(st.characters(codec="utf-8")).map(lambda text: f"step 1: loss {text}\n{text}\n") | st.text())
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    for _, values, _ in read(text * 4, 11):
        assert all(name.isprintable() and len(name) <= 80 for name in values)


def test_hostile_lines_take_little_time() -> None:
    """Each text takes seconds to years with an expression that can match it in many ways."""
    texts = ["[a] " * 240, "step" + " " * 960 + "1x"]
    for text in texts:
        read((text + " loss 1\n") * 3)


def test_failing_search_ends_neither_its_thread_nor_the_call(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read("epoch loss *\n" + "1 0.5 3\n" * 3) == [], "a heading without a name"
    scan = OutputScan(str(spool / "r000"))
    scan.start_call("r1", 0)
    with monkeypatch.context() as patch:
        patch.setattr(PrintedMetrics, "feed", lambda *args: [][0])
        printed(spool, scan, losses(0, 9))
        scan.search()
    printed(spool, scan, losses(9, 20))
    scan.end_call("r1", 0)
    assert list(stored(spool).trace("r1", 0, "step").values) == list(range(9, 20))


def test_expressions_are_compiled_by_the_first_line_that_may_have_metrics() -> None:
    code = "from skyward_core.runtime.printed_metrics_and_library_hooks import PrintedMetrics, _compiled\n"
    code += "for text in (b'hello 1\\n', b'iter 1: loss 1\\n'):\n"
    code += "    list(PrintedMetrics().feed('out', text * 9, 0, 1)); print(_compiled.cache_info().currsize)"
    found = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    assert [int(each) > 0 for each in found.stdout.split()] == [False, True]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_does_not_wait_for_a_thread_of_its_parent(spool: Path) -> None:
    assert metric_logging._writer is not None
    with metric_logging._writer._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            log(loss=1.0)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


# -- libraries -------------------------------------------------------------------------------------------


def test_libraries_and_their_hooks_match() -> None:
    assert set(HOOKS) == set(LIBRARIES)


class FakeWriter:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def add_scalar(self, tag: Any, scalar_value: Any, global_step: Any = None, walltime: Any = None) -> str:
        self.calls.append((tag, scalar_value, global_step))
        if tag is None:
            raise ValueError("no tag")
        return "added"

    def add_scalars(self, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: Any = None) -> None:
        pass


def imported(name: str, monkeypatch: pytest.MonkeyPatch, **content: Any) -> types.ModuleType:
    """Import a module of a library that does not exist, and return it."""
    module = types.ModuleType(name)
    for key, value in content.items():
        setattr(module, key, value)

    class Finder:
        def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
            if fullname != name:
                return None
            return importlib.machinery.ModuleSpec(name, cast("Any", Loader()))

    class Loader:
        def create_module(self, spec: Any) -> types.ModuleType:
            return module

        def exec_module(self, module: types.ModuleType) -> None:
            pass

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    for parent in [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)]:
        if parent not in sys.modules:
            monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
            monkeypatch.setattr(sys.modules[parent], "__path__", [], raising=False)
    monkeypatch.delitem(sys.modules, name, raising=False)
    metric_logging.forward_libraries()
    return importlib.import_module(name)


def test_calls_of_tensorboard_are_recorded_and_behave_as_before(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported("tensorboardX.writer", monkeypatch, SummaryWriter=type("SummaryWriter", (FakeWriter,), {
        "add_scalar": FakeWriter.add_scalar, "add_scalars": FakeWriter.add_scalars,
    }))  # fmt: skip
    writer = module.SummaryWriter()
    with using(InstanceInfo(run="r1")):
        assert writer.add_scalar("train/loss", 0.5, 3) == "added"
        writer.add_scalars("acc", {"train": 0.1, "val": 0.2}, global_step=3)
        writer.add_scalar("image", object(), 3)
        with pytest.raises(ValueError, match="no tag"):
            writer.add_scalar(None, 1)
        with pytest.raises(TypeError):
            writer.add_scalar()
    store = stored(spool)
    assert store.latest("r1", 0) == {"step": 3, "train/loss": 0.5, "acc/train": 0.1, "acc/val": 0.2}
    assert store.origin("r1", "train/loss") == "from TensorBoard"
    assert writer.calls[:2] == [("train/loss", 0.5, 3), ("image", writer.calls[1][1], 3)]
    assert module.SummaryWriter.add_scalar.__name__ == "add_scalar"
    assert inspect.getfullargspec(module.SummaryWriter.add_scalar) == inspect.getfullargspec(FakeWriter.add_scalar)


def test_calls_of_wandb_and_mlflow_are_recorded(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        step = 7

        def log(self, data: dict[str, Any], step: Any = None, commit: Any = None) -> None:
            Run.step += 1

    class MlflowClient:
        def log_metric(self, run_id: str, key: str, value: float, timestamp: Any = None, step: Any = None) -> None: ...

        def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None: ...

    wandb = imported("wandb.sdk.wandb_run", monkeypatch, Run=Run)
    mlflow = imported("mlflow.tracking.client", monkeypatch, MlflowClient=MlflowClient)
    with using(InstanceInfo(run="r1")):
        wandb.Run().log({"loss": 0.5, "deep": {"x": 1}, "text": "no", "image": object()})
        mlflow.MlflowClient().log_metric("a", "auc", 0.9, step=8)
        mlflow.MlflowClient().log_batch("a", [types.SimpleNamespace(key="f1", value=0.8, step=9)])
        mlflow.MlflowClient().log_metric("a", "loss", 99.0, step=8)  # the first library has the name
    store = stored(spool)
    assert store.latest("r1", 0) == {"step": 9, "loss": 0.5, "deep.x": 1, "auc": 0.9, "f1": 0.8}
    assert (store.origin("r1", "loss"), store.origin("r1", "auc")) == ("from W&B", "from MLflow")


def test_failing_hooks_and_unusual_loaders_let_libraries_be_imported(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise OSError(name) if name == "SummaryWriter" else AttributeError(name)

    assert imported("tensorboardX.writer", monkeypatch, __getattr__=fail).__name__ == "tensorboardX.writer"

    class OldLoader:
        __slots__ = ()

        def load_module(self, fullname: str) -> types.ModuleType:
            return sys.modules.setdefault(fullname, types.ModuleType(fullname))

    class Finder:
        def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
            return importlib.machinery.ModuleSpec(fullname, cast("Any", OldLoader())) if fullname == "wandb" else None

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    call_when_imported(lambda module: None, "wandb")
    with pytest.warns(ImportWarning):
        assert importlib.import_module("wandb").__name__ == "wandb"


def test_iterators_reach_libraries_complete(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class MlflowClient:
        def log_batch(self, run_id: str, metrics: Any = ()) -> list[Any]:
            return list(metrics)

    mlflow = imported("mlflow.tracking.client", monkeypatch, MlflowClient=MlflowClient)
    assert mlflow.MlflowClient().log_batch("a", iter([1, 2])) == [1, 2]


def test_keras_and_hugging_face_callbacks_are_recorded(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class CallbackList:
        params: ClassVar = {"epochs": 5}

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...

    class CallbackHandler:
        def on_log(self, args: Any, state: Any, control: Any, logs: Any) -> str:
            return "control"

    keras = imported("keras.src.callbacks.callback_list", monkeypatch, CallbackList=CallbackList)
    huggingface = imported("transformers.trainer_callback", monkeypatch, CallbackHandler=CallbackHandler)
    with using(InstanceInfo(run="r1")):
        for epoch in range(4):
            keras.CallbackList().on_epoch_end(epoch, {"loss": 0.5})
    with using(InstanceInfo(run="r2")):
        for step in (10, 20, 30):
            state = types.SimpleNamespace(global_step=step, max_steps=300)
            assert huggingface.CallbackHandler().on_log(None, state, None, {"loss": 0.5, "epoch": 0.1}) == "control"
    store = stored(spool)
    assert store.latest("r1", 0) == {"loss": 0.5, "epoch": 4}
    assert store.latest("r2", 0) == {"step": 30, "loss": 0.5, "epoch": 0.1}
    assert [(found.value, found.total) for found in map(store.progress, ("r1", "r2")) if found] == [(4, 5), (30, 300)]


# -- progress --------------------------------------------------------------------------------------------


def test_progress_and_time_left_of_the_slowest_rank_are_shown() -> None:
    store = MetricStore()
    for rank in (0, 1):
        for second in range(20):
            line = {"at": 1000.0 + second, "run": "r1", "values": {"step": second * (3 - rank), "total": 100}}
            store.feed("m", rank, json.dumps(line).encode() + b"\n")
    progress = store.progress("r1")
    assert progress is not None and (progress.value, progress.rate) == (38, 2)
    assert progress_text(progress, 1019.0) == "38 % · 0:31 left · 2 it/s"
    assert progress_text(progress, 1021.0) == "38 % · 0:29 left · 2 it/s"
    assert progress_text(progress, 1100.0) == "38 %", "nothing has come for long"


@pytest.mark.parametrize(
    ("values", "shown"),
    [([1, 2], False), ([1, 2, 3], True), ([1, 2, 2, 2], False), ([1, 2, 1, 2], False), ([1, 2, 3, 1], False)],
)
def test_progress_is_shown_after_three_rising_values(values: list[int], shown: bool) -> None:
    tracker = ProgressTracker()
    for at, value in enumerate(values):
        tracker.add(at, [value, 9, 1])
    assert (tracker.current is not None) == shown


def test_progress_of_an_outer_bar_is_shown_while_inner_ones_come_and_go() -> None:
    tracker = ProgressTracker()
    for at in range(3, 40):
        tracker.add(at, [at, 100, 0])
        for inner in range(4):
            tracker.add(at + inner / 10, [inner, 3, 0])
        assert (found := tracker.current) is None or found.total in (100, 3)
    assert tracker.current is not None and tracker.current.total == 100


def test_bar_that_begins_again_in_one_process_is_not_the_progress_of_the_run() -> None:
    store = MetricStore()

    def shown(values: list[int], file: str) -> float | None:
        for value in values:
            line = {"at": 1000.0 + value, "run": "r1", "values": {}, "src": "log", "done": [value, 9, 0]}
            store.feed(file, 0, json.dumps(line).encode() + b"\n")
        progress = store.progress("r1")
        return None if progress is None else progress.value

    assert shown([1, 5, 9], "r0.0.metrics") == 9
    assert shown([1, 5, 8], "r0.1.metrics") == 8, "another attempt"
    assert shown([1, 5, 8], "r0.1.metrics") is None


async def test_progress_is_in_header_live_summary_and_terminal_title(monkeypatch: pytest.MonkeyPatch) -> None:
    view = PoolView("p")
    apply(view, events.PoolOpened(pool="p", spec={"nodes": 1}, created_at=0.0))
    apply(view, events.RunOpened(pool="p", run="r1", function="f", kind="broadcast", total=1, at=0.0))
    run = view.runs["r1"]
    app = SkywardApp()
    written: list[str] = []
    monkeypatch.setattr(app, "_write_to_terminal", written.append)

    def shown() -> tuple[str, str]:
        header = " ".join(part.plain for part in pool_status(view, run, 30.0))
        summary = status_rows(view, run, "", 30.0)[0][0]
        app._show_title([view], 30.0)
        return header, summary

    header, summary = shown()
    assert "%" not in header + summary and written == []
    for at in (10, 20, 30):
        view.metrics.add_values("r1", 0, at, {"step": at, "total": 50})
    header, summary = shown()
    assert "1 rank · 60 % · 0:20 left · 1 it/s" in header and "0:30  60 % · 0:20 left · 1 it/s  pool" in summary
    assert written == ["\x1b[22;2t\x1b]2;60 % · 0:20 left · 1 it/s · skyward-tui\x07"]
    apply(view, events.RunEnded(pool="p", run="r1", state="done", at=31.0))
    assert "%" not in "".join(shown()) and written[1:] == ["\x1b[23;2t"]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.just(9),
            st.sampled_from([0, 1]),
        )
        | st.tuples(
            st.floats(allow_nan=True) | st.integers(-9, 9),
            st.floats(allow_nan=True) | st.sampled_from([3, 9]),
            st.integers(-1, 6) | st.just(float("nan")) | st.none(),
        )
    )
)
def test_progress_is_absent_or_follows_three_rising_values_of_one_total(given: list[Any]) -> None:
    tracker = ProgressTracker()
    rising: dict[tuple[float, float], list[float]] = {}
    for at, done in enumerate(given):
        tracker.add(at, done)
        value, total, kind = done
        if isinstance(kind, int) and 0 <= kind <= 5 and 0 <= value <= total < 1e308 and total > 0:
            seen = rising.setdefault((kind, total), [])
            if seen and value < seen[-1]:
                seen.clear()
            if not seen or value > seen[-1]:
                seen.append(value)
        found = tracker.current
        if found is None:
            continue
        values = [seen for (_, total), seen in rising.items() if total == found.total and seen[-1:] == [found.value]]
        assert any(len(seen) >= 3 for seen in values)
        assert 0 <= found.fraction <= 1
        left = found.seconds_left(at)
        assert left is None or left >= 0
    assert len(tracker._found) <= MAX_PROGRESSES
