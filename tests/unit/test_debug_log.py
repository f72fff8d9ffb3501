"""Debug log of the client: levels, files, redaction and sanitizing."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward_core.model.errors import PoolError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.providers.provider_call_logs_polling_and_cache import log_call
from skyward_core.store import debug_log
from skyward_core.store.debug_log import _FileHandler

SECRET = "hf_kJ8sPq2Lm4Xz7Vb1"


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("SKYWARD_HOME", str(home))
    monkeypatch.delenv("SKYWARD_LOG", raising=False)
    return home


@pytest.fixture
def unconfigured_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """Logger of a process that has not requested the log. Restored afterwards."""
    ours = logging.getLogger("skyward")
    before = ours.handlers[:], ours.level, ours.propagate
    monkeypatch.setattr(debug_log, "_handler", None)
    yield ours
    for handler in set(ours.handlers) - set(before[0]):
        handler.close()
    ours.handlers[:], ours.propagate = before[0], before[2]
    ours.setLevel(before[1])


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("skyward.test", logging.INFO, "", 0, text, None, None)


def test_debug_log_prints_nothing_unless_enabled() -> None:
    code = """
import logging
from skyward_core.store.debug_log import get_logger as logger
logger("link").error("from us")
logging.basicConfig(format="%(name)s %(pool)s %(message)s")
logger("link").error("from us, asked for")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "skyward.link - from us, asked for\n")


@pytest.mark.parametrize("asked", ["debug", "info", "warning", "error", "DEBUG"])
def test_debug_log_contains_messages_from_the_chosen_level(
    asked: str, unconfigured_logger: logging.Logger, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_LOG", asked)
    assert debug_log.start_logging() == debug_log.start_logging() == ""
    log = debug_log.get_logger("test")
    for level in debug_log.LEVELS:
        log.log(logging.getLevelName(level.upper()), "a word of %s", level)
    lines = (world / "debug" / "debug.log").read_text().splitlines()
    assert [line.rpartition(" ")[2] for line in lines[1:]] == list(
        debug_log.LEVELS[debug_log.LEVELS.index(asked.lower()) :]
    ), "each once"
    assert " skyward.test - [" in lines[-1] and lines[-1].split()[1] == "ERROR"


def test_debug_log_files_are_private(world: Path) -> None:
    world.mkdir()
    (world / "debug").mkdir(mode=0o755)
    (world / "debug" / "debug.log").write_text("")
    (world / "debug" / "debug.log").chmod(0o644)
    before = os.umask(0)
    try:
        file = _FileHandler()
        file.emit(record("a word"))
        file.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((world / "debug").stat().st_mode) == 0o700
    assert stat.S_IMODE((world / "debug" / "debug.log").stat().st_mode) == 0o600


def test_link_in_place_of_the_debug_log_is_not_followed(world: Path, tmp_path: Path) -> None:
    (world / "debug").mkdir(parents=True)
    (tmp_path / "other").write_text("mine")
    (world / "debug" / "debug.log").symlink_to(tmp_path / "other")
    file = _FileHandler()
    file.emit(record("a word"))
    assert file.write_error and (tmp_path / "other").read_text() == "mine"


def test_two_processes_share_debug_logs_of_bounded_size(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two handlers stand for two processes, because each opens the file itself."""
    monkeypatch.setattr(debug_log, "MAX_FILE_BYTES", 4000)
    one, other = _FileHandler(), _FileHandler()
    words = [f"word {number:04}" for number in range(400)]
    for number, word in enumerate(words):
        (one, other)[number % 3 == 0].emit(record(word))
        for file in debug_log.log_files():
            assert file.stat().st_size <= 4000
    assert not one.write_error and not other.write_error
    lines = [line[-9:] for file in debug_log.log_files() for line in file.read_text().splitlines()]
    assert [file.name for file in debug_log.log_files()] == ["debug.log.1", "debug.log"]
    assert len(lines) > 50 and lines == words[-len(lines) :], "the latest, in order, none missing"
    for each in (one, other):
        each.close()


def told_by(log: str, caplog: pytest.LogCaptureFixture, *arguments: object) -> logging.LogRecord:
    with caplog.at_level(logging.DEBUG, "skyward"):
        debug_log.get_logger("test").info(log, *arguments)
    return caplog.records[-1]


def test_secrets_are_redacted_for_every_log_handler(caplog: pytest.LogCaptureFixture) -> None:
    assert SECRET in told_by("with %s in it", caplog, SECRET).getMessage()
    debug_log.add_secrets([SECRET, "line one of it\nline two of it"])
    assert told_by("with %s in it", caplog, SECRET).getMessage() == f"with {'*' * len(SECRET)} in it"
    shown = told_by("a line one of it\nline two of it", caplog).getMessage()
    assert "line one" not in shown and "line two" not in shown
    broken = f"{SECRET[:6]}\x1b[0m{SECRET[6:]}"
    assert told_by(broken, caplog).getMessage() == "*" * len(SECRET), "put together by the filter"


def test_log_message_is_sanitized_into_one_bounded_line(caplog: pytest.LogCaptureFixture) -> None:
    shown = told_by("a\nb\r\x1b[2J\x1b]52;c;aGk=\x07\u202ec%s", caplog, "\x00")
    assert shown.getMessage().isprintable()
    assert shown.getMessage().startswith("a↵b↵")
    assert len(told_by("x" * 100_000, caplog).getMessage()) < debug_log.MAX_MESSAGE_LENGTH + 50


async def test_provider_calls_are_logged_with_duration_and_result(caplog: pytest.LogCaptureFixture) -> None:
    async def describe(fails: bool) -> list[Machine]:
        if fails:
            raise PoolError("no answer")
        return [Machine("m0", 0, "h0", ""), Machine("m1", 1, "h1", "", state="gone")]

    with caplog.at_level(logging.DEBUG, "skyward.provider"):
        assert len(await log_call("describe", "p", describe(False))) == 2
        with pytest.raises(PoolError):
            await log_call("describe", "p", describe(True))
    good, bad = caplog.records
    assert good.getMessage().startswith("describe took 0.0")
    assert good.getMessage().endswith(" s: machines 1 running, 1 gone")
    assert bad.levelno == logging.WARNING and bad.getMessage().endswith(" s: PoolError: no answer")
    assert {vars(each)["pool"] for each in caplog.records} == {"p"}
