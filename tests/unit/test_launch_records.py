"""Saved launch records: content, changes since a launch, and imports of scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyward_core.client.launch import launch_records_and_script_state
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_plan import make_plan, resolve_call
from skyward_core.client.launch.launch_records_and_script_state import (
    MAX_CHANGED_FILES,
    MAX_DIFF_BYTES,
    MAX_SCRIPT_BYTES,
    LaunchRecord,
    ScriptState,
    diff_path,
    load_launch_record,
    save_before_launch,
    save_launch_record,
)
from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import RunRow
from skyward_core.store.pool_folder import remove_launch
from skyward_core.store.state_folder import ensure_pool_folder, pool_path
from skyward_core.tasks import script_functions
from skyward_core.tasks.script_functions import ScriptWatch, check_script_folder
from skyward_tui.launch_form.form import form_from_request
from skyward_tui.launch_form.plan_computation_and_text import missing_packages_text, plan_rows
from tests.support.examples import examples

REQUEST = LaunchRequest(
    script="train.py", function="train", arguments=["lr=0.1", "n=2"], plugins=["torch"], nodes="2:4",
    plugin_settings={"torch.backend": "gloo"},
    settings={"hosts": "a,b"}, provider="ssh",
)  # fmt: skip


class World:
    """Ledger with a pool "p" and its run "ab12" in a fresh home."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.ledger.record_intent("t0", "p", {"type": "local"}, {})
        self.key = self.ledger.pool("t0").key
        ensure_pool_folder(self.key)
        self.row = RunRow("ab12", "t0", "train", "broadcast", 2, "done", 1.0, 2.0, None)

    def stored_record(self) -> LaunchRecord:
        return load_launch_record(self.ledger, self.row)

    @property
    def file(self) -> Path:
        return pool_path(self.key) / "launches" / "ab12.json"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return World()


def test_saved_launch_record_is_read_unchanged_and_private(world: World, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")
    save_launch_record(world.key, "ab12", REQUEST, joined=True, source=ScriptState.capture(Path(REQUEST.script)))
    found = world.stored_record()
    assert found.request == REQUEST
    assert (found.cwd, found.joined, len(found.source.script)) == (tmp_path, True, 32)
    assert world.file.stat().st_mode & 0o777 == 0o600
    assert world.file.parent.stat().st_mode & 0o777 == 0o700


def test_launch_of_a_pool_without_folder_is_not_saved(world: World) -> None:
    pool_path(world.key).rmdir()
    save_before_launch(world.key, "ab12", REQUEST, joined=False)
    assert not pool_path(world.key).exists()
    with pytest.raises(UsageError, match="Run ab12 has no saved launch"):
        world.stored_record()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("\udcff", "cannot be read"),
        ({"request": {"script": "t.py", "orbit": 1}}, r"in an unknown format \(orbit\)"),
        ({"request": {"script": "t.py"}, "source": {"moon": 1}}, "another version"),
        ({"request": 1}, "another version"),
    ],
)
def test_invalid_launch_record_is_rejected(world: World, text: Any, message: str) -> None:
    world.file.parent.mkdir()
    if isinstance(text, dict):
        text = json.dumps({"source": {"changed": []}, "cwd": "/", "joined": False} | text)
    world.file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=message):
        world.stored_record()


@given(st.data())
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_tampered_launch_record_is_rejected_or_usable(world: World, tmp_path: Path, data: st.DataObject) -> None:
    source = ScriptState(script="ab", commit="c" * 40, changed=("a.py",))
    save_launch_record(world.key, "ab12", REQUEST, joined=True, source=source)
    report = json.loads(world.file.read_bytes())
    into = data.draw(st.sampled_from([report, report["request"], report["source"]]))
    name = data.draw(st.sampled_from(sorted(into)))
    value: Any = data.draw(st.sampled_from([None, True, 5, -1.5, "x", "\0", [], ["y"], [1], {}, {"k": "v"}, {"k": 1}]))
    into[name] = value
    world.file.write_text(json.dumps(report))
    try:
        found = world.stored_record()
        ScriptState.capture(Path(found.request.script)).changes_since(found.source)
        found.absolute_request()
        request = found.with_arguments(["n=5"], None).request
        request.command_line("skyward-tui", "run")
        form_from_request(request)
        resolve_call(request.on_pool("dev"))
    except (UsageError, SkywardError):
        pass


def test_arguments_replace_recorded_ones_of_the_same_name() -> None:
    launch = LaunchRecord(request=REQUEST, cwd=Path("/"))
    assert launch.with_arguments((), None) == launch
    assert launch.with_arguments(["n=3", "m=1"], None).request.arguments == ("lr=0.1", "n=3", "m=1")
    with pytest.raises(UsageError, match="called a function"):
        launch.with_arguments((), ["--lr", "1"])


def test_recorded_relative_paths_become_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    data: dict[str, Any] = {
        "script": "a/t.py",
        "python": "env/bin/python",
        "lock": "~/uv.lock",
        "requirements": "/r.txt",
    }
    found = LaunchRecord(request=LaunchRequest(**data), cwd=Path("/w")).absolute_request()
    assert (found.script, found.python, found.lock) == ("/w/a/t.py", "/w/env/bin/python", "/h/uv.lock")
    assert found.requirements == "/r.txt"
    named = LaunchRecord(request=LaunchRequest(script="t.py", python="python3.12"), cwd=Path("/w")).absolute_request()
    assert (named.script, named.python) == ("/w/t.py", "python3.12"), "a name is looked for in PATH"


def test_recorded_request_on_a_running_pool_omits_pool_shape() -> None:
    found = LaunchRequest(script="t.py", nodes=3, budget=1.0, settings={"a": "b"}, project=True, keep=True, one=True)
    assert found.on_pool("dev") == LaunchRequest(script="t.py", pool="dev", one=True)
    assert not REQUEST.on_pool("dev").shapes_pool


def committed_script(folder: Path) -> Path:
    script = folder / "train.py"
    script.write_text("x = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", "train.py")
    git(folder, "commit", "-qm", "one")
    return script


def test_script_changes_since_a_launch_are_listed(tmp_path: Path) -> None:
    script = committed_script(tmp_path)
    first = ScriptState.capture(script)
    assert len(first.commit) == 40 and first.changed == ()
    assert ScriptState.capture(script).changes_since(first) == []
    script.write_text("x = 2\n")
    (tmp_path / "data.bin").write_text("of no repository")
    second = ScriptState.capture(script)
    assert second.changed == ("train.py",)
    assert second.changes_since(first) == ["the script has changed"]
    git(tmp_path, "commit", "-qam", "two")
    now = ScriptState.capture(script)
    assert now.changes_since(second) == [
        f"commit was {first.commit[:10]}, is now {now.commit[:10]}",
        "files with uncommitted changes at that launch: train.py",
    ]
    script.unlink()
    assert "the script can no longer be read" in ScriptState.capture(script).changes_since(first)


def test_changed_files_are_bounded_and_git_runs_no_repository_code(tmp_path: Path) -> None:
    names = [tmp_path / f"f{i:03}" for i in range(MAX_CHANGED_FILES + 5)]
    for name in names:
        name.write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    git(tmp_path, "config", "core.fsmonitor", f"touch {tmp_path}/ran;")
    for name in names:
        name.write_text("22")
    found = ScriptState.capture(tmp_path / "f000")
    assert len(found.changed) == MAX_CHANGED_FILES
    assert not (tmp_path / "ran").exists()
    assert found.changes_since(found) == [], "what differs as it did is no news"
    names[0].write_text("333")
    assert ScriptState.capture(tmp_path / "f000").changes_since(found)[-1].endswith("f000, f001, f002, …")


def test_saved_git_diff_is_private_and_applies(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-of-mine")
    (tmp_path / "train.py").write_text("x = 1\n")
    (tmp_path / "raw.bin").write_bytes(b"\0" * 100)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "train.py", "raw.bin")
    git(tmp_path, "commit", "-qm", "one")
    # What a repository, or a file's attributes, name to be run is not.
    git(tmp_path, "config", "diff.external", f"touch {tmp_path}/ran;")
    git(tmp_path, "config", "diff.mine.textconv", f"touch {tmp_path}/ran;")
    for name in ("color.ui", "diff.noprefix", "diff.relative"):
        git(tmp_path, "config", name, "always" if name == "color.ui" else "true")
    (tmp_path / ".gitattributes").write_text("*.py diff=mine\n")
    (tmp_path / "train.py").write_text("x = 2\nkey = 's3cr3t-of-mine'\nurl = 'https://me:hunter22@host/'\n")
    (tmp_path / "raw.bin").write_bytes(b"\1" * 100)
    save_launch_record(world.key, "ab12", REQUEST, joined=False, source=ScriptState.capture(Path(REQUEST.script)))
    path = diff_path(world.ledger, world.row)
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert "-x = 1\n+x = 2\n" in text and "Binary files" in text
    assert "--- a/train.py\n+++ b/train.py\n" in text, "git apply takes it"
    assert "s3cr3t" not in text and "hunter22" not in text
    found = world.stored_record().source
    assert (found.changed, found.diff.decode(), found.cut) == (("raw.bin", "train.py"), text, False)
    assert ScriptState.capture(tmp_path / "train.py").changes_since(found) == []
    (tmp_path / "train.py").write_text("x = 3\n")
    assert "files with uncommitted changes at that launch: raw.bin, train.py" in ScriptState.capture(
        Path(REQUEST.script)
    ).changes_since(found)
    assert not (tmp_path / "ran").exists()


def test_long_saved_diff_is_cut(tmp_path: Path) -> None:
    script = committed_script(tmp_path)
    script.write_text("".join(f"line {number}\n" for number in range(200_000)))
    found = ScriptState.capture(script)
    assert found.cut and MAX_DIFF_BYTES - 100 < len(found.diff) <= MAX_DIFF_BYTES
    assert found.diff.endswith(b"\n") and found.changed == ("train.py",)
    assert found.changes_since(found) == ["files with uncommitted changes at that launch: train.py"], "who knows?"


def test_failing_save_before_launch_does_not_prevent_the_launch(world: World) -> None:
    world.file.parent.write_text("in its place")
    save_before_launch(world.key, "ab12", REQUEST, joined=True)
    with pytest.raises(OSError):
        save_launch_record(world.key, "ab12", REQUEST, joined=True, source=ScriptState())


def test_hanging_git_does_not_delay_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\nsleep 60\n")
    (tmp_path / "git").chmod(0o700)
    (tmp_path / "t.py").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(launch_records_and_script_state, "GIT_TIMEOUT", 0.1)
    found = ScriptState.capture(tmp_path / "t.py")
    assert found.commit == "" and found.script


def git(folder: Path, *words: str) -> None:
    own = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


# A script whose folder is sent nowhere, and what it imports of that.

SCRIPT = """import os.path, skyward_core as sky


@sky.function
def f():
    import helper
    from package.inner import x
    from . import nothing
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Script in a user's home, beside a module and a package."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    (tmp_path / "helper.py").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return path


SAID = r"imports helper, package from its folder, which cannot be sent to other machines \(.* contains your home"


def test_launch_on_ssh_rejects_script_with_local_imports(script: Path) -> None:
    elsewhere = LaunchRequest(script="train.py", provider="ssh", settings={"hosts": "gpu1"})
    with pytest.raises(UsageError, match=SAID) as caught:
        make_plan(elsewhere)
    assert caught.value.field == "script"
    assert make_plan(LaunchRequest(script="train.py")), "here it finds them"


def test_script_without_own_folder_imports_is_accepted(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "helper.py").touch()
    (folder / "train.py").write_text(SCRIPT)
    check_script_folder(folder / "train.py")
    script.write_text("import os\n")
    check_script_folder(script)


# What a script imports, and its ranks will not find, is said before anything is made, with what to do.

HERE = f"is not installed for {sys.executable}. "


@pytest.fixture
def project_with_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)  # as README has it
    Path("beside.py").touch()
    Path("train.py").write_text("import os, beside, click\ndef f():\n    from no_such_thing.x import y\n")
    return tmp_path


def missing_packages(*, as_options: bool = True, **asked: Any) -> str:
    return missing_packages_text(
        make_plan(LaunchRequest(script="train.py", script_args=(), **asked)), as_options=as_options
    )


def test_missing_packages_hint_names_project_package_files(project_with_data: Path) -> None:
    assert missing_packages().startswith(f"no_such_thing {HERE}Add it to the script's inline metadata")
    Path("requirements.txt").write_text("click\n")
    Path("uv.lock").touch()
    expected = "Install the project's packages with --lock uv.lock or --requirements requirements.txt"
    assert missing_packages() == f"no_such_thing {HERE}{expected}"
    in_form = f"no_such_thing {HERE}Choose uv.lock or requirements.txt under packages"
    assert missing_packages(as_options=False) == in_form
    plan = make_plan(LaunchRequest(script="train.py", script_args=()))
    assert ("note", in_form) in plan_rows(plan)
    assert missing_packages(requirements="requirements.txt") == ""


def test_script_text_is_saved_without_secrets(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-of-mine")
    monkeypatch.setenv("LICENCE_LINE", "word-word-1234")  # secret only because the launch names it
    script.write_bytes(
        b"key = 's3cr3t-of-mine'\nurl = 'https://me:hunter22@host/'\nline = 'word-word-1234'\n\0\xff\x1b[31m"
    )
    request = replace(REQUEST, image_settings=("secret=LICENCE_LINE", "secret=UNSET"))
    for save in (
        lambda: save_before_launch(world.key, "ab12", request, joined=True),
        lambda: save_launch_record(world.key, "ab12", request, joined=True, source=ScriptState.capture(script)),
    ):
        save()
        text = world.stored_record().source.text
        assert text.startswith(b"key = '*****") and text.endswith(b"\0\xff\x1b[31m")
        saved = b"".join(path.read_bytes() for path in world.file.parent.iterdir())
        assert not any(each in saved for each in (b"s3cr3t", b"hunter22", b"word-word"))
    assert world.file.with_suffix(".text").stat().st_mode & 0o777 == 0o600
    remove_launch(world.key, "ab12")
    assert not list(world.file.parent.iterdir())


def test_long_script_text_is_not_saved(world: World, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"#" * (MAX_SCRIPT_BYTES + 1))
    save_before_launch(world.key, "ab12", REQUEST, joined=True)
    source = world.stored_record().source
    assert len(source.script) == 32 and source.text == b""


class Edits:
    """Watch of a script that imports a module and a package, with a clock that tests move."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.folder = 0.0, folder
        monkeypatch.setattr(script_functions, "monotonic", lambda: self.now)
        (folder / "package" / "inner").mkdir(parents=True)
        self.files = {
            "train.py": "import helper, os\ndef f():\n    from package.inner import deep\n",
            "helper.py": "import second\n",
            "second.py": "import train\n",
            "package/__init__.py": "",
            "package/inner/deep.py": "WORD = 1\n",
        }
        for name, text in {**self.files, "other.py": "x = 1\n", "package/data.txt": ""}.items():
            (folder / name).write_text(text)
        self.watch = ScriptWatch(folder / "train.py")

    def edited_after(self, seconds: float) -> str:
        self.watch.edited_file()
        self.now += seconds
        return self.watch.edited_file()


def test_edit_of_the_script_or_an_imported_file_is_found_once_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = Edits(tmp_path, monkeypatch)
    assert edits.edited_after(60) == ""
    for name in ("other.py", "new.py", "package/data.txt"):
        (tmp_path / name).write_text("changed = 1\n")
        assert edits.edited_after(1) == "", "a file that the script does not import"
    for name, text in edits.files.items():
        (tmp_path / name).write_text(text + "# half")
        assert edits.edited_after(0.2) == "", "half saved"
        (tmp_path / name).write_text(text + "# whole")
        assert edits.edited_after(0.2) == "", "saved again meanwhile"
        assert edits.edited_after(0.2) == Path(name).name == edits.edited_after(9)
        edits.watch = ScriptWatch(tmp_path / "train.py")
        assert edits.edited_after(1) == ""


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("write", "replace", "delete", "touch", "recreate")),
            st.sampled_from(("train.py", "helper.py", "package/inner/deep.py")),
            st.sampled_from(("", "# a\n", "# b\n")),
        ),
        max_size=6,
    )
)
def test_only_existing_files_with_other_content_count_as_edited(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("edits")
    with pytest.MonkeyPatch.context() as patch:
        edits = Edits(folder, patch)
        for how, name, more in steps:
            path, text = folder / name, edits.files[name] + more
            if how in ("delete", "recreate"):
                path.unlink(missing_ok=True)
            if how in ("write", "recreate"):
                path.write_text(text)
            elif how == "replace":
                path.with_suffix(".new").write_text(text)
                path.with_suffix(".new").replace(path)
            elif how == "touch" and path.exists():
                os.utime(path, (1, 1))
        differs = {
            Path(name).name
            for name, text in edits.files.items()
            if (folder / name).exists() and (folder / name).read_text() != text
        }
        found = edits.edited_after(0.4)
        assert found in differs if differs else found == ""


def test_files_of_a_module_are_found_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edits = Edits(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    edits.watch = ScriptWatch(Path("package/inner/deep.py"), "package.inner.deep")
    Path("package/__init__.py").write_text("# edited\n")
    assert edits.edited_after(1) == "__init__.py"


def test_missing_script_and_many_files_can_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edits = Edits(tmp_path, monkeypatch)
    (tmp_path / "train.py").unlink()
    edits.watch = ScriptWatch(tmp_path / "train.py")
    assert edits.edited_after(1) == ""
    (tmp_path / "train.py").write_text(edits.files["train.py"])
    assert edits.edited_after(1) == "train.py"
    monkeypatch.setattr(script_functions, "MAX_WATCHED_FILES", 2)
    edits.watch = ScriptWatch(tmp_path / "train.py")
    (tmp_path / "train.py").write_text("")
    assert edits.edited_after(1) == "train.py"
