"""Record of fetched output files, decorators that silence ranks, and patterns of output files."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.model.errors import SpecError
from skyward_core.model.function import function
from skyward_core.model.output_files import (
    CHANGED_MESSAGE,
    MAX_NAMED_FILES,
    FetchedFile,
    WrittenFile,
    list_failed_files,
    matches,
    may_contain,
    normalize_pattern,
)
from skyward_core.model.specs import Image
from skyward_core.node.agent import output_checkpoint_and_source_files
from skyward_core.node.agent.output_checkpoint_and_source_files import (
    OutputFile,
    file_version,
    find_missing_checkpoints,
    find_written_files,
)
from skyward_core.node.bootstrap.receive_working_folder import FolderItem, to_json
from skyward_core.pool import output_files
from skyward_core.pool.output_files import FileListing, OutputFetcher, OutputRecord, Outputs, _select_newest
from skyward_core.protocol.validators import is_relative_subpath
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, using
from skyward_core.runtime.output_decorators import silent, stderr, stdout
from skyward_core.transport.file_and_result_downloads import IncomingOutput
from tests.support.examples import examples


@pytest.mark.parametrize(("more", "text"), [(0, "0, 1, 2, 3, 4"), (2, "0, 1, 2, 3, 4 and 2 more")])
def test_files_that_fail_for_one_reason_are_named_up_to_a_limit(more: int, text: str) -> None:
    written = [WrittenFile(str(number), 1, 0.0, 3, "v") for number in range(MAX_NAMED_FILES + more)]
    assert list(list_failed_files(FetchedFile(each, Path(), "full") for each in written)) == [(text, 3, "full")]


def test_truncated_line_of_the_output_record_hides_no_other(tmp_path: Path) -> None:
    target, record = tmp_path / "model.pt", tmp_path / "outputs.jsonl"
    target.write_text("weights")
    first, second = (WrittenFile("model.pt", 7, 0.0, node, "v") for node in (0, 1))
    OutputRecord(record).add(first, target)
    with record.open("ab") as file:
        file.write(record.read_bytes().strip()[:40])
    OutputRecord(record).add(second, target)
    found = OutputRecord(record)
    assert found.latest_at(target) is not None and [row.node for row in found.copies_of(second)] == [1]


def test_copy_of_a_file_on_a_shared_disk_counts_for_every_node(tmp_path: Path) -> None:
    target, record = tmp_path / "model.pt", OutputRecord(tmp_path / "outputs.jsonl")
    target.write_text("weights")
    record.add(WrittenFile("model.pt", 7, 0.0, 1, "7.99.3"), target)
    assert [row.node for row in record.copies_of(WrittenFile("model.pt", 7, 0.0, 0, "7.99.3"))] == [1]
    assert record.copies_of(WrittenFile("model.pt", 7, 0.0, 0, "7.100.3")) == []


def test_whole_version_of_a_file_is_kept_if_its_writer_is_killed_during_the_next_save(tmp_path: Path) -> None:
    target, record = tmp_path / "model.json", OutputRecord(tmp_path / "outputs.jsonl")
    target.write_text("{}")
    record.add(WrittenFile("model.json", 2, 0.0, 0, "v1"), target)
    for text in ("{", "[1"):
        file = WrittenFile("model.json", len(text), 2e9, 0, text)
        incoming = IncomingOutput(tmp_path, "model.json", len(text), text)
        incoming.write(text.encode())
        incoming.is_verified = True
        assert OutputFetcher(None, record)._store(file, target, incoming)  # type: ignore[arg-type]
        chosen = _select_newest(record.rows())
        assert (target.read_text(), Path(chosen.target).read_text(), chosen.version) == (text, "{}", "v1")


def test_partial_write_of_the_output_record_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.pt"
    target.write_text("weights")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
    with pytest.raises(OSError, match="No space left"):
        OutputRecord(tmp_path / "outputs.jsonl").add(WrittenFile("model.pt", 7, 0.0, 0, "v"), target)


def test_concurrent_readers_of_the_output_record_skip_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of different nodes are fetched by threads, and a skipped line would fetch a file twice."""
    record = OutputRecord(tmp_path / "outputs.jsonl")
    files = [WrittenFile(f"model{number}.pt", 1, 0.0, number, "v") for number in range(4)]
    for file in files:
        (tmp_path / file.path).write_text("w")
    together = threading.Barrier(2)

    def open_together(*args: Any) -> Any:
        source = open(*args)  # noqa: SIM115
        with suppress(threading.BrokenBarrierError):
            together.wait(0.2)  # one thread alone goes on after that
        return source

    record.add(files[0], tmp_path / files[0].path)
    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(output_files, "open", open_together, raising=False)
        list(threads.map(record.copies_of, files[:2]))
    for file in files[1:]:
        record.add(file, tmp_path / file.path)
    assert [len(record.copies_of(file)) for file in files] == [1, 1, 1, 1]


# Who of a gang may print.


def speakers(fn, capsys, world_size=3):
    """Return the ranks whose call printed to standard output, and those that printed to standard error."""
    out, err = [], []
    for rank in range(world_size):
        with using(InstanceInfo(rank=rank, world_size=world_size, node=rank, total_nodes=world_size)):
            assert fn() == "done"
        seen = capsys.readouterr()
        out += [rank] if seen.out else []
        err += [rank] if seen.err else []
    return out, err


def talk():
    print("to out")
    print("to err", file=sys.stderr)
    return "done"


ALL = [0, 1, 2]


@pytest.mark.parametrize(
    ("decorator", "out", "err"),
    [
        (stdout(only="head"), [0], ALL),
        (stdout, [0], ALL),
        (stdout(only=2), [2], ALL),
        (stdout(only=lambda info: info.node < 2), [0, 1], ALL),
        (stderr(only="head"), ALL, [0]),
        (stderr(only=lambda info: False), ALL, []),
        (silent, [], []),
        (silent(), [], []),
        (silent(only=1), [1], [1]),
    ],
)
def test_only_selected_ranks_print(decorator, out, err, capsys):
    assert speakers(decorator(talk), capsys) == (out, err)


def test_output_decorators_nest(capsys):
    assert speakers(stdout(only="head")(stderr(only=1)(talk)), capsys) == ([0], [1])
    # The inner one's end must not let the outer one's silence go.
    inner = stdout(only=1)(talk)

    @stdout(only=0)
    def outer():
        inner()
        return talk()

    assert speakers(outer, capsys) == ([0], ALL)


@pytest.mark.parametrize("order", ["above", "below"])
@pytest.mark.parametrize("decorator", [stdout(only="head"), stdout])
def test_output_decorator_works_above_and_below_function(order, decorator, capsys):
    task = decorator(function(talk)) if order == "above" else function(decorator(talk))
    assert type(task) is type(function(talk))
    assert task.__name__ == "talk"  # type: ignore[attr-defined]
    assert speakers(task.local, capsys) == ([0], ALL)


def test_output_is_printed_again_after_an_exception(capsys):
    @silent
    def fails():
        print("hidden")
        raise ValueError("seen")

    with pytest.raises(ValueError, match="seen"):
        fails()
    print("after")
    assert capsys.readouterr().out == "after\n"


def test_generator_is_silenced_only_while_its_body_runs(capsys):
    ended = []

    @stdout(only=1)
    def numbers():
        print("body")
        try:
            got = yield 1
            print("body", got)
            try:
                yield 2
            except KeyError:
                print("body caught")
            yield 3
        finally:
            print("body end")
            ended.append(True)
        return "value"

    generator = numbers()
    assert next(generator) == 1
    print("consumer")
    assert generator.send("x") == 2
    assert generator.throw(KeyError()) == 3
    generator.close()
    assert ended == [True]
    assert capsys.readouterr().out == "consumer\n"

    def last():
        yield from ()
        return "value"

    with pytest.raises(StopIteration) as stop:
        next(silent(last)())
    assert stop.value.value == "value"


def test_other_threads_of_a_silenced_process_still_print(capsys):
    inside, printed = threading.Event(), threading.Event()

    @silent
    def quiet():
        inside.set()
        assert printed.wait(10)
        print("hidden")

    def neighbour():
        assert inside.wait(10)
        print("neighbour")
        printed.set()

    threads = [threading.Thread(target=quiet), threading.Thread(target=neighbour)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert capsys.readouterr().out == "neighbour\n"


def test_threads_started_by_a_silenced_function_are_silenced(capsys):
    @silent
    def train():
        helper = threading.Thread(target=print, args=("progress",))
        helper.start()
        helper.join()

    train()
    assert capsys.readouterr().out == ""


def test_loggers_and_raw_bytes_of_a_silenced_function_are_silenced(capfdbinary):
    @silent
    def train():
        handler = logging.StreamHandler()
        handler.emit(logging.makeLogRecord({"msg": "logged"}))
        sys.stdout.buffer.write(b"raw")
        sys.stdout.writelines(["a\n"])
        sys.stdout.flush()
        return handler

    handler = train()
    sys.stdout.buffer.write(b"after")
    sys.stdout.flush()
    handler.emit(logging.makeLogRecord({"msg": "heard"}))
    seen = capfdbinary.readouterr()
    assert seen.out == b"after"
    assert seen.err == b"heard\n"


@pytest.mark.parametrize(
    ("only", "error"), [("tail", TypeError), (True, TypeError), (1.5, TypeError), (-1, ValueError)]
)
def test_output_decorator_rejects_invalid_rank_selection(only, error):
    with pytest.raises(error, match="only="):
        stdout(only=only)


def test_silent_works_in_a_process_without_streams():
    code = (
        "import sys; sys.stdout = None; from skyward_core.runtime.output_decorators import silent; "
        "sys.exit(silent(lambda: 7)())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7


# Patterns select files of the working folder, and no name leads out of the folder, neither one from a rank nor one from
# a client.

NAMES = st.text("ab.*?[]!-~ \n\x1b\\é\udcff", min_size=1, max_size=6) | st.sampled_from(["..", ".", "", "**", "*.pt"])
LEADS_TO = ["/etc", "..", "a", "d", "l", "../outside", "../../outside"]
PATHS = st.lists(NAMES, min_size=1, max_size=5).map("/".join)


@pytest.mark.parametrize(
    ("path", "text", "meant"),
    [
        ("out/a", "out/**", True), ("out/x/a", "out/**", True), ("a/out/x", "out/**", False),
        ("x/y/a.pt", "*.pt", True), ("x/a.ptx", "*.pt", False), ("ck/b/a.pt", "ck/*.pt", False),
        ("ck/a.pt", "ck/**/*.pt", True), ("ck/b/c/a.pt", "ck/**/*.pt", True), ("a/b/c", "**/c", True),
        ("b/out/c", "out", True), ("out/c", "./out/", True), ("a\nb/c", "a?b/c", True),
    ],
)  # fmt: skip
def test_output_patterns_match_paths(path: str, text: str, meant: bool) -> None:
    assert matches(path, [normalize_pattern(text)]) is meant
    assert matches(path, [])


@pytest.mark.parametrize("text", ["/etc/passwd", "../x", "a/../../b", "~/x", "", ".", "a//b", "a\0b", 3])
def test_output_pattern_outside_the_folder_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"leads out|names no files|should be text"):
        normalize_pattern(text)
    with pytest.raises(SpecError, match="outputs"):
        Image(outputs=[text])


@given(path=PATHS, text=PATHS)
def test_any_output_pattern_stays_below_the_folder(path: str, text: str) -> None:
    leads_out = path.startswith("/") or path == ".." or path.startswith("../")
    assert is_relative_subpath(path) == (os.path.normpath(path) == path and not leads_out and path != ".")
    try:
        pattern = normalize_pattern(text)
    except ValueError:
        return
    assert ".." not in pattern.split("/") and not pattern.startswith("/")
    assert matches(path, [pattern]) in (True, False)


def test_output_pattern_matches_in_bounded_time() -> None:
    assert not matches("/".join("a" * 60 for _ in range(60)), ["**/" * 30 + "*a" * 30 + "b"])


@settings(max_examples=examples(60), deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a", "b", "d/a", "d/e/a", "é\n", "\udcff"]), st.binary(max_size=9), max_size=5),
    st.dictionaries(st.sampled_from(["l", "d/l", "m"]), st.sampled_from(LEADS_TO), max_size=4),
    PATHS,
)
def test_only_regular_files_of_the_working_folder_are_readable(
    files: dict[str, bytes], links: dict[str, str], asked: str
) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "copy"
        (folder / "d/e").mkdir(parents=True)
        (Path(made) / "outside").write_bytes(b"secret")
        Path(f"{folder}.json").write_bytes(to_json([FolderItem("sent", 1, 5, 0o644)]))
        (folder / "sent").write_bytes(b"s")
        os.utime(folder / "sent", ns=(5, 5))
        for path, data in files.items():
            (folder / path).write_bytes(data)
        for path, target in links.items():
            (folder / path).symlink_to(target)
        rows, more = find_written_files(str(folder), [], 0.0, float("inf"))
        assert more == 0 and {row["path"] for row in rows} == set(files)
        for row in rows:
            file = OutputFile(str(folder), row["path"], row["version"])
            assert b"".join(file.read_chunks(0)) == files[row["path"]]
            file.check_unchanged()
            file.close()
        for path in (asked, *links, *(f"{link}/a" for link in links), f"l/../../{'outside'}"):
            for look in (Path.lstat, Path.stat):  # of the link, and of what it leads to
                try:
                    OutputFile(str(folder), path, file_version(look(folder / path))).close()
                except (OSError, ValueError):
                    continue
                assert path in files or path == "sent"


PARTS_OF_NAMES = st.sampled_from(["a", "b", "out", "x.pt", "\udcff"])
PATTERNS = st.lists(st.sampled_from(["*.pt", "out/**", "a/*/x.pt", "**/b/*", "a", "b/out"]), max_size=2)


@settings(max_examples=examples(60), deadline=None)
@given(st.sets(st.lists(PARTS_OF_NAMES, min_size=1, max_size=4).map("/".join), max_size=12), PATTERNS)
def test_output_files_are_listed_completely_in_parts(paths: set[str], patterns: list[str]) -> None:
    files = {path for path in paths if not any(other.startswith(f"{path}/") for other in paths)}
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        folder = Path(made) / "copy"
        Path(f"{folder}.json").write_bytes(to_json([]))
        folder.mkdir()
        for path in files:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
        meant = sorted(path for path in files if matches(path, patterns))
        patch.setattr(output_checkpoint_and_source_files, "MAX_LISTED_FILES", 2)
        named: list[str] = []
        while True:
            rows, more = find_written_files(str(folder), patterns, 0.0, float("inf"), named[-1] if named else "")
            named += [row["path"] for row in rows]
            assert more == len(meant) - len(named)
            if not more:
                break
        assert named == meant
        # Where there is too much to look at, that is told.
        patch.setattr(output_checkpoint_and_source_files, "MAX_SCANNED_FILES", 3)
        rows, more = find_written_files(str(folder), patterns, 0.0, float("inf"))
        assert [row["path"] for row in rows] == meant[:2] or more


@given(PATHS, PATHS)
def test_folders_of_matching_output_files_are_entered(path: str, text: str) -> None:
    try:
        patterns = [normalize_pattern(text)]
    except ValueError:
        return
    if is_relative_subpath(path) and matches(path, patterns):
        names = path.split("/")
        assert all(may_contain("/".join(names[:many]), patterns) for many in range(1, len(names)))


def test_output_file_that_changes_while_read_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "x").write_bytes(b"1" * 3_000_000)
    version = file_version((folder / "x").lstat())
    for change in (b"2" * 3_000_000, b"short"):
        (folder / "x").write_bytes(b"1" * 3_000_000)
        version = file_version((folder / "x").lstat())
        file = OutputFile(str(folder), "x", version)
        pieces = file.read_chunks(1_000_000)
        got = len(next(pieces))
        (folder / "x").write_bytes(change)
        assert got + sum(map(len, pieces)) == 2_000_000  # as many as were said, so that a line goes on
        with pytest.raises(OSError, match=CHANGED_MESSAGE):
            file.check_unchanged()
        file.close()
        with pytest.raises(OSError, match=CHANGED_MESSAGE):
            OutputFile(str(folder), "x", version)


@pytest.mark.parametrize("on_loss", ["fail", "restart"])
async def test_scans_of_output_files_wait_longer_only_while_no_file_changes(
    monkeypatch: pytest.MonkeyPatch, on_loss: str
) -> None:
    waits: list[float] = []
    ages = iter([60.0] * 8 + [0.5] + [60.0] * 2)

    class Timeout:
        """Replacement of ``asyncio.timeout`` that expires at once."""

        def __init__(self, delay: float) -> None:
            waits.append(delay)

        async def __aenter__(self) -> None:
            raise TimeoutError

        async def __aexit__(self, *_: object) -> None: ...

    class Scanned(Outputs):
        def __init__(self) -> None:
            self._context, self._ended_runs, self._wake = context, {}, asyncio.Event()  # type: ignore[assignment]
            self._outdated: set[tuple[str, str]] = set()
            self._patterns = ()

        async def files(self, *_: Any, **__: Any) -> FileListing:
            age = next(ages, None)
            if age is None:
                context.registry.runs.clear()
            return FileListing([] if age is None else [WrittenFile("a.pt", 1, time.time() - age, 0, "v")], 0, {}, {})

        async def _fetch_files(self, *_: Any, **__: Any) -> list[FetchedFile]:
            return []

    async def update(*_: Any) -> None: ...

    context = SimpleNamespace(
        options=SimpleNamespace(on_loss=on_loss), detached=False, view=SimpleNamespace(state="stopping"),
        registry=SimpleNamespace(runs={"r1": None}), checkpoints=SimpleNamespace(update=update),
    )  # fmt: skip
    monkeypatch.setattr("asyncio.timeout", Timeout)
    await Scanned()._fetch_until_idle()
    longest = {"fail": 15.0, "restart": 5.0}[on_loss]
    assert (waits[:3], waits[8], waits[9:]) == ([2.0, 3.0, 4.5], longest, [2.0, 3.0, 4.5])


def saved(path: str, at: float, copy: bool = False) -> dict[str, Any]:
    return {"path": path, "version": f"{path}{at}", "size": 1, "at": at, "copy": copy}


@given(
    st.dictionaries(
        st.integers(0, 3),
        st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(1, 4).map(float), st.booleans())),
        min_size=1,
    )
)
def test_nodes_have_the_newest_checkpoints_after_they_fetched_the_missing_ones(
    nodes: dict[int, dict[str, tuple[float, bool]]],
) -> None:
    listed = {node: {path: saved(path, *each) for path, each in files.items()} for node, files in nodes.items()}
    given = {node: list(files.values()) for node, files in listed.items()}
    for node, missing in find_missing_checkpoints(given).items():  # type: ignore[arg-type]
        for file in missing:
            assert any(file is files.get(file["path"]) for other, files in listed.items() if other != node)
            mine = nodes[node].get(file["path"])
            assert mine is None or (mine[1] and mine[0] < file["at"]), "files of its own ranks are kept"
            nodes[node] = {**nodes[node], file["path"]: (file["at"], True)}
    for path in "abc":
        there = [files[path] for files in nodes.values() if path in files]
        assert len(there) in (0, len(nodes))
        assert all(at == max(there)[0] or not copy for at, copy in there)
