"""A machine gets a host key of its own at the first login; whoever is cut off at that lets the next one in."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward_core.model.errors import PoolError
from skyward_core.providers.aws import instance_ssh
from skyward_core.providers.aws.instance_ssh import INSTALL_KEY_COMMAND, MAKE_KEY_COMMAND, HostKeyFile

FIRST, OWN = "ssh-ed25519 AAAAfirst", "ssh-ed25519 AAAAown"


class Killed(Exception):
    pass


class Machine:
    """A far end, which may be where a client is cut off."""

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


async def test_the_first_key_is_refused_once_there_is_another(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "known")
    await machine.login()
    assert machine.key.keys == [OWN] and machine.shows == OWN
    machine.cut = "before"
    await machine.login()  # nothing is done anew


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_whoever_comes_after_one_that_was_cut_off_goes_on(tmp_path: Path, cut: str) -> None:
    machine = Machine(tmp_path / "known", cut)
    with pytest.raises(Killed):
        await machine.login()
    assert set(machine.key.keys) == {FIRST, OWN}
    machine.cut = ""
    await machine.login()
    assert machine.key.keys == [OWN]


async def test_what_is_no_key_is_not_believed(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "known", says="sudo: a password is required\x1b[2J")
    with pytest.raises(PoolError, match="made itself no host key, but says"):
        await machine.login()
    assert machine.key.keys == [] and machine.shows == FIRST


async def test_a_server_that_goes_on_with_the_first_key_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_ssh, "KEY_ROTATION_TIMEOUT", 0.0)
    machine = Machine(tmp_path / "known")

    async def first() -> str:
        return FIRST

    with pytest.raises(PoolError, match="goes on showing the key that it booted with"):
        await machine.key.rotate(FIRST, machine.as_root, first)
