"""Whatever becomes of a command's output, its pools are torn down, and their receipts are stored and shown."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skyward_core.store.ledger import Ledger
from tests.support.cli import PATIENCE, PRELOADED, PROGRAM, Cli
from tests.support.forked import Loaded
from tests.support.forked_clients import run_script
from tests.support.waiting import wait_until

# BROKEN says of the process that is to begin: its streams' encoding, which of them are closed, what happens when it
# prints its Nth line (a signal, or an error), and N; "killed" is SIGKILL once a receipt was written, or was not.
BEGIN = """
import os, signal, sys
from itertools import count
from skyward_tui.cli.console import Console
sys.path[0] = os.getcwd()
encoding, closed, event, place = os.environ["BROKEN"].split(",")
for name in ("stdout", "stderr"):
    if name in closed:
        os.close(getattr(sys, name).fileno())
        setattr(sys, name, None)
    elif encoding:
        getattr(sys, name).reconfigure(encoding=encoding, errors="strict")
printed, print_ = count(1), Console._print
def _print(self, text, stream):
    if next(printed) == int(place):
        if event == "error":
            raise RuntimeError("a defect")
        os.kill(os.getpid(), getattr(signal, event))
    print_(self, text, stream)
    if event == "killed" and " is down: " in text:
        os.kill(os.getpid(), signal.SIGKILL)
if event:
    Console._print = _print
skyward_tui.cli.main.main()
"""
LOADED = Loaded([sys.executable], PRELOADED, BEGIN)
ENCODINGS = ("utf-8", "latin-1", "ascii", "cp437", "shift-jis")
STREAMS = ("pipe", "full", "closed", "gone", "head", "empty terminal")
EVENTS = ("", "SIGHUP", "SIGTERM", "error")


class Broken(NamedTuple):
    """How a command's output fails."""

    encoding: str = ""
    stdout: str = "pipe"
    stderr: str = "pipe"
    event: str = ""
    place: int = 0


class Ended(NamedTuple):
    """How a command ended, and what could be read of its output."""

    status: int
    out: str
    err: str


def call(cli: Cli, broken: Broken, *arguments: object) -> Ended:
    """Run a command whose output fails like that."""
    with ExitStack() as stack:
        ours: dict[str, int] = {}
        theirs: dict[str, int] = {}
        for name, kind in (("stdout", broken.stdout), ("stderr", broken.stderr)):
            if kind == "full":
                theirs[name] = os.open("/dev/full", os.O_WRONLY)
            elif kind == "empty terminal":
                ours[name], theirs[name] = pty.openpty()
                fcntl.ioctl(theirs[name], termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
            else:
                ours[name], theirs[name] = os.pipe()
            if kind == "gone":
                os.close(ours.pop(name))
        closed = "+".join(name for name in theirs if getattr(broken, name) == "closed")
        env = cli.env | {"BROKEN": f"{broken.encoding},{closed},{broken.event},{broken.place}"}
        del env["COLUMNS"]
        process = stack.enter_context(
            LOADED.start(
                [PROGRAM, *map(str, arguments)],
                cwd=cli.folder, env=env, stdin=subprocess.DEVNULL, **theirs,
            )
        )  # fmt: skip
        read: dict[str, bytes] = dict.fromkeys(theirs, b"")
        readers = [
            threading.Thread(target=_read, args=(name, end, getattr(broken, name) == "head", read))
            for name, end in ours.items()
        ]
        for end in theirs.values():
            os.close(end)
        for reader in readers:
            reader.start()
        status = process.wait(PATIENCE)
        for reader in readers:
            reader.join(PATIENCE)
    encoding = broken.encoding or "utf-8"
    return Ended(status, *(read[name].decode(encoding, "replace") for name in ("stdout", "stderr")))


def _read(name: str, end: int, first_alone: bool, read: dict[str, bytes]) -> None:
    with suppress(OSError):  # a terminal whose other end is closed
        while data := os.read(end, 1 << 16):
            read[name] += data
            if first_alone and b"\n" in data:
                break
    os.close(end)


def some_break(number: int, choose: random.Random) -> Broken:
    """Each event at each of the summary's five lines in turn, in any encoding and with any streams."""
    event, place = EVENTS[number % 4], 7 - number // 4 % 5
    return Broken(choose.choice(ENCODINGS), choose.choice(STREAMS), choose.choice(STREAMS), event, place)


def statuses(broken: Broken) -> set[int]:
    """What the command may end with."""
    interrupts = {"gone", "head"} & {broken.stdout, broken.stderr} or broken.event.startswith("SIG")
    fails = broken.event == "error" or broken.stdout == "full"
    return ({130} if interrupts else set()) | ({1} if fails else {0})


@pytest.mark.proof("4 s of a processor", after=1)
@pytest.mark.parametrize("seed", range(17))
def test_a_pool_goes_and_its_receipt_is_kept_whatever_becomes_of_the_output(cli: Cli, seed: int) -> None:
    choose = random.Random(seed)
    how: dict[str, Broken] = {}
    unseen: set[str] = set()
    perhaps: set[str] = set()
    for number in range(12):
        name = f"p{number}"
        broken = how[name] = some_break(12 * seed + number, choose)
        ended = call(cli, broken, "run", "endings.py:fine", "-n", 2, "--pool", name)
        assert ended.status in statuses(broken), (broken, ended)
        if broken.event != "error":
            assert "Traceback" not in ended.err, (broken, ended)
        if broken.stdout == "full" and broken.stderr == "pipe":
            assert "standard output cannot be written: No space left on device" in ended.err, broken
        if f"pool {name} is down" not in ended.err:
            # A pipe takes what is written before its reader leaves.
            (perhaps if broken.stderr == "head" else unseen).add(name)
    ledger = Ledger(cli.folder / "home" / "ledger.db")
    assert ledger.live_pools() == []
    rows = {row.name: row for row in ledger.ended_pools()}
    ledger.close()
    for number in range(12):
        receipt = rows[f"p{number}"].receipt
        assert receipt is not None and receipt["unaccounted"] == [], number
    said = cli("ls").stderr
    named = {name for name in rows if f"pool {name} is down" in said}
    assert unseen <= named <= unseen | perhaps, how
    assert "is down" not in cli("ls").stderr, "each is named once"


FAILS = "import skyward_core as sky\n\n@sky.function\ndef fails(): raise ValueError('größer als 3 …')\n"
READS = (("ls",), ("history",), ("failures",), ("doctor",), ("results", "p"), ("logs", "p", "--collapse"))


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_text_that_an_encoding_lacks_is_replaced(cli: Cli, encoding: str) -> None:
    cli.write("fails.py", FAILS)
    ended = call(cli, Broken(encoding), "run", "fails.py", "--pool", "p")
    assert ended.status == 1
    assert "n0    x raised" in ended.out
    message = {"latin-1": "ValueError: größer als 3 ~", "ascii": "ValueError: gro?er als 3 ~"}[encoding]
    assert message in ended.out and message in ended.err
    for command in READS:
        ended = call(cli, Broken(encoding), *command)
        assert ended.status in (0, 1) and "UnicodeEncodeError" not in ended.err, (command, ended)
    assert "x" in call(cli, Broken(encoding), "results", "p").out.split()


def test_a_c_locale_is_no_obstacle(cli: Cli) -> None:
    """In an interpreter that begins in it, as in a minimal container."""
    cli.env |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = cli("run", "endings.py:fine", "-n", 1, "--pool", "p")
    assert "n0    + returned" in done.stdout
    assert "pool p is down: created 1, verified gone 1, unaccounted 0" in done.stderr


def test_output_that_was_asked_for_and_is_not_written_is_an_error(cli: Cli) -> None:
    full, closed = Broken(stdout="full"), Broken(stdout="closed")
    cannot = "error: standard output cannot be written: "
    assert call(cli, full, "ls", "--json") == (1, "", f"{cannot}No space left on device\n")
    assert call(cli, full, "--help") == (1, "", f"{cannot}No space left on device\n")
    assert call(cli, closed, "ls", "--json") == (1, "", f"{cannot}Bad file descriptor\n")
    assert call(cli, closed, "ls") == (0, "", ""), "as git does"
    assert call(cli, Broken(stdout="gone"), "ls") == (0, "", ""), "a reader that has read enough"
    assert call(cli, Broken(stderr="full"), "ls", "--json").status == 0

    ended = call(cli, full, "run", "endings.py:fine", "--pool", "p")
    assert ended.status == 1
    assert ended.err.count(f"{cannot}No space left on device\n") == 1
    assert "cancel" not in ended.err
    [rank] = cli.json("results", "p")["ranks"]
    assert rank["outcome"] == "returned"


def test_a_run_whose_reader_leaves_is_cancelled_for_a_reason_that_is_said(cli: Cli) -> None:
    ended = call(cli, Broken(stdout="gone"), "run", "endings.py:waits", "--arg", "marker=x", "--pool", "p")
    assert ended.status == 130
    assert re.search(r"^cancelling run \w+: nothing reads its output any more$", ended.err, re.MULTILINE)
    assert "pool p is down: created 1, verified gone 1, unaccounted 0" in ended.err


def test_a_receipt_that_down_cannot_print_is_shown_later(cli: Cli) -> None:
    cli("run", "endings.py:fine", "--pool", "p", "--keep")
    assert call(cli, Broken(stderr="full"), "down", "p").status == 0
    assert "pool p is down: created 1, verified gone 1, unaccounted 0" in cli("ls").stderr
    assert cli("ls").stderr == ""


@pytest.mark.parametrize("command", [("run", "endings.py:fine", "--pool", "p"), ("down", "p")])
def test_a_receipt_is_shown_later_if_the_client_is_killed_before_it_is_printed(
    cli: Cli, command: tuple[str, ...]
) -> None:
    if command[0] == "down":
        cli("run", "endings.py:fine", "--pool", "p", "--keep")
    assert call(cli, Broken(stderr="full", event="killed"), *command).status == -signal.SIGKILL
    assert "pool p is down: created 1, verified gone 1, unaccounted 0" in cli("ls").stderr
    assert cli("ls").stderr == ""


DIES = """
import os, signal
import skyward_core as sky
from skyward_core.api import compute as module

if __name__ == "__main__":
    with sky.Compute(name="s", nodes=1):
        module.costs_money = lambda provider: True  # scripts print the receipts of rented machines
        module.print_safely = lambda text: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_receipt_of_a_script_that_is_killed_before_it_is_printed_is_shown_later(cli: Cli) -> None:
    with run_script(cli.write("dies.py", DIES), cwd=cli.folder, env=cli.env) as process:
        process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    assert "pool s is down: created 1, verified gone 1, unaccounted 0" in cli("ls").stderr
    assert cli("ls").stderr == ""


FLOODS = """
import skyward_core as sky

@sky.function
def flood(lines: int, stays: bool = False):
    print("begun", flush=True)
    for number in range(lines): print("x" * 999, flush=True)
    if stays:
        import threading
        threading.Event().wait()
"""


def test_a_pool_goes_although_nobody_reads_what_its_ranks_printed(cli: Cli) -> None:
    """As behind a pager that shows its first page."""
    cli.write("flood.py", FLOODS)
    with cli.begin("run", "flood.py", "--lines", 400, "--pool", "p") as process:
        wait_until(lambda: cli.json("ls")["pools"] == [] and "p" in _ended(cli), seconds=PATIENCE)
        assert process.poll() is None, "it waits for its reader"
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert out.count("x" * 999) == 400 and "✓ returned" in out
    assert "pool p is down: created 1, verified gone 1, unaccounted 0" in err


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("together", [False, True])
def test_a_signal_ends_a_run_whose_output_nobody_reads(cli: Cli, together: bool) -> None:
    cli.write("flood.py", FLOODS)
    reading, writing = os.pipe()
    if not together:  # then the pipe takes nothing from the start
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while os.write(writing, bytes(4096)):
                pass
        os.set_blocking(writing, True)
    with cli.begin(
        "run", "flood.py", "--lines", 400, "--stays", "--pool", "p",
        stdout=writing, stderr=writing if together else subprocess.PIPE,
    ) as process:  # fmt: skip
        os.close(writing)
        waits_in = Path(f"/proc/{process.pid}/wchan")
        wait_until(lambda: _is_full(reading) and "pipe_write" in waits_in.read_text(), seconds=PATIENCE)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 130
    os.close(reading)
    assert cli.pools() == {}
    assert _ended(cli)["p"]["unaccounted"] == []


def _ended(cli: Cli) -> dict[str, Any]:
    """The receipts that the ledger has, by pool."""
    ledger = Ledger(cli.folder / "home" / "ledger.db")
    receipts = {row.name: row.receipt for row in ledger.ended_pools()}
    ledger.close()
    return receipts


def _is_full(pipe: int) -> bool:
    unread = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]
    return bool(unread > fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - 4096)


def test_a_pipe_that_another_process_made_non_blocking_gets_everything(cli: Cli) -> None:
    cli.write("flood.py", FLOODS)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with cli.begin("run", "flood.py", "--lines", 400, stdout=writing) as process:
        os.close(writing)
        wait_until(lambda: _is_full(reading), seconds=PATIENCE)
        with open(reading) as reader:
            assert reader.read().count("x" * 999) == 400
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


SCRIPT = """
import sys
import skyward_core as sky

@sky.function
def says(what):
    print(what, flush=True)
    print(what, file=sys.stderr, flush=True)
    return len(what)

if __name__ == "__main__":
    how = sys.argv[1]
    if how == "odd":
        class Odd:
            def write(self, text): raise RuntimeError("odd")
        sys.stdout = sys.stderr = Odd()
    elif how == "none":
        sys.stdout = sys.stderr = None
    elif how == "closed":
        sys.stdout.close(), sys.stderr.close()
    elif how:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding=how, errors="strict")
    with sky.Compute(name="s", nodes=1) as compute:
        [length] = says("✗ … ●") @ compute
    sys.exit(length)
"""


@pytest.mark.parametrize("how", ["", "cp437", "none", "closed", "odd"])
def test_a_script_whose_output_fails_leaves_no_pool(cli: Cli, how: str) -> None:
    """Its own ranks' lines are what it does not print itself."""
    path = cli.write("says.py", SCRIPT)
    full = os.open("/dev/full", os.O_WRONLY)
    streams = subprocess.PIPE if how else full
    with run_script(path, how, cwd=cli.folder, env=cli.env, stdout=streams, stderr=streams) as process:
        _, err = process.communicate(timeout=PATIENCE)
    os.close(full)
    assert process.returncode in (5, 120), err  # 120 if Python itself fails to write at its end
    receipt = _ended(cli)["s"]
    assert receipt["unaccounted"] == [] and receipt["created"] == 1


# Who starts us may have closed our streams (`>&-`): that is no error, and nothing of ours takes their places.


CLOSED = """
import sys
from pathlib import Path
import skyward_core as sky

@sky.function
def f():
    print("from the rank")
    return 7

if __name__ == "__main__":
    with sky.Compute(nodes=1) as compute:
        Path(sys.argv[1]).write_text(str(f() @ compute))
"""


def run_without_stdout(*command: str) -> subprocess.CompletedProcess[str]:
    line = '"$0" "$@" >&-'
    return subprocess.run(["sh", "-c", line, sys.executable, *command], stderr=subprocess.PIPE, text=True, timeout=90)


def test_a_script_whose_output_is_closed(home: Path, tmp_path: Path) -> None:
    script, result = tmp_path / "closed.py", tmp_path / "result"
    script.write_text(CLOSED)
    done = run_without_stdout(str(script), str(result))
    assert (done.returncode, result.read_text()) == (0, "[7]"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.proof("1 s of a processor")
def test_the_command_line_with_its_output_closed(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "closed.py"
    script.write_text(CLOSED)
    done = run_without_stdout("-m", "skyward_tui", "run", f"{script}:f", "--nodes", "1")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
