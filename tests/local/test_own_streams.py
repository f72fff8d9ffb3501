"""A rank's children open their own standard output and error anew, in every way: no byte is lost, none comes twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import skyward_core as sky
from tests.support.pool_logs import last_run, log_of, settled
from tests.support.waiting import wait_until

WAYS = (
    "echo {line} > /dev/stderr",
    "echo {line} >> /dev/stderr",
    "echo {line} > /dev/stdout",
    "echo {line} | tee /dev/stderr > /dev/null",
    "echo {line} >&2",
    "echo {line}",
    "exec 2>/dev/stderr; echo {line} >&2",
    "echo {line} > /proc/self/fd/2",
)
TO_STDOUT = (2, 5)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("seed", [1, 2])
def test_no_line_is_lost_and_each_stream_keeps_its_order(pool: sky.Compute, seed: int) -> None:
    def job(seed: int) -> tuple[list[str], list[str]]:
        chance = random.Random(seed)
        said: dict[str, list[str]] = {"out": [], "err": []}
        for number in range(25):
            line = f"python-{number}"
            stream = chance.choice(("out", "err"))
            print(line, file=sys.stderr if stream == "err" else sys.stdout)
            said[stream].append(line)
            script = []
            for part in range(chance.randrange(4)):
                way = chance.randrange(len(WAYS))
                line = f"child-{number}-{part}"
                script.append(WAYS[way].format(line=line))
                said["out" if way in TO_STDOUT else "err"].append(line)
            if chance.random() < 0.5:
                subprocess.run(["bash", "-c", "\n".join(script)], check=True)
            else:
                assert os.system("\n".join(script) or "true") == 0
        return said["out"], said["err"]

    ((out, err), *_) = sky.function(job)(seed) @ pool
    run = last_run(pool)
    settled(pool)
    assert log_of(pool, run, 0).decode().splitlines() == out
    assert log_of(pool, run, 0, "err").decode().splitlines() == err


def test_exit_statuses_and_redirected_streams_are_as_ever(pool: sky.Compute) -> None:
    def job() -> tuple[int, int, bytes]:
        done = subprocess.run(["sh", "-c", "echo both; echo of them >&2"], stdout=-1, stderr=-2, check=True)
        return os.system("exit 3"), os.system("kill -9 $$"), done.stdout

    assert sky.function(job)() @ pool == [(3 << 8, 9, b"both\nof them\n")] * 4


def test_a_child_that_prints_much_while_nobody_prints(pool: sky.Compute) -> None:
    def job() -> None:
        subprocess.run(["sh", "-c", "seq 1 200000; seq 1 1000 >&2"], check=True)

    sky.function(job)() @ pool
    run = last_run(pool)
    settled(pool)
    assert log_of(pool, run, 2).split() == [b"%d" % n for n in range(1, 200_001)]
    assert log_of(pool, run, 2, "err").split() == [b"%d" % n for n in range(1, 1001)]


def all_end_with(pool: sky.Compute, text: bytes) -> bool:
    runs = pool.pool.view.runs
    return bool(runs) and all(log_of(pool, last_run(pool), rank, "err").endswith(text) for rank in range(4))


def test_a_rank_that_empties_its_own_log_is_said_and_goes_on_being_heard(pool: sky.Compute, tmp_path: Path) -> None:
    fetched, heard = tmp_path / "fetched", tmp_path / "heard"

    def job(fetched: str, heard: str) -> None:
        for number in range(200):
            print(f"before {number}", file=sys.stderr)
        while not Path(fetched).exists():
            time.sleep(0.01)
        with open("/dev/stderr", "w") as anew:
            anew.write("in its place\n")
        while not Path(heard).exists():
            time.sleep(0.01)
        print("after", file=sys.stderr)

    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: sky.function(job)(str(fetched), str(heard)) @ pool)
        try:
            wait_until(lambda: all_end_with(pool, b"before 199\n"))
            fetched.touch()
            wait_until(lambda: all_end_with(pool, b"in its place\n"))
        finally:
            fetched.touch()
            heard.touch()
        running.result()
    run = last_run(pool)
    settled(pool)
    before, said, place, after = log_of(pool, run, 3, "err").decode().rsplit("\n", 4)[0:4]
    assert before.rstrip().splitlines() == [f"before {number}" for number in range(200)]
    assert said.startswith("skyward: rank 3 reopened this stream and truncated it")
    assert (place, after) == ("in its place", "after")
