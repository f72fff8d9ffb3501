"""How hosts are named: parts of a name, aliases of ~/.ssh/config, groups of skyward.toml, ``ssh POOL``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from skyward_core.model.errors import UsageError
from skyward_core.providers.ssh.provider import SSH
from skyward_core.transport.ssh import openssh_config
from skyward_core.transport.ssh.asyncssh_import import asyncssh
from skyward_core.transport.ssh.connect import resolve
from skyward_core.transport.ssh.target import Target


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".ssh").mkdir(mode=0o700)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1", ("gpu1", None, None)),
        ("me@gpu1", ("gpu1", "me", None)),
        ("me@gpu1:2222", ("gpu1", "me", 2222)),
        ("10.0.0.1:22", ("10.0.0.1", None, 22)),
        ("fe80::1", ("fe80::1", None, None)),
        ("[fe80::1]:2222", ("fe80::1", None, 2222)),
        ("name@domain@gpu1", ("gpu1", "name@domain", None)),
    ],
)
def test_names(text: str, expected: tuple[str, str | None, int | None]) -> None:
    target = Target("").named(text)
    assert (target.host, target.user, target.port) == expected


@pytest.mark.parametrize("text", ["", "me@", "-oProxyCommand=evil", "a b", "gpu1:0", "gpu1:70000", "gpu1:x"])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        Target("").named(text)


async def test_an_alias_brings_all_that_the_configuration_says(home: Path) -> None:
    (home / ".ssh/config").write_text(
        "Host box\n  HostName 10.1.2.3\n  Port 2200\n  User alice\n  ProxyJump bob@gate:2022\n"
        "  HostKeyAlias the-box\n  UserKnownHostsFile ~/.ssh/special\n  IdentityFile ~/.ssh/box_key\n"
    )
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(home / ".ssh/box_key")
    route = await resolve(Target("box"))
    assert str(route) == "alice@10.1.2.3:2200"
    assert (route.name, route.jump) == ("the-box", "bob@gate:2022")
    assert home / ".ssh/special" in route.known_hosts
    assert route.known_hosts[0] == home / "sky/known_hosts"  # accepted keys go to our own file

    # What is said in the call goes first, and config=False leaves the file unread.
    assert (await resolve(Target("box", user="eve", port=22, jump="other"))).user == "eve"
    assert str(await resolve(Target("box", user="eve", config=False))) == "eve@box:22"
    own = await resolve(Target("box", known_hosts="~/.ssh/pool"))
    assert own.known_hosts == (home / ".ssh/pool",)


async def test_a_configuration_cannot_switch_verification_off(home: Path) -> None:
    (home / ".ssh/config").write_text("Host *\n  UserKnownHostsFile none\n  StrictHostKeyChecking no\n")
    route = await resolve(Target("box"))
    assert home / "sky/known_hosts" in route.known_hosts


async def test_a_jump_host_does_not_jump_through_itself(home: Path) -> None:
    (home / ".ssh/config").write_text("Host *\n  ProxyJump gate\n")
    assert (await resolve(Target("gate"))).jump is None
    assert (await resolve(Target("box"))).jump == "gate"


async def test_a_broken_configuration_is_named(home: Path) -> None:
    (home / ".ssh/config").write_text("Host box\n  Port many\n")
    with pytest.raises(UsageError, match=r"~/\.ssh/config cannot be used for host box"):
        await resolve(Target("box"))


def test_groups_of_skyward_toml(home: Path) -> None:
    (home / "skyward.toml").write_text('[hosts]\nlab = ["gpu1", "me@gpu2:2222"]\none = "gpu3"\n')
    assert SSH("lab").hosts == ("gpu1", "me@gpu2:2222")
    assert SSH(hosts="@lab").hosts == ("gpu1", "me@gpu2:2222")
    assert SSH(["@one", "gpu9"]).hosts == ("gpu3", "gpu9")
    assert SSH("gpu7").hosts == ("gpu7",)
    assert SSH(["lab"]).hosts == ("lab",)  # in a list a bare name is a host
    with pytest.raises(UsageError, match=r"no group 'labs'.*lab, one"):
        SSH("@labs")
    (home / "skyward.toml").unlink()
    with pytest.raises(
        UsageError, match=r"no group 'labs' under \[hosts\] in skyward\.toml, which names none"
    ):
        SSH("@labs")


def test_wishes_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="at least one host"):
        SSH([])
    with pytest.raises(UsageError, match="Named twice: gpu1"):
        SSH(["gpu1", "gpu2", "gpu1"])
    with pytest.raises(UsageError, match="'known', 'ask' or 'accept-new'"):
        SSH(["gpu1"], host_keys="off")  # type: ignore[arg-type]


def test_the_provider_is_a_value() -> None:
    made = SSH(["a", "b"], keys="~/.ssh/k", jump="gate")
    assert SSH.from_json(made.to_json()) == made
    assert hash(made) == hash(SSH(("a", "b"), keys=["~/.ssh/k"], jump="gate"))
    assert made.default_nodes == 2


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh client to ask")
async def test_openssh_understands_the_entries_of_a_pool(home: Path) -> None:
    (home / ".ssh/config").write_text("Host box\n  HostName 10.1.2.3\n  User alice\n  ProxyJump gate\n")
    targets = [Target("box"), Target("10.0.0.2", user="me", port=2222, keys=(str(home / "a key"),))]
    whole = await openssh_config.write("train", targets)

    def said(name: str) -> dict[str, str]:
        done = subprocess.run(
            ["ssh", "-G", "-F", str(whole), name], capture_output=True, text=True, check=True
        )
        return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)

    for name in ("train", "train-0"):
        assert (said(name)["hostname"], said(name)["user"], said(name)["proxyjump"]) == (
            "10.1.2.3",
            "alice",
            "gate",
        )
    second = said("train-worker1")
    assert second["hostname"] == said("train-1")["hostname"]
    assert (second["hostname"], second["port"], second["user"]) == ("10.0.0.2", "2222", "me")
    assert second["identityfile"] == str(home / "a key") and second["stricthostkeychecking"] in (
        "yes",
        "true",
    )
    openssh_config.remove("train")
    assert said("train-1")["hostname"] == "train-1"


def test_the_include_line_is_added_once_at_the_top(home: Path) -> None:
    (home / ".ssh/config").write_text("Host box\n  Port 1\n")
    assert openssh_config.add_include_line() and not openssh_config.add_include_line()
    assert (home / ".ssh/config").read_text() == f"{openssh_config.include_line()}\n\nHost box\n  Port 1\n"
