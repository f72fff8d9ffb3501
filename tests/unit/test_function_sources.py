"""Source texts of functions on client, agent and rank, and metric summaries of outcomes."""

from __future__ import annotations

import json
import linecache
import os
import zlib
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.function import function
from skyward_core.model.outcomes_states_and_alerts import Outcome
from skyward_core.node.agent.client_requests import save_source
from skyward_core.node.worker.call_unpickling_and_script_modules import SourceFiles
from skyward_core.protocol.frame_codec import MAX_INLINE_BYTES
from skyward_core.protocol.node_paths import NodePaths
from skyward_core.protocol.validators import is_metric_summary
from skyward_core.runtime.metric_logging import MAX_CALLS, MAX_NAME_LENGTH, MAX_NAMES, MetricSummaries
from skyward_core.tasks.function_pickling import MAX_SOURCE_BYTES, collect_sources, make_task
from skyward_core.tasks.pickled_calls_and_blobs import EMPTY_BLOB, Blob, SourceText, Task, read_tasks, write_tasks
from skyward_core.util.content_hash import hash_bytes

TEXT = b"def f():\n    return 1\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "client" / "train.py"
    path.parent.mkdir()
    path.write_bytes(TEXT)
    return path


def test_sources_of_files_links_and_notebook_cells_are_collected(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (link := tmp_path / "my link.py").symlink_to(script)
    monkeypatch.setitem(linecache.cache, "<cell 1>", (5, None, ["a = 1\n", "b\n"], "<cell 1>"))
    named, sources = collect_sources([str(link), "<cell 1>", "<string>", "<cell 2>", os.__file__, pytest.__file__])
    assert named == {
        str(link): (str(script), hash_bytes(TEXT), "train.py"),
        "<cell 1>": ("", hash_bytes(b"a = 1\nb\n"), "cell.py"),
    }
    assert [each.data for each in sources] == [TEXT, b"a = 1\nb\n"]


def test_edited_source_is_read_again_and_large_source_is_skipped(script: Path) -> None:
    script.write_bytes(b"# longer\n" + TEXT)
    assert collect_sources([str(script)])[1][0].data.startswith(b"# longer")
    (odd := script.with_name("ä b.py")).write_bytes(TEXT)
    assert collect_sources([str(odd)])[1][0].name == "script.py"
    odd.write_bytes(bytes(MAX_SOURCE_BYTES + 1))
    assert collect_sources([str(odd), str(script.parent)]) == ({}, ())


def test_source_of_a_task_survives_writing_and_reading(script: Path, tmp_path: Path) -> None:
    space: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    exec(compile(TEXT, str(script), "exec"), space)
    task = make_task(function(space["f"])())
    expected = (SourceText(hash_bytes(TEXT), "train.py", str(script), TEXT),)
    assert task.fn.sources == expected
    assert task.args.sources == ()
    write_tasks([task], tmp_path)
    assert read_tasks(tmp_path)[0].fn.sources == expected


@pytest.mark.parametrize("more", [0, 1])
def test_only_calls_that_fit_into_a_frame_are_read_into_memory(more: int, tmp_path: Path) -> None:
    data = bytes(MAX_INLINE_BYTES + more)
    write_tasks([Task("f", Blob(hash_bytes(data), len(data), data), EMPTY_BLOB)], tmp_path)
    (task,) = read_tasks(tmp_path)
    assert (task.fn.read(), task.fn.data is None) == (data, bool(more))


def test_agent_saves_a_source_once_in_a_private_folder(tmp_path: Path) -> None:
    paths = NodePaths(str(tmp_path))
    file = Path(paths.source("c0", "train.py"))
    save_source(paths, "c0", "train.py", zlib.compress(TEXT))
    assert file.read_bytes() == TEXT
    assert file.parent.stat().st_mode & 0o077 == 0
    save_source(paths, "c0", "train.py", b"never read")
    assert [each.name for each in file.parent.iterdir()] == ["train.py"]
    with pytest.raises(ValueError, match=r"source other.py is damaged"):
        save_source(paths, "c1", "other.py", b"no text")
    save_source(paths, "c2", "bomb.py", zlib.compress(bytes(8 << 20)))
    assert Path(paths.source("c2", "bomb.py")).stat().st_size == 1 << 20


def test_rank_uses_local_source_file_if_equal_and_saved_copy_otherwise(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linecache, "cache", {})
    paths, node = NodePaths(str(tmp_path / "agent")), tmp_path / "node"
    named, (source,) = collect_sources([str(script)])
    find = partial(SourceFiles(paths.sources, str(node), str(script.parent)).find, named)
    assert find() == {str(script): str(script)}  # nothing is here
    save_source(paths, source.hash, source.name, zlib.compress(source.data))
    assert find() == {str(script): paths.source(source.hash, "train.py")}  # it lay in no folder that travelled
    node.mkdir()
    (copy := node / "train.py").write_bytes(TEXT)
    assert find() == {str(script): str(copy)}
    assert linecache.cache == {}
    copy.write_bytes(b"# an older one\n")  # than what is called
    assert find() == {str(script): str(copy)}
    linecache.checkcache()
    assert linecache.getlines(str(copy)) == TEXT.decode().splitlines(keepends=True)
    # Where both see the same files there is nothing to find.
    assert SourceFiles(paths.sources).find(named) == {}
    # A folder beside whose name only begins alike is another.
    assert SourceFiles(paths.sources, str(node), str(script.parent)[:-1]).copy_of(str(script)) == ""


def test_source_of_a_notebook_cell_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linecache, "cache", {})
    paths = NodePaths(str(tmp_path))
    save_source(paths, "c0", "cell.py", zlib.compress(TEXT))
    assert SourceFiles(paths.sources).find({"<cell 1>": ("", "c0", "cell.py")}) == {}
    assert linecache.getline("<cell 1>", 2) == "    return 1\n"


# What is left of the numbers of a call.


def test_metric_summary_has_last_minimum_and_maximum_once() -> None:
    gists = MetricSummaries()
    for loss in (2.0, 0.5, 1):
        gists.add("r", 3, {"loss": loss})
    gists.add("r", 4, {"loss": 9.0})
    gists.add("r", -1, {"loss": 7.0})
    assert gists.pop("r", 3) == {"loss": [1.0, 0.5, 2.0]}
    assert gists.pop("r", 3) == {}
    assert gists.pop("r", -1) == {}


def test_non_finite_values_in_a_metric_summary_are_none() -> None:
    gists = MetricSummaries()
    for number in (1.0, nan):
        gists.add("r", 0, {"a": number, "b": nan, "c": inf, "d": 10**400})
    assert gists.pop("r", 0) == {
        "a": [None, 1.0, 1.0], "b": [None, None, None], "c": [None, None, None], "d": [None, None, None]
    }  # fmt: skip


def test_metric_summaries_bound_names_and_calls() -> None:
    gists = MetricSummaries()
    gists.add("r", 0, {f"n{i}": 1.0 for i in range(MAX_NAMES + 5)} | {"x" * (MAX_NAME_LENGTH + 1): 1.0})
    assert len(gists.pop("r", 0)) == MAX_NAMES
    for call in range(MAX_CALLS + 1):
        gists.add("r", call, {"a": 1.0})
    assert gists.pop("r", 0) == {} and gists.pop("r", MAX_CALLS)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ([1.0, 0.5, 2.0], True), ([None, None, None], True), ([1.0, 0.5], False), ([1, 0.5, 2.0], False),
        ([nan, 0.5, 2.0], False), ([inf, 0.5, 2.0], False), (["1", 0.5, 2.0], False), ({"last": 1.0}, False),
        (None, False),
    ],
)  # fmt: skip
def test_metric_summary_of_an_agent_is_validated(value: object, fits: bool) -> None:
    assert is_metric_summary(value) is fits


def test_metric_summary_of_an_outcome_is_saved() -> None:
    data = Outcome(0, 0, 0, "returned", metrics={"loss": [1.0, 0.5, 2.0]}).to_json()
    assert Outcome.from_json(json.loads(json.dumps(data))).metrics == {"loss": [1.0, 0.5, 2.0]}
    del data["numbers"]
    assert Outcome.from_json(data).metrics is None
