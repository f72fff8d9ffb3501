"""What is sent as a command line means the same to every login shell that is installed here."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skyward_core.agent import incoming
from skyward_core.transport import channel, onnode, ssh
from skyward_core.transport.bundle import bundle

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
    command = f"exec sh -c '{channel._SHELL}' skyward {shlex.join(words)}"
    code = channel._onnode()
    asked = json.dumps({"word": "word", "folder": "p.0", "bundle": "0"}).encode()
    said = run(shell, command, b"%08x%b%08x%b" % (len(code), code, len(asked), asked), tmp_path)
    facts = json.loads(said.strip().removeprefix(b"word "))
    assert facts["version"][:2] == [major, minor] and facts["root"] == f"{tmp_path}/.cache/skyward"


@pytest.mark.parametrize("bundled", [True, False])
def test_a_client_that_leaves_before_it_starts_an_agent_leaves_no_process(
    bundled: bool, tmp_path: Path
) -> None:
    made = bundle()
    if bundled:
        onnode.unpack(made.archive, str(tmp_path / ".cache/skyward" / made.name))
    major, minor = sys.version_info[:2]
    folder = f"p.{tmp_path.name}"
    words = [f"{major}.{minor}", f"{major},{minor}", "", sys.executable, "word", folder]
    command = f"exec sh -c '{channel._SHELL}' skyward {shlex.join(words)}"
    code = channel._onnode()
    asked = json.dumps({"word": "word", "folder": folder, "bundle": made.name, "starts": True}).encode()
    said = run("sh", command, b"%08x%b%08x%b" % (len(code), code, len(asked), asked), tmp_path)
    assert json.loads(said.strip().removeprefix(b"word "))["bundle"] is bundled
    assert onnode.having(folder) == []  # run() has waited for the end of all that held its output


@pytest.mark.parametrize("shell", SHELLS)
def test_putting_a_file(shell: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder's"

    def put(attempts: str, data: bytes) -> bytes:
        words = (str(folder), "name", "3", attempts, "word")
        return run(
            shell,
            ssh.module_command(sys.executable, str(Path(incoming.__file__).parent), "incoming", *words),
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
    assert not set(channel._SHELL) & set("'!\\\n")
    assert not set(ssh._MODULE) & set("'!\\\n")
