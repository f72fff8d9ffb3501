"""Host keys: known_hosts files, verdicts, accepted keys, and adaptations of asyncssh."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from skyward_core.model.errors import HostKeyError, PoolError
from skyward_core.providers.aws import ec2_ssh_transport
from skyward_core.providers.aws.ec2_ssh_transport import INSTALL_KEY_COMMAND, MAKE_KEY_COMMAND, HostKeyFile
from skyward_core.transport.ssh import known_hosts
from skyward_core.transport.ssh.asyncssh_patches import asyncssh
from skyward_tui.text.error_hint_text import format_error


def key(kind: str = "ssh-ed25519") -> asyncssh.SSHKey:
    return asyncssh.generate_private_key(kind).convert_to_public()


def line(pattern: str, public: asyncssh.SSHKey) -> str:
    return f"{pattern} {public.export_public_key().decode().strip()}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


def test_host_key_in_known_hosts_is_known_and_another_is_changed(file: Path) -> None:
    one, other = key(), key()
    file.write_text("# mine\n\n" + line("gpu1,10.0.0.1", one))
    known = known_hosts.look_up([file], "gpu1", 22)
    assert known.verdict(one) == "known"
    assert known.verdict(other) == "changed"
    assert known.places == ((file, 3),)
    assert known_hosts.look_up([file], "10.0.0.1", 22).verdict(one) == "known"


def test_accepted_key_is_appended_as_one_line_to_a_private_file(file: Path) -> None:
    one, two = key(), key()
    known_hosts.accept_key(known_hosts.ServerKey("gpu1", "gpu1", 22, one, file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text(file.read_text().rstrip("\n"))
    known_hosts.accept_key(known_hosts.ServerKey("gpu2", "10.0.0.2", 2222, two, file))
    assert [text.split()[0] for text in file.read_text().splitlines()] == ["gpu1", "[10.0.0.2]:2222"]


def test_key_is_accepted_once_and_unwritable_file_is_named(file: Path) -> None:
    one = known_hosts.ServerKey("gpu1", "gpu1", 2222, key(), file)
    for _ in range(2):
        known_hosts.accept_key(one)
    assert len(file.read_text().splitlines()) == 1

    nowhere = known_hosts.ServerKey("gpu1", "gpu1", 22, key(), Path("/proc/nowhere/known_hosts"))
    with pytest.raises(HostKeyError, match=r"gpu1.*accepted but cannot be saved to /proc/nowhere"):
        known_hosts.accept_key(nowhere)


def test_unreadable_known_hosts_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HostKeyError, match="cannot be read"):
        known_hosts.look_up([tmp_path], "gpu1", 22)  # a folder: reading it fails for root, too


def test_host_key_errors_name_fingerprint_file_and_trust_command(file: Path) -> None:
    old, new = key(), key("ecdsa-sha2-nistp256")
    shown = known_hosts.ServerKey("gpu1", "gpu1", 22, new, file)
    unknown = format_error(known_hosts.unknown_key_error(shown))
    assert new.get_fingerprint() in unknown and "ECDSA" in unknown
    assert unknown.endswith(f"accept it with: skyward-tui trust gpu1 --known-hosts {file}")
    file.write_text(line("gpu1", old))
    changed = format_error(known_hosts.changed_key_error(shown, known_hosts.look_up([file], "gpu1", 22)))
    assert changed.endswith(f"accept it with: skyward-tui trust gpu1 --known-hosts {file}")
    assert "host gpu1 is not" in unknown and "host gpu1 has CHANGED" in changed
    moved = known_hosts.changed_key_error(replace(shown, port=24), known_hosts.look_up([file], "gpu1", 22))
    assert "host gpu1 (gpu1 port 24) has CHANGED" in str(moved)
    usual = replace(shown, file=known_hosts.own_known_hosts_file())
    assert format_error(known_hosts.unknown_key_error(usual)).endswith("skyward-tui trust gpu1")
    for part in (old.get_fingerprint(), new.get_fingerprint(), f"{file} line 1", "ssh-keygen -f", "CHANGED"):
        assert part in changed


# What we put in the place of asyncssh's own: tests that fail as soon as that place is gone, or nobody asks it.


def test_asyncssh_is_pinned_below_its_next_major_version() -> None:
    import importlib.metadata

    required = [Requirement(line) for line in importlib.metadata.requires("skyward-tui") or ()]
    (asked,) = [one.specifier for one in required if one.name == "asyncssh"]
    major = int(asyncssh.__version__.partition(".")[0])
    assert asyncssh.__version__ in asked and f"{major + 1}.0" not in asked


# A machine gets a host key of its own at the first login; whoever is cut off at that lets the next one in.

FIRST, OWN = "ssh-ed25519 AAAAfirst", "ssh-ed25519 AAAAown"


class Killed(Exception):
    pass


class Machine:
    """Far end of a connection, which can cut a client off."""

    def __init__(self, path: Path, cut: str = "", says: str = f"motd\n{OWN} root@ip\n") -> None:
        self.key = HostKeyFile(path)
        self.shows, self.cut, self.says = FIRST, cut, says

    async def as_root(self, line: str) -> str:
        if line == INSTALL_KEY_COMMAND:
            if self.cut == "before":
                raise Killed
            self.shows = OWN
        return self.says if line == MAKE_KEY_COMMAND else ""

    async def shown(self) -> str:
        if self.cut == "after":
            raise Killed
        return self.shows

    async def login(self) -> None:
        believed = self.key.keys or [FIRST]
        assert self.shows in believed, "nobody is let in any more"
        await self.key.rotate(self.shows, self.as_root, self.shown)


async def test_first_host_key_of_an_instance_is_replaced_and_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "known")
    await machine.login()
    assert machine.key.keys == [OWN] and machine.shows == OWN
    machine.cut = "before"
    await machine.login()  # nothing is done anew


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_next_client_completes_interrupted_host_key_rotation(tmp_path: Path, cut: str) -> None:
    machine = Machine(tmp_path / "known", cut)
    with pytest.raises(Killed):
        await machine.login()
    assert set(machine.key.keys) == {FIRST, OWN}
    machine.cut = ""
    await machine.login()
    assert machine.key.keys == [OWN]


async def test_invalid_output_of_host_key_generation_is_rejected(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "known", says="sudo: a password is required\x1b[2J")
    with pytest.raises(PoolError, match="generated no host key, but printed"):
        await machine.login()
    assert machine.key.keys == [] and machine.shows == FIRST


async def test_server_that_keeps_its_first_key_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ec2_ssh_transport, "KEY_ROTATION_TIMEOUT", 0.0)
    machine = Machine(tmp_path / "known")

    async def first() -> str:
        return FIRST

    with pytest.raises(PoolError, match="still uses the key from its first boot"):
        await machine.key.rotate(FIRST, machine.as_root, first)
