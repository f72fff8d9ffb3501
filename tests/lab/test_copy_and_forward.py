"""Commands ``cp`` and ``forward`` with nodes on hosts of the lab."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import asyncssh
import pytest

import skyward_core as sky
from skyward_core.client import node_file_copy
from skyward_core.store.ledger import Ledger
from tests.support.cli import call
from tests.support.waiting import wait_until

from . import Lab
from .pools import pool, ssh


@pytest.mark.proof("2 s of a processor")
def test_forwarded_port_of_a_node_is_reachable_until_forward_ends(lab: Lab) -> None:
    """The server listens on the loopback address of the second node."""
    serves = "test $SKYPILOT_NODE_RANK = 0 || (python3 -m http.server 8123 --bind 127.0.0.1 &)"
    with pool(lab, ssh(lab, lab.hosts[:2]), name="served") as compute:
        Path("page.txt").write_text("of the second node")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        program = [sys.executable, "-m", "skyward_tui", "forward", "served:1", f"{port}:8123"]
        forward = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
        try:

            def is_closed_by_the_node() -> bool:
                try:
                    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                        return connection.recv(1) == b""
                except OSError:
                    assert forward.poll() is None, forward.stderr and forward.stderr.read()
                    return False

            def listed() -> bool:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as page:
                        return page.status == 200
                except OSError:
                    assert forward.poll() is None, forward.stderr and forward.stderr.read()
                    return False

            wait_until(is_closed_by_the_node, what="a connection while no program listens")
            sky.shell(serves) @ compute
            wait_until(listed, what="the page")
        finally:
            forward.terminate()
            _, output = forward.communicate(timeout=30)
        assert output.splitlines() == [f"http://127.0.0.1:{port} is port 8123 of node 1 of pool served until ctrl-c"], (
            "ssh reports no connection that failed"
        )
        for words, why in (
            (["served:2", "1"], "has no rank 2. Choose a rank from 0 to 1"),
            (["served", "0"], "invalid port 0"),
        ):
            done = subprocess.run([*program[:4], *words], capture_output=True, text=True, check=False)
            assert done.returncode == 2 and why in done.stderr


def test_cp_copies_files_and_folders_completely_or_not_at_all(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cp(*words: object) -> tuple[int, str]:
        done = call(("cp", *words), dict(os.environ), tmp_path)
        return done.returncode, done.stderr

    def breaks_off(done: int, total: int) -> None:
        raise InterruptedError(f"after {done} of {total}")

    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "secret").write_bytes(secret := os.urandom(300_000))
    (tmp_path / "data" / "deep" / "secret").chmod(0o600)
    (tmp_path / "data" / "empty").mkdir()
    host = lab.hosts[1]
    with pool(lab, ssh(lab, lab.hosts[:2]), name="copied"):
        assert cp("data", "copied:1:") == (0, "1 file, 300 kB: data on node 1\n")
        home = host.run("ls -d ~root").strip() if lab.user == "root" else host.run(f"ls -d ~{lab.user}").strip()
        assert "600 data/deep/secret" in host.run(f"cd {home} && stat -c '%a %n' data/deep/secret data/empty")
        assert cp("copied:1:data", "back")[0] == 0
        assert (tmp_path / "back" / "deep" / "secret").read_bytes() == secret
        assert (tmp_path / "back" / "deep" / "secret").stat().st_mode & 0o777 == 0o600
        (tmp_path / "secret").write_text("new")
        assert cp("secret", "copied:1:data/deep/")[0] == 0
        (tmp_path / "secret").write_text("old")
        assert cp("copied:1:~/data/deep/secret", ".")[0] == 0
        assert (tmp_path / "secret").read_text() == "new"
        row = Ledger().find_pool("copied")
        assert row is not None
        with pytest.raises(sky.PoolError, match="the copy was interrupted: after"):
            node_file_copy.copy_to_node(Ledger(), row, 1, tmp_path / "back", "half", breaks_off)
        with pytest.raises(sky.PoolError, match="the copy was interrupted: after"):
            node_file_copy.copy_from_node(Ledger(), row, 1, "data/deep", tmp_path / "half", breaks_off)
        synced: list[str] = []
        fsync, fsync_there = os.fsync, asyncssh.SFTPClientFile.fsync

        def noted(number: int) -> None:
            synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))
            fsync(number)

        async def noted_there(file: Any) -> None:
            names = host.run(f"ls -A {home}/data/deep").split()
            assert "again" not in names and any(name.startswith(".again.") for name in names), names
            synced.append("there")
            await fsync_there(file)

        monkeypatch.setattr(os, "fsync", noted)
        monkeypatch.setattr(asyncssh.SFTPClientFile, "fsync", noted_there)
        node_file_copy.copy_from_node(Ledger(), row, 1, "data/deep", tmp_path / "kept", lambda *far: None)
        part, *rest = synced
        assert re.fullmatch(rf"{tmp_path}/\.kept\.\w+\.part/kept/secret", part), "before it has its name"
        assert rest == [part.removesuffix("/secret"), str(tmp_path)]
        node_file_copy.copy_to_node(Ledger(), row, 1, tmp_path / "secret", "data/deep/again", lambda *far: None)
        assert synced[3:] == ["there"]
        monkeypatch.undo()
        found = host.run(f"ls -A {home} {home}/data").split()
        assert not [
            name for name in (*found, *(each.name for each in tmp_path.iterdir())) if "part" in name or "half" in name
        ]


@pytest.mark.proof("3 s of a processor")
def test_cp_failure_is_one_line(lab: Lab, tmp_path: Path) -> None:
    def cp(*words: object) -> tuple[int, str]:
        done = call(("cp", *words), dict(os.environ), tmp_path)
        return done.returncode, done.stderr

    (tmp_path / "links").mkdir()
    (tmp_path / "secret").write_text("new")
    host = lab.hosts[1]
    with pool(lab, ssh(lab, lab.hosts[:2]), name="copied"):
        assert cp("links", "copied:1:")[0] == 0
        home = host.run("cd ~root && pwd" if lab.user == "root" else f"cd ~{lab.user} && pwd").strip()
        host.run(f"ln -s /etc/passwd {home}/links/link")
        for words, why in (
            (("copied:1:links", "more"), "links/link is a link"),
            (("secret", "copied:1:links/link"), "already exists on the node as a link"),
            (("links", "copied:1:"), "already exists on the node as another file or folder"),
            (("copied:1:none", "."), "/none does not exist on the node"),
            (("copied:1:", "."), "POOL:PATH: no file given. Name a file or a folder on the node"),
            (("copied:2:x", "."), "has no rank 2. Choose a rank from 0 to 1"),
        ):
            status, text = cp(*words)
            assert status in (1, 2) and why in text and text.count("\n") == 1, (words, text)
        assert not (tmp_path / "more").exists()
