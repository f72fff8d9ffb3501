"""Special files, nested content and arbitrary paths given by users and projects."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skyward_core.client import user_settings_and_app_state as client_settings
from skyward_core.client.launch import presets
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_plan import make_plan
from skyward_core.client.launch.launch_records_and_script_state import ScriptState
from skyward_core.client.launch.plugin_and_provider_catalog import list_functions, packages_for
from skyward_core.model.errors import JobFileError, ScriptError, SkywardError
from skyward_core.store import pool_folder, skyward_toml, state_folder, sweep_trial_files
from skyward_core.tasks.job_file import JobFile, read_variables
from skyward_core.tasks.shell_and_script_calls import script
from skyward_core.transport.ssh import known_hosts
from skyward_core.transport.working_folder_upload import walk
from skyward_core.util import safe_file_access
from skyward_core.util.safe_file_access import UnusableFile
from skyward_tui.launch_form import recent_launches
from skyward_tui.ui import saved_state
from tests.support.examples import examples

SCRIPT = "import skyward_core as sky\n\n\n@sky.function\ndef train(lr: float = 0.1) -> None: ...\n"
SENTENCES = {
    "pipe": "it is a named pipe, not a regular file",
    "zero": "it is a device, not a regular file",
    "socket": "it is a socket, not a regular file",
    "large": "it has more than ",
}
DEEP = f"it is nested more than {safe_file_access.MAX_DEPTH} levels deep"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("train.py").write_text(SCRIPT)
    return tmp_path / "project"


def put(path: Path, kind: str) -> None:
    """Make something that is not an ordinary file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(path))
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(1 << 40)  # which takes no room on the disk


def plan(**asked: Any) -> None:
    make_plan(LaunchRequest(script="train.py", function="train", **asked))


def write_state_file(name: str, text: str) -> None:
    (state_folder.state_home() / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    (state_folder.state_home() / name).write_text(text)


READERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "script": ("train.py", lambda: list_functions(Path("train.py"))),
    "whole script": ("train.py", lambda: script("train.py")),
    "presets": ("skyward.toml", presets.presets),
    "hosts": ("skyward.toml", skyward_toml.host_groups),
    "requirements": ("requirements.txt", lambda: plan(requirements="requirements.txt")),
    "lock": ("uv.lock", lambda: plan(lock="uv.lock")),
    "pylock": ("pylock.toml", lambda: plan(lock="pylock.toml")),
    "project": ("pyproject.toml", lambda: plan(project=True)),
    "job": ("job.yaml", lambda: JobFile.from_yaml("job.yaml")),
    "variables": ("job.yaml", lambda: read_variables("job.yaml")),
}


@pytest.mark.parametrize("kind", SENTENCES)
@pytest.mark.parametrize("reader", READERS)
def test_special_file_named_by_the_user_is_rejected(reader: str, kind: str) -> None:
    name, read = READERS[reader]
    put(Path(name), kind)
    with pytest.raises(SkywardError) as caught:
        read()
    message = str(caught.value)
    sentences = (SENTENCES[kind], "does not exist", "/dev/zero can be written by others")
    assert name in message and any(each in message for each in sentences), message


# What is read in passing: there is an answer, and nothing is raised.
QUIET: dict[str, tuple[str, Callable[[], Any]]] = {
    "state of a script": ("train.py", lambda: ScriptState.from_file(Path("train.py"))),
    "ignored files": (".gitignore", lambda: list(walk(Path(), lambda _: False))),
    "offered packages": ("pyproject.toml", lambda: packages_for(Path("train.py"))),
    "offered lock": ("uv.lock", lambda: packages_for(Path("train.py"))),
    "an environment": (".venv/pyvenv.cfg", lambda: plan()),
    "setup.cfg": ("lib/setup.cfg", lambda: None),
    "settings": ("../home/skyward.toml", client_settings.load_user_settings),
    "recent launches": ("../home/recent.json", recent_launches.recent_forms),
    "dismissed": ("../home/dismissed.json", pool_folder.read_dismissed),
}


@pytest.mark.parametrize("kind", SENTENCES)
@pytest.mark.parametrize("reader", QUIET)
def test_special_file_read_optionally_is_ignored(reader: str, kind: str) -> None:
    name, read = QUIET[reader]
    state_folder.state_home()
    if name.startswith(".venv"):
        Path(".venv/bin").mkdir(parents=True)
        Path(".venv/bin/python").symlink_to("/bin/sh")
    put(Path(name), kind)
    read()


@pytest.mark.parametrize("kind", SENTENCES)
def test_special_state_file_error_says_why_it_is_not_read(kind: str) -> None:
    (state_folder.state_home() / "pools" / "p" / "launches").mkdir(parents=True)
    (state_folder.state_home() / "pools" / "p" / "trials").mkdir(parents=True)
    for folder, read in (("launches", pool_folder.read_launch), ("trials", sweep_trial_files.read_trials)):
        put(state_folder.state_home() / "pools" / "p" / folder / "r.json", kind)
        with pytest.raises(UnusableFile, match=SENTENCES[kind]):
            read("p", "r")
    put(state_folder.state_home() / "app.json", kind)
    with pytest.raises(saved_state.InvalidStateFile, match=SENTENCES[kind]):
        saved_state.load_state()
    put(Path("known_hosts"), kind)
    with pytest.raises(UnusableFile, match=SENTENCES[kind]):
        known_hosts.read_entries(Path("known_hosts"))


NESTED = ("a = " + "[" * 3000 + "]" * 3000, "a = " + "[" * 300 + "]" * 300, ".".join(["a"] * 300) + " = 1")


@pytest.mark.parametrize("text", NESTED, ids=["brackets", "fewer brackets", "dots"])
def test_deeply_nested_toml_is_rejected(text: str) -> None:
    for name in ("skyward.toml", "pylock.toml", "pyproject.toml"):
        Path(name).write_text(text)
    for read in (
        presets.presets,
        skyward_toml.host_groups,
        lambda: plan(lock="pylock.toml"),
        lambda: plan(project=True),
    ):
        with pytest.raises(SkywardError, match=DEEP):
            read()
    Path("train.py").write_text(f"# /// script\n# {text}\n# ///\n{SCRIPT}")
    with pytest.raises(ScriptError, match=DEEP):
        plan()
    write_state_file("skyward.toml", text)
    assert DEEP in client_settings.load_user_settings().refused[0]


def test_deeply_nested_json_state_is_rejected() -> None:
    for text in ("[" * 100_000, "[" * 200 + "]" * 200):
        for name in ("recent.json", "dismissed.json", "app.json", "pools/p/launches/r.json"):
            write_state_file(name, text)
        assert recent_launches.recent_forms() == [] and pool_folder.read_dismissed() == []
        with pytest.raises(ValueError, match=DEEP):
            pool_folder.read_launch("p", "r")
        with pytest.raises(saved_state.InvalidStateFile):
            saved_state.load_state()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 2_000,
        "run: " + "{a: " * 5000,
        "a: &a [x, x]\n"
        + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)),
        "a: &a [*a]\nrun: x",
        "envs: &e {<<: *e}",
        "- " * 5000,
    ],
    ids=["brackets", "braces", "aliases", "cycle", "merged cycle", "dashes"],
)
def test_deeply_nested_job_file_is_rejected(text: str) -> None:
    Path("job.yaml").write_text(text)
    with pytest.raises(JobFileError, match=r"job\.yaml"):
        JobFile.from_yaml("job.yaml")


def test_requirement_includes_are_bounded() -> None:
    for number in range(150):
        Path(f"{number}.txt").write_text(f"-r {number + 1}.txt\n")
    with pytest.raises(SkywardError, match="cannot be read: more than 100 files are included"):
        plan(requirements="0.txt")


def test_file_is_read_up_to_its_size_limit() -> None:
    Path("a").write_bytes(b"x" * 10)
    assert safe_file_access.read_bytes("a", 10) == b"x" * 10
    with pytest.raises(UnusableFile, match="it has more than 9 bytes"):
        safe_file_access.read_bytes("a", 9)
    Path("b").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    assert safe_file_access.read_text("b", "utf-8-sig") == Path("b").read_text("utf-8-sig") == "a\nb\nc\n"


ANY = st.text(st.characters(), max_size=8) | st.sampled_from(
    [
        "", "~", "~nobody-of-that-name/x", "a" * 256, "a/" * 3000, "\0", "~\0", "\udcff", "\ud800", "loop",
        "closed/x", "..", "//",
    ]
)  # fmt: skip


@settings(max_examples=examples(200))
@given(ANY)
@example("loop")
@example("closed/x")
@example("a" * 256)
@example("~\0")
@example("")
@example("train.py/")
def test_user_file_helpers_accept_any_path_text(text: str) -> None:
    if not os.path.lexists("loop"):
        Path("loop").symlink_to("loop")
    for question in (safe_file_access.exists, safe_file_access.is_file, safe_file_access.is_dir):
        assert isinstance(question(text), bool) and question(text) == question(Path(text))
    assert isinstance(safe_file_access.expand_user(text), Path) and safe_file_access.resolve_path(text).is_absolute()
    for raising in (safe_file_access.read_bytes, lambda path: safe_file_access.list_entries(Path(path))):
        with suppress(OSError):
            raising(text)
    with suppress(ValueError):
        safe_file_access.find_matching(Path(), text)


def test_null_device_is_read_as_an_empty_file() -> None:
    assert safe_file_access.read_bytes(os.devnull) == b"" == safe_file_access.read_text(os.devnull).encode()
