"""What a client remembers to have fetched: nothing of it is lost by a line that a full disk or a crash cut short."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from skyward_core.model.function import function
from skyward_core.model.output_files import WrittenFile
from skyward_core.pool import output_files
from skyward_core.pool.output_files import OutputRecord
from skyward_core.runtime.instance_info import InstanceInfo, using
from skyward_core.runtime.output_decorators import silent, stderr, stdout


def test_a_line_that_was_cut_short_takes_no_other_with_it(tmp_path: Path) -> None:
    target, record = tmp_path / "model.pt", tmp_path / "outputs.jsonl"
    target.write_text("weights")
    first, second = (WrittenFile("model.pt", 7, 0.0, node, "v") for node in (0, 1))
    OutputRecord(record).add(first, target)
    with record.open("ab") as file:
        file.write(record.read_bytes().strip()[:40])
    OutputRecord(record).add(second, target)
    found = OutputRecord(record)
    assert found.latest_at(target) is not None and [row.node for row in found.copies_of(second)] == [1]


def test_what_came_from_one_node_of_a_shared_disk_is_here_though_another_names_it(tmp_path: Path) -> None:
    target, record = tmp_path / "model.pt", OutputRecord(tmp_path / "outputs.jsonl")
    target.write_text("weights")
    record.add(WrittenFile("model.pt", 7, 0.0, 1, "7.99.3"), target)
    assert [row.node for row in record.copies_of(WrittenFile("model.pt", 7, 0.0, 0, "7.99.3"))] == [1]
    assert record.copies_of(WrittenFile("model.pt", 7, 0.0, 0, "7.100.3")) == []


def test_a_full_disk_that_takes_half_a_line_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.pt"
    target.write_text("weights")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
    with pytest.raises(OSError, match="No space left"):
        OutputRecord(tmp_path / "outputs.jsonl").add(WrittenFile("model.pt", 7, 0.0, 0, "v"), target)


def test_threads_that_read_the_record_together_skip_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of different nodes are fetched in threads; a skipped line is a file that is fetched twice."""
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
    """The ranks whose call printed to standard output, and those that printed to standard error."""
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
def test_only_the_chosen_ranks_speak(decorator, out, err, capsys):
    assert speakers(decorator(talk), capsys) == (out, err)


def test_decorators_nest(capsys):
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
def test_either_side_of_function(order, decorator, capsys):
    task = decorator(function(talk)) if order == "above" else function(decorator(talk))
    assert type(task) is type(function(talk))
    assert task.__name__ == "talk"  # type: ignore[attr-defined]
    assert speakers(task.local, capsys) == ([0], ALL)


def test_above_function_keeps_its_time_limit():
    assert stdout(only=1)(function(timeout=5)(talk)).timeout == 5


@pytest.mark.parametrize("decorator", [stdout(only="head"), silent])
def test_decorated_functions_travel(decorator, capsys):
    source = "def say():\n    print('x')\n    return 'done'\n"
    namespace = {"__name__": "__main__"}
    exec(source, namespace)
    copy = cloudpickle.loads(cloudpickle.dumps(decorator(namespace["say"])))
    expected = [0] if decorator is not silent else []
    assert speakers(copy, capsys)[0] == expected


def test_output_returns_after_an_exception(capsys):
    @silent
    def fails():
        print("hidden")
        raise ValueError("seen")

    with pytest.raises(ValueError, match="seen"):
        fails()
    print("after")
    assert capsys.readouterr().out == "after\n"


def test_a_generator_is_silent_only_while_its_body_runs(capsys):
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


def test_threads_of_the_same_process_go_on_printing(capsys):
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


def test_threads_that_a_silenced_task_starts_are_silent(capsys):
    @silent
    def train():
        helper = threading.Thread(target=print, args=("progress",))
        helper.start()
        helper.join()

    train()
    assert capsys.readouterr().out == ""


def test_loggers_and_bytes_made_inside_are_silent_too(capfdbinary):
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
def test_a_wrong_choice_is_refused(only, error):
    with pytest.raises(error, match="only="):
        stdout(only=only)


def test_a_process_without_streams():
    code = (
        "import sys; sys.stdout = None; from skyward_core.runtime.output_decorators import silent; "
        "sys.exit(silent(lambda: 7)())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
