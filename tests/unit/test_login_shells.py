"""What is sent as a command line means the same to every login shell that is installed here."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skyward_core.node.bootstrap import host_command_server, receive_file
from skyward_core.transport.bundle_builder import bundle
from skyward_core.transport.ssh import bootstrap_channel, ssh_transport

SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "tcsh", "fish")


def run(shell: str, command: str, given: bytes, home: Path) -> bytes:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed here")
    ours = Path(sys.executable).parent  # has it by the name with the version
    env = {"HOME": str(home), "PATH": f"{ours}:{os.environ['PATH']}"}
    return subprocess.run(
        [path, "-c", command], input=given, capture_output=True, env=env, check=False, timeout=60
    ).stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_the_first_command(shell: str, tmp_path: Path) -> None:
    major, minor = sys.version_info[:2]
    words = [f"{major}.{minor}", f"{major},{minor}", "", "/odd 'path'/python", "word"]
    command = f"exec sh -c '{bootstrap_channel._SHELL}' skyward {shlex.join(words)}"
    code = bootstrap_channel._bootstrap_code()
    asked = json.dumps({"word": "word", "folder": "p.0", "bundles": ["0", "1"]}).encode()
    said = run(shell, command, b"word%08x%b%08x%b" % (len(code), code, len(asked), asked), tmp_path)
    facts = json.loads(said.strip().removeprefix(b"word "))
    assert facts["version"][:2] == [major, minor] and facts["root"] == f"{tmp_path}/.cache/skyward"


@pytest.fixture
def interpreter(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Stands where the client's is, in a folder of folders that nobody else may write to; it says that it ran."""
    with tempfile.TemporaryDirectory(dir="/var/lib", prefix="own-") as folder:  # below /tmp is below everybody's
        python = Path(folder, "venv", "bin", "python")
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\n: > "${0%/*}/../../ran"\nexit 97\n')
        python.chmod(0o755)
        yield python


def _writable(python: Path) -> None:
    python.parent.chmod(0o777)


def _group(python: Path) -> None:
    os.chown(python.parents[1], -1, 12345)
    python.parents[1].chmod(0o775)


def _file(python: Path) -> None:
    python.chmod(0o757)


def _somebodys(python: Path) -> None:
    os.chown(python.parent, 12345, -1)


def _link_to_a_strangers(python: Path) -> None:
    shared = python.parents[2] / "shared"
    shared.mkdir()
    python.rename(shared / "python")
    shared.chmod(0o777)
    python.symlink_to("../../shared/python")


def _link_over_a_strangers(python: Path) -> None:
    shared = python.parents[2] / "shared"
    shared.mkdir()
    python.rename(python.with_name("real"))
    (shared / "link").symlink_to(python.with_name("real"))
    shared.chmod(0o777)
    python.symlink_to(shared / "link")


def _folder_below_a_strangers(python: Path) -> None:
    shared = python.parents[2] / "shared"
    shared.mkdir()
    python.parents[1].rename(shared / "venv")
    shared.chmod(0o777)
    python.parents[1].symlink_to(shared / "venv")


def _own_link(python: Path) -> None:
    python.rename(python.with_name("real"))
    python.symlink_to("real")


def _own_group(python: Path) -> None:
    os.chown(python.parent, -1, os.getuid())
    python.parent.chmod(0o775)


@pytest.mark.skipif(os.getuid() != 0, reason="gives files to others")
@pytest.mark.parametrize(
    ("change", "runs"),
    [
        (None, True), (_own_link, True), (_own_group, True), (_writable, False), (_group, False), (_file, False),
        (_somebodys, False), (_link_to_a_strangers, False), (_link_over_a_strangers, False),
        (_folder_below_a_strangers, False),
    ],
)  # fmt: skip
def test_the_clients_path_is_run_only_where_it_is_nobody_elses(
    change: Callable[[Path], None] | None, runs: bool, interpreter: Path, tmp_path: Path
) -> None:
    if change is not None:
        change(interpreter)
    assert _is_tried(interpreter, tmp_path) is runs


@pytest.mark.skipif(os.getuid() != 0, reason="makes files in /var/lib")
def test_the_clients_path_is_not_run_below_tmp(interpreter: Path, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="own-") as folder:
        shutil.copytree(interpreter.parents[1], Path(folder, "venv"))
        assert not _is_tried(Path(folder, "venv/bin/python"), tmp_path)


def _is_tried(python: Path, home: Path) -> bool:
    words = ["3.0", "3,0", "", str(python), "word", "p"]  # of that version is no other
    done = subprocess.run(
        ["sh", "-c", f"exec sh -c '{bootstrap_channel._SHELL}' skyward {shlex.join(words)}"],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert b"word none" in done.stdout
    return (python.parents[2] / "ran").exists()


@pytest.mark.parametrize("bundled", [True, False])
def test_a_client_that_leaves_before_it_starts_an_agent_leaves_no_process(bundled: bool, tmp_path: Path) -> None:
    made = bundle()
    if bundled:
        host_command_server.unpack(made.archive, str(tmp_path / ".cache/skyward" / made.name))
    major, minor = sys.version_info[:2]
    folder = f"p.{tmp_path.name}"
    words = [f"{major}.{minor}", f"{major},{minor}", "", sys.executable, "word", folder]
    command = f"exec sh -c '{bootstrap_channel._SHELL}' skyward {shlex.join(words)}"
    code = bootstrap_channel._bootstrap_code()
    asked = json.dumps({"word": "word", "folder": folder, "bundles": [made.name, made.name], "starts": True}).encode()
    said = run("sh", command, b"word%08x%b%08x%b" % (len(code), code, len(asked), asked), tmp_path)
    assert json.loads(said.strip().removeprefix(b"word "))["bundle"] is bundled
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert folder not in running  # run() has waited for the end of all that held its output


@pytest.mark.parametrize("shell", SHELLS)
def test_putting_a_file(shell: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder's"

    def put(attempts: str, data: bytes) -> bytes:
        words = (str(folder), "name", "3", attempts, "word")
        return run(
            shell,
            ssh_transport.module_command(
                sys.executable, str(Path(receive_file.__file__).parent), "receive_file", *words
            ),
            data,
            tmp_path,
        )

    assert put("1", b"abc") == b"\nword 0\n\nword\n"
    assert (folder / "name").read_bytes() == b"abc"
    assert put("2", b"cu") == b"\nword 0\n"
    assert (folder / "name").read_bytes() == b"abc"
    assert put("2", b"t") == b"\nword 2\n\nword\n"
    assert (folder / "name").read_bytes() == b"cut"
    assert [path.name for path in folder.iterdir()] == ["name"]


def test_command_lines_need_no_quoting_beyond_single_quotes() -> None:
    assert not set(bootstrap_channel._SHELL) & set("'!\\\n")
    assert not set(ssh_transport._MODULE) & set("'!\\\n")
