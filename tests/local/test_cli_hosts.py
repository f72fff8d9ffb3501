"""Host commands as real processes against an SSH server on loopback."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.support.cli import Cli
from tests.support.sshd import Host


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path / "host", noise="echo it-is-me")
    await host.start()
    yield host
    await host.stop()


@pytest.fixture
def cli(tmp_path: Path, host: Host) -> Cli:
    """Command line of a user who logs in to hosts with a key of ``~/.ssh/config``."""
    folder = tmp_path / "work"  # not one that holds the person's home: that never travels
    folder.mkdir()
    cli = Cli(folder)
    person = tmp_path / "person"
    (person / ".ssh").mkdir(parents=True)
    (person / ".ssh" / "config").write_text(f"Host *\n  IdentityFile {host.client_key}\n")
    host.client_key.chmod(0o600)
    cli.env["HOME"] = str(person)
    cli.env.pop("SSH_AUTH_SOCK", None)
    return cli


async def run(cli: Cli, *arguments: Any, status: int = 0) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(cli, *arguments, status=status)


async def test_trust_asks_for_confirmation_and_rejects_a_changed_key(host: Host, cli: Cli, tmp_path: Path) -> None:
    name = f"127.0.0.1:{host.port}"
    assert f"accept it with: skyward-tui trust {name}" in (await run(cli, "hosts", name, status=1)).stdout
    done = await run(cli, "trust", name, status=2)
    assert host.key.get_fingerprint() in done.stderr and "--yes" in done.stderr

    def answer(word: str) -> str:
        child = cli.terminal("trust", name)
        child.expect("Trust this key")
        child.sendline(word)
        output = child.read()
        child.close()
        return output

    assert "not accepted" in await asyncio.to_thread(answer, "n")
    assert not (cli.folder / "home" / "known_hosts").exists()
    assert "written to" in await asyncio.to_thread(answer, "y")
    known = (cli.folder / "home" / "known_hosts").read_text()
    assert known.startswith(f"[127.0.0.1]:{host.port} ssh-ed25519 ")
    assert "already trusted" in (await run(cli, "trust", name)).stderr

    await host.stop()
    host.key = asyncssh.generate_private_key("ssh-ed25519")
    await host.start()
    assert "CHANGED" in (await run(cli, "trust", name, "--yes", status=1)).stderr
    assert (cli.folder / "home" / "known_hosts").read_text() == known
    other = tmp_path / "other"
    await run(cli, "trust", name, "--yes", "--known-hosts", other)
    assert host.key.export_public_key().decode().split()[1] in other.read_text()


@pytest.mark.proof("1 s of a processor")
async def test_run_and_ssh_commands_work_on_trusted_hosts(host: Host, cli: Cli, tmp_path: Path) -> None:
    name = f"127.0.0.1:{host.port}"
    done = await run(cli, "run", "endings.py:fine", "--hosts", name, status=1)
    assert f"skyward-tui trust {name}" in done.stderr
    await run(cli, "trust", name, "--yes")
    cli.write("skyward.toml", f'[hosts]\nlab = ["{name}"]\n')
    try:
        done = await run(cli, "run", "endings.py:fine", "--hosts", "lab", "--pool", "far", "--keep")
        assert "seen by rank 0" in done.stdout
        if shutil.which("ssh"):
            assert "it-is-me" in (await run(cli, "ssh", "far")).stdout
            assert (cli.folder / "home" / "ssh_config.d" / "far.conf").exists()
        key = (await asyncio.to_thread(cli.pools))["far"]["key"]
        for word in ("far", key):
            assert "1 node" in (await run(cli, "ssh", word, "3", status=2)).stderr
    finally:
        await run(cli, "down", "far")
    assert not list((cli.folder / "home").glob("ssh_config.d/*"))
    assert "pool far ended at" in (await run(cli, "ssh", "far", status=2)).stderr


@pytest.mark.proof("1 s of a processor")
async def test_doctor_checks_the_hosts_of_the_settings(host: Host, cli: Cli) -> None:
    assert "no hosts to check" in (await run(cli, "doctor")).stdout
    name = f"127.0.0.1:{host.port}"
    cli.write("skyward.toml", f'[hosts]\nlab = ["{name}"]\n')
    assert f"skyward-tui trust {name}" in (await run(cli, "doctor", status=1)).stdout
    await run(cli, "trust", name, "--yes")
    done = await run(cli, "doctor")
    assert "reachable as" in done.stdout and "its clock is right" in done.stdout


async def test_unsafe_host_name_of_project_settings_runs_no_command(cli: Cli) -> None:
    config = Path(cli.env["HOME"]) / ".ssh" / "config"
    config.write_text('Host *\n  ProxyCommand sh -c "echo %h"\n')
    cli.write("skyward.toml", '[hosts]\nlab = ["x;>pwned"]\n')
    for arguments in (
        ["hosts"],
        ["hosts", "y;>pwned"],
        ["doctor"],
        ["run", "endings.py:fine", "--hosts", "lab"],
        ["run", "endings.py:fine", "--hosts", "$(>pwned)"],
        ["run", "endings.py:fine", "--hosts", "lab", "--dry-run"],
        ["trust", "x;>pwned"],
    ):
        done = await asyncio.to_thread(cli, *arguments, status=None)
        assert not list(cli.folder.glob("*pwned*")), arguments
        assert done.returncode != 0, arguments
        assert "is not a valid host" in done.stdout + done.stderr, (arguments, done.stdout + done.stderr)


async def test_hosts_option_and_ssh_provider_require_each_other(cli: Cli) -> None:
    assert "--hosts" in (await run(cli, "run", "endings.py:fine", "--provider", "ssh", status=2)).stderr
    done = await run(cli, "run", "endings.py:fine", "--provider", "local", "--hosts", "a", status=2)
    assert "Remove one of them" in done.stderr


@pytest.mark.proof("2 s of a processor")
async def test_job_sends_its_workdir_and_later_edits(host: Host, cli: Cli) -> None:
    name = f"127.0.0.1:{host.port}"
    await run(cli, "trust", name, "--yes")
    cli.write("word.txt", "first\n")
    cli.write("task.yaml", "workdir: .\nsetup: touch set-up\nrun: ls; cat word.txt\n")
    done = await run(cli, "launch", "task.yaml", "--hosts", name, "-c", "job")
    assert "r000| set-up\n" in done.stdout and "r000| first\n" in done.stdout
    cli.write("word.txt", "second\n")
    cli.write("new.txt", "")
    done = await run(cli, "exec", "job", "task.yaml")
    assert {"r000| second", "r000| new.txt", "r000| set-up"} <= set(done.stdout.splitlines())
    cli.write("alone.yaml", "run: ls | wc -l\n")
    done = await run(cli, "launch", "alone.yaml", "--hosts", name, "-c", "alone", "--down")
    assert "r000| 0\n" in done.stdout, "without a working folder none travels"
    await run(cli, "down", "job", "-y")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("remote", [False, True], ids=["local", "ssh"])
async def test_run_and_down_work_with_names_that_are_not_utf8(
    host: Host, cli: Cli, tmp_path: Path, remote: bool
) -> None:
    folder = tmp_path / os.fsdecode(b"j\xfcrg")
    folder.mkdir()
    odd = Cli(folder)
    odd.env |= {"HOME": cli.env["HOME"], "ODD": os.fsdecode(b"\xfc")}
    odd.env.pop("SSH_AUTH_SOCK", None)
    odd.write(
        os.fsdecode(b"s\xe9.py"), "import skyward_core as sky\n\n@sky.function\ndef same(word: str): return word\n"
    )
    name = f"127.0.0.1:{host.port}"
    await run(odd, "trust", name, "--yes")
    hosts = ["--hosts", name] if remote else []
    word = os.fsdecode(b"word=\xe9")
    await run(odd, "run", os.fsdecode(b"s\xe9.py:same"), "-a", word, "--pool", "p", "--keep", *hosts)
    assert "returned" in (await run(odd, "results", "p")).stdout
    await run(odd, "down", "p", "-y")
    assert odd.pools() == {}
