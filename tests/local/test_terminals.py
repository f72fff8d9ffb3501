"""Broken or vanished terminals and pipes: teardown, receipts and sanitized text."""

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
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pexpect
import pyte
import pytest

from skyward_core.store.ledger import Ledger
from tests.support.cli import PATIENCE, PRELOADED, PROGRAM, Cli
from tests.support.forked import Loaded, ending_at_once
from tests.support.forked_clients import run_script
from tests.support.hostile_text import harm
from tests.support.waiting import wait_until

# BROKEN describes the process: the encoding of its streams, the closed streams, the event (a signal or an error) when
# it prints line N, and N. The event "killed" is SIGKILL directly after it has tried to print a receipt.
BEGIN = """
import os, signal, sys
from itertools import count
from skyward_tui.cli.console_and_log_printer import Console
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
""" + ending_at_once("skyward_tui.cli.main.main()")
LOADED = Loaded([sys.executable], PRELOADED, BEGIN)
ENCODINGS = ("utf-8", "latin-1", "ascii", "cp437", "shift-jis")
STREAMS = ("pipe", "full", "closed", "gone", "head", "empty terminal")
EVENTS = ("", "SIGHUP", "SIGTERM", "error")


class Broken(NamedTuple):
    """Kind of failure of a command's output."""

    encoding: str = ""
    stdout: str = "pipe"
    stderr: str = "pipe"
    event: str = ""
    place: int = 0


class Ended(NamedTuple):
    """End of a command: its status and the readable part of its output."""

    status: int
    out: str
    err: str


def call(cli: Cli, broken: Broken, *arguments: object) -> Ended:
    """Run a command whose output fails in the given way."""
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


def choose_break(number: int, choose: random.Random) -> Broken:
    """Return the next combination: each event at each of the summary's five lines, in any encoding and with any
    streams.
    """
    event, place = EVENTS[number % 4], 7 - number // 4 % 5
    return Broken(choose.choice(ENCODINGS), choose.choice(STREAMS), choose.choice(STREAMS), event, place)


def statuses(broken: Broken) -> set[int]:
    """Return the valid exit statuses of the command."""
    interrupts = {"gone", "head"} & {broken.stdout, broken.stderr} or broken.event.startswith("SIG")
    fails = broken.event == "error" or broken.stdout == "full"
    return ({130} if interrupts else set()) | ({1} if fails else {0})


@pytest.mark.proof("4 s of a processor", after=1)
@pytest.mark.parametrize("seed", range(17))
def test_broken_output_streams_prevent_no_teardown_or_receipt(cli: Cli, seed: int, proofs: bool) -> None:
    choose = random.Random(seed)
    numbers = range(12) if proofs else (0, 5, 10, 3)
    how: dict[str, Broken] = {}
    unseen: set[str] = set()
    perhaps: set[str] = set()
    for number in numbers:
        name = f"p{number}"
        broken = how[name] = choose_break(12 * seed + number, choose)
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
    for number in numbers:
        receipt = rows[f"p{number}"].receipt
        assert receipt is not None and receipt["unaccounted"] == [], number
    output = cli("ls").stderr
    named = {name for name in rows if f"pool {name} is down" in output}
    assert unseen <= named <= unseen | perhaps, how
    assert "is down" not in cli("ls").stderr, "each is named once"


FAILS = "import skyward_core as sky\n\n@sky.function\ndef fails(): raise ValueError('größer als 3 …')\n"
READS = (("ls",), ("history",), ("failures",), ("doctor",), ("results", "p"), ("logs", "p", "--collapse"))


@pytest.mark.proof("1 s of a processor")
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_characters_missing_from_the_output_encoding_are_replaced(cli: Cli, encoding: str) -> None:
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


@pytest.mark.proof("1 s of a processor")
def test_run_works_in_a_c_locale(cli: Cli) -> None:
    """The interpreter starts in the C locale, as in a minimal container."""
    cli.env |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = cli("run", "endings.py:fine", "-n", 1, "--pool", "p")
    assert "n0    + returned" in done.stdout
    assert "pool p is down: created 1, verified gone 1, unaccounted 0" in done.stderr


def test_unwritable_requested_output_is_an_error(cli: Cli) -> None:
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


def test_run_whose_output_reader_leaves_is_cancelled_with_a_reason(cli: Cli) -> None:
    ended = call(cli, Broken(stdout="gone"), "run", "endings.py:waits", "--arg", "marker=x", "--pool", "p")
    assert ended.status == 130
    assert re.search(r"^cancelling run \w+: nothing reads its output any more$", ended.err, re.MULTILINE)
    assert "pool p is down: created 1, verified gone 1, unaccounted 0" in ended.err


@pytest.mark.proof("1 s of a processor")
def test_receipt_that_down_cannot_print_is_shown_later(cli: Cli) -> None:
    cli("run", "endings.py:fine", "--pool", "p", "--keep")
    assert call(cli, Broken(stderr="full"), "down", "p").status == 0
    assert "pool p is down: created 1, verified gone 1, unaccounted 0" in cli("ls").stderr
    assert cli("ls").stderr == ""


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("command", [("run", "endings.py:fine", "--pool", "p"), ("down", "p")])
def test_receipt_unprinted_by_a_killed_client_is_shown_later(cli: Cli, command: tuple[str, ...]) -> None:
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


@pytest.mark.proof("0.5 s of a processor")
def test_receipt_unprinted_by_a_killed_script_is_shown_later(cli: Cli) -> None:
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


def test_pool_is_torn_down_although_the_output_is_not_read(cli: Cli) -> None:
    """A pager that shows only its first page behaves like this."""
    cli.write("flood.py", FLOODS)
    with cli.begin("run", "flood.py", "--lines", 400, "--pool", "p") as process:
        wait_until(lambda: cli.json("ls")["pools"] == [] and "p" in receipts_by_pool(cli), seconds=PATIENCE)
        assert process.poll() is None, "it waits for its reader"
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert out.count("x" * 999) == 400 and "✓ returned" in out
    assert "pool p is down: created 1, verified gone 1, unaccounted 0" in err


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("together", [False, True])
def test_signal_ends_a_run_whose_output_is_not_read(cli: Cli, together: bool) -> None:
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
    assert receipts_by_pool(cli)["p"]["unaccounted"] == []


def receipts_by_pool(cli: Cli) -> dict[str, Any]:
    """Return the receipts in the ledger by pool."""
    ledger = Ledger(cli.folder / "home" / "ledger.db")
    receipts = {row.name: row.receipt for row in ledger.ended_pools()}
    ledger.close()
    return receipts


def _is_full(pipe: int) -> bool:
    unread = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]
    return bool(unread > fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - 4096)


@pytest.mark.proof("0.7 s of a processor")
def test_non_blocking_output_pipe_receives_everything(cli: Cli) -> None:
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


@pytest.mark.proof("0.5 s of a processor", after=2)
@pytest.mark.parametrize("how", ["", "cp437", "none", "closed", "odd"])
def test_script_with_failing_output_streams_leaves_no_pool(cli: Cli, how: str) -> None:
    """The script prints only the lines of its ranks."""
    path = cli.write("says.py", SCRIPT)
    full = os.open("/dev/full", os.O_WRONLY)
    streams = subprocess.PIPE if how else full
    with run_script(path, how, cwd=cli.folder, env=cli.env, stdout=streams, stderr=streams) as process:
        _, err = process.communicate(timeout=PATIENCE)
    os.close(full)
    assert process.returncode in (5, 120), err  # 120 if Python itself fails to write at its end
    receipt = receipts_by_pool(cli)["s"]
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


def test_script_with_closed_stdout_runs(home: Path, tmp_path: Path) -> None:
    script, result = tmp_path / "closed.py", tmp_path / "result"
    script.write_text(CLOSED)
    done = run_without_stdout(str(script), str(result))
    assert (done.returncode, result.read_text()) == (0, "[7]"), done.stderr
    assert "Traceback" not in done.stderr


SLOW_END = """
import os, signal, time
from pathlib import Path
import skyward_core as sky

@sky.function
def stays():
    try:
        while True:
            print("rank is here", flush=True)
            time.sleep(0.05)
    finally:
        Path("ending").touch()
        time.sleep(1)
        Path("ended").touch()

if __name__ == "__main__":
    with sky.Compute(name="s", nodes=2, options=sky.Options(grace=30)) as compute:
        stays() @ compute
"""


class Vanishing:
    """Command on a pseudo-terminal."""

    def __init__(self, cli: Cli, command: Sequence[str]) -> None:
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", *command],
            env=cli.env,
            cwd=str(cli.folder),
            timeout=PATIENCE,  # type: ignore[arg-type]
        )

    def vanish(self) -> None:
        self.child.ptyproc.fileobj.close()

    def again(self) -> None:
        """Send the signal a second time, like a shell that forwards it."""
        os.kill(self.child.pid, signal.SIGHUP)

    def status(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while not (ended := os.waitpid(self.child.pid, os.WNOHANG))[0]:
            assert time.monotonic() < deadline, "it did not end"
            time.sleep(0.02)
        self.child.ptyproc.terminated = True
        return os.waitstatus_to_exitcode(ended[1])


@pytest.fixture
def start_vanishing(cli: Cli) -> Iterator[Callable[..., Vanishing]]:
    cli.write("slow_end.py", SLOW_END)
    commands = []

    def begin(*command: str) -> Vanishing:
        commands.append(Vanishing(cli, command))
        return commands[-1]

    yield begin
    for command in commands:
        command.child.close(force=True)


def poll_until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.proof("1 s of a processor")
def test_script_tears_its_pool_down_despite_repeated_hangups(
    cli: Cli, start_vanishing: Callable[..., Vanishing]
) -> None:
    script = start_vanishing("skyward_core", "slow_end.py")
    script.child.expect("rank is here")
    script.vanish()
    poll_until((cli.folder / "ending").exists)
    script.again()
    script.again()
    assert script.status() == 128 + signal.SIGHUP
    assert (cli.folder / "ended").exists()
    assert cli.pools() == {}


def test_second_signal_does_not_interrupt_a_teardown(cli: Cli, start_vanishing: Callable[..., Vanishing]) -> None:
    script = start_vanishing("skyward_core", "slow_end.py")
    script.child.expect("rank is here")
    os.kill(script.child.pid, signal.SIGTERM)
    wait_until((cli.folder / "ending").exists, seconds=PATIENCE)
    script.vanish()
    os.kill(script.child.pid, signal.SIGTERM)
    assert script.status() == 128 + signal.SIGTERM
    assert (cli.folder / "ended").exists()
    assert cli.pools() == {}


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("seed", range(4))
def test_run_tears_its_pool_down_if_the_terminal_vanishes_any_time(
    seed: int, cli: Cli, start_vanishing: Callable[..., Vanishing]
) -> None:
    moment = random.Random(seed)
    run = start_vanishing("skyward_tui", "run", "slow_end.py", "--pool", "s", "-n", "2")
    run.child.expect("pool s: 2 nodes")
    time.sleep(moment.uniform(0.0, 1.0))
    run.vanish()
    run.again()
    assert run.status() == 130
    assert cli.pools() == {}


@pytest.mark.proof("1 s of a processor")
def test_kept_pool_stays_despite_repeated_hangups(cli: Cli, start_vanishing: Callable[..., Vanishing]) -> None:
    run = start_vanishing("skyward_tui", "run", "slow_end.py", "--pool", "s", "--keep")
    run.child.expect("rank is here")
    run.vanish()
    run.again()
    poll_until((cli.folder / "ending").exists)
    run.again()
    assert run.status() == 130
    with cleared(cli):
        assert list(cli.pools()) == ["s"]


@pytest.mark.proof("1 s of a processor")
def test_vanished_terminal_does_not_answer_a_question(cli: Cli, start_vanishing: Callable[..., Vanishing]) -> None:
    """The question is shown to a user who only watches the run."""
    assert cli("run", "slow_end.py", "--pool", "s", "--detach").returncode == 0
    with cleared(cli):
        watch = start_vanishing("skyward_tui", "attach", "s")
        watch.child.expect("run ")
        watch.child.expect("rank is here")
        os.kill(watch.child.pid, signal.SIGINT)
        watch.child.expect("etach")
        watch.vanish()
        assert watch.status() == 130
        assert not Path(cli.folder / "ending").exists(), "the run goes on"
        assert list(cli.pools()) == ["s"]


@pytest.mark.proof("1 s of a processor")
@pytest.mark.parametrize("command", [("attach", "s"), ("logs", "-f", "s")])
def test_hangup_of_a_watching_command_changes_nothing(
    command: tuple[str, ...], cli: Cli, start_vanishing: Callable[..., Vanishing]
) -> None:
    assert cli("run", "slow_end.py", "--pool", "s", "--detach").returncode == 0
    with cleared(cli):
        watch = start_vanishing("skyward_tui", *command)
        watch.child.expect("rank is here")
        watch.vanish()
        assert watch.status() in (130, -signal.SIGHUP)
        assert list(cli.pools()) == ["s"]


@contextmanager
def cleared(cli: Cli) -> Iterator[None]:
    try:
        yield
    finally:
        cli("down", "s", "-y")


EVIL = "E\x1b]52;c;aGk=\x07\x1b]0;t\x1b\\\x1b[\x002J\x9b2J\u202eV\tW\nOTHER"

SPEAKS = f"""
import skyward_core as sky

EVIL = {EVIL!r}

@sky.function
def speak(fails: bool = False):
    print("\\x1b[31mred", EVIL, flush=True)
    sky.log(**{{EVIL: 1.5}})
    if fails:
        raise type(EVIL.replace("\\0", ""), (Exception,), {{}})(EVIL)
    return {{EVIL: EVIL, "loss": 0.5}}

if __name__ == "__main__":
    with sky.Compute(nodes=2) as compute:
        print([each["loss"] for each in speak() @ compute])
        print("before the failure")
        try:
            speak(fails=True) @ compute
        except sky.RunError as error:
            print(error)
"""


DRAWN = re.compile(r"\r(\x1b\[J|\x1b\[\d+A)?")


def all_of(child: pexpect.spawn[str]) -> str:
    child.expect(pexpect.EOF, timeout=PATIENCE)
    child.close()
    return child.before or ""


def test_terminal_output_of_commands_and_scripts_is_sanitized(cli: Cli) -> None:
    cli.write("speak.py", SPEAKS)
    script = pexpect.spawn(
        sys.executable, ["speak.py"], cwd=str(cli.folder), env=cli.env, timeout=PATIENCE, encoding="utf-8",
        dimensions=(40, 200),
    )  # fmt: skip
    good = cli.terminal("run", "speak.py:speak", "-n", "2")
    bad = cli.terminal("run", "speak.py:speak", "-n", "2", "-a", "fails=true")
    for child in (good, bad, script):
        # A line is drawn before all of it has come, and taken away when the rest is here.
        shown = DRAWN.sub("\r", all_of(child))
        assert harm(shown.encode()) == []
        assert "\x1b[31mred E�V" in shown and "\x1b[0m\r\n" in shown
        assert shown.count("OTHER") >= 2


BARS = f"""
import sys
import time
from pathlib import Path

import skyward_core as sky

@sky.function
def bar(seen: str) -> None:
    rank = sky.instance_info().rank
    for percent in (10, 20):
        print(f"\\r {{percent}}% of {{rank}}", {EVIL!r}.replace("\\n", ""), end="", file=sys.stderr, flush=True)
    while not Path(seen).exists():
        time.sleep(0.01)
    print(f"\\r100% of {{rank}}", file=sys.stderr)

if __name__ == "__main__":
    with sky.Compute(nodes=2) as compute:
        bar(sys.argv[1]) @ compute
        print("the script goes on")
"""


@pytest.mark.proof("2 s of a processor")
def test_progress_bar_of_each_rank_is_redrawn_in_one_line(cli: Cli, tmp_path: Path) -> None:
    cli.write("bars.py", BARS)
    for name in ("script", "run"):
        seen = tmp_path / name
        if name == "run":
            child = cli.terminal("run", "bars.py:bar", "-n", "2", "-a", f"seen={seen}")
        else:
            child = pexpect.spawn(
                sys.executable, ["bars.py", str(seen)], cwd=str(cli.folder), env=cli.env, timeout=PATIENCE,
                encoding="utf-8", dimensions=(24, 80),
            )  # fmt: skip
        child.expect(r"r000\|  20% of 0[^\n]*\r\nr001\|  20% of 1")
        drawn = (child.before or "") + (child.after or "")
        seen.touch()
        rest = all_of(child)
        assert harm(DRAWN.sub("\r", drawn + rest).encode()) == []
        screen = pyte.Screen(80, 60)
        pyte.Stream(screen).feed(drawn + rest)
        lines = [line.rstrip() for line in screen.display]
        assert lines.count("r000| 100% of 0") == lines.count("r001| 100% of 1") == 1
        assert not [line for line in lines if "20%" in line], lines
