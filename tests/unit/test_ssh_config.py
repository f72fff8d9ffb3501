"""SSH host names, ``~/.ssh/config``, host groups, and exported SSH configurations."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from skyward_core.client.ssh_host_groups_and_access import fetch_host_key, list_gpu_use, new_group
from skyward_core.model.errors import UsageError
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.slurm.provider import Slurm
from skyward_core.providers.ssh.provider import SSH
from skyward_core.transport.ssh import known_hosts, ssh_config_and_preopened_sockets
from skyward_core.transport.ssh.asyncssh_patches import asyncssh
from skyward_core.transport.ssh.connection import connect
from skyward_core.transport.ssh.host_address_and_python import Target, why_unsafe
from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import (
    add_include_line,
    include_line,
    jump_target,
    remove_pool_config,
    resolve,
    write_pool_config,
)
from skyward_tui.text.error_hint_text import format_error
from tests.support.examples import examples
from tests.support.host_key import PUBLIC
from tests.support.processes import exists
from tests.support.waiting import until


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
def test_ssh_host_text_is_parsed(text: str, expected: tuple[str, str | None, int | None]) -> None:
    target = Target("").with_host(text)
    assert (target.host, target.user, target.port) == expected


IPV4 = st.ip_addresses(v=4).map(str)
IPV6 = st.builds("{}{}".format, st.ip_addresses(v=6), st.sampled_from(["", "%eth0", "%25"]))
HOST_TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
USER_NAMES = st.from_regex(r"[a-z_][a-z0-9_-]{0,12}(@corp|\\\\me)?", fullmatch=True)


@given(IPV4 | IPV6 | HOST_TEXT, st.none() | USER_NAMES | HOST_TEXT, st.none() | st.integers(1, 65535))
def test_formatted_host_is_parsed_as_the_same_host(host: str, user: str | None, port: int | None) -> None:
    assume(not why_unsafe(host, user or "") and not (user or host).startswith("ssh://"))
    written = Target(host, user, port)
    assert Target("").with_host(written.login) == written
    assert Target("").with_host(written.label) == Target(host, port=port)


def test_unknown_host_key_error_shows_the_trust_command_for_ipv6(home: Path) -> None:
    shown = known_hosts.ServerKey(
        Target("::1", port=2222).label, "::1", 2222, asyncssh.import_public_key(PUBLIC), home / "sky/known_hosts"
    )
    text = format_error(known_hosts.unknown_key_error(shown))
    assert text.startswith("The key of host [::1]:2222 is not known") and text.endswith("trust '[::1]:2222'")


async def test_route_of_an_ipv6_host_is_written_with_brackets() -> None:
    assert str(await resolve(Target("::1", "me", 2222, config=False))) == "me@[::1]:2222"


def test_ssh_command_has_user_and_port() -> None:
    commands = [Target("gpu1").ssh_command, Target("gpu1", "me", 2222).ssh_command, Target("::1", port=22).ssh_command]
    assert commands == ["ssh gpu1", "ssh -p 2222 me@gpu1", "ssh -p 22 ::1"]


@pytest.mark.parametrize(
    "text",
    [
        "", "me@", "-oProxyCommand=evil", "a b", "gpu1:0", "gpu1:70000", "gpu1:x", "gpu1:²", f"gpu1:{'1' * 5000}",
        "x" * 256,
    ],
)  # fmt: skip
def test_invalid_ssh_host_text_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        Target("").with_host(text)


UNSAFE = ["x;>pwned", "x`>pwned`", "$(>pwned)", "x|y", "x&y", "x>y", 'x"y', "x'y", "x\\y", "x{y}", "x\ny", "x\x1b"]
UNSAFE_USERS = ["x;>pwned", "`>pwned`", "$(>pwned)", "-oProxyCommand=x", "x -oy", "x|y", "x\\", "x\ny", '"', "'"]


@pytest.mark.parametrize("host", UNSAFE)
def test_unsafe_host_name_is_rejected_at_every_entry_point(home: Path, host: str) -> None:
    (home / "skyward.toml").write_text(f"[hosts]\nlab = [{json.dumps(host)}]\n")
    doors: list[Callable[[], object]] = [
        lambda: Target(host),
        lambda: Target("gpu1", jump=host),
        lambda: Target("gpu1", jump=f"gate,{host}"),
        lambda: Target("").with_host(f"me@{host}:22"),
        lambda: SSH([host]),
        lambda: SSH(host),
        lambda: SSH("@lab"),
        lambda: SSH(["gpu1"], jump=host),
        lambda: SSH.from_json(SSH(["gpu1"]).to_json() | {"hosts": [host]}),
        lambda: Slurm(login=host),
        lambda: new_group("other", host),
        lambda: fetch_host_key(host),
    ]
    for door in doors:
        with pytest.raises(UsageError):
            door()


@pytest.mark.parametrize("user", UNSAFE_USERS)
def test_unsafe_user_name_is_rejected_at_every_entry_point(user: str) -> None:
    doors: list[Callable[[], object]] = [
        lambda: Target("gpu1", user=user),
        lambda: Target("").with_host(f"{user}@gpu1"),
        lambda: Target("gpu1", jump=f"{user}@gate"),
        lambda: SSH(["gpu1"], user=user),
        lambda: SSH([f"{user}@gpu1"]),
        lambda: Slurm(login=f"{user}@gpu1"),
    ]
    for door in doors:
        with pytest.raises(UsageError):
            door()


@pytest.mark.parametrize(
    "name", ["gpu1", "name@domain@gpu1", "DOMAIN\\me@gpu1", "fe80::1%eth0", "grün_1.lab", "a$b@gpu1"]
)
def test_safe_host_name_is_accepted(name: str) -> None:
    assert Target("").with_host(name).login == name


WAYS = pytest.mark.parametrize("program", ["ssh", ""], ids=["ssh", "no ssh"])


@pytest.fixture
def config_reader(program: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reader of the configuration: OpenSSH's, or asyncssh's without the program."""
    if program and shutil.which(program) is None:
        pytest.skip("there is no ssh client to ask")
    if not program:
        monkeypatch.setenv("PATH", str(home))


@WAYS
@pytest.mark.usefixtures("config_reader")
@pytest.mark.parametrize(
    "line",
    [
        'HostName "x;>pwned"', 'HostName "$(>pwned)"', 'User "$(>pwned)"', "User x;>pwned", "ProxyJump x;>pwned",
        "ProxyJump a,$(>pwned)@gate",
    ],
)  # fmt: skip
async def test_unsafe_name_in_ssh_config_runs_no_command(home: Path, line: str) -> None:
    (home / "included").write_text(f"{line}\n")
    (home / ".ssh/config").write_text(f'Include {home}/included\nProxyCommand sh -c "echo %h %r"\n')
    with pytest.raises(UsageError):
        await connect(Target("box"), patience=0)
    assert not list(home.glob("pwned*"))


@WAYS
@pytest.mark.usefixtures("config_reader")
async def test_ssh_config_alias_resolves_all_its_options(home: Path) -> None:
    (home / ".ssh/config").write_text(
        "Host box\n  HostName 10.1.2.3\n  Port 2200\n  User alice\n  ProxyJump bob@gate:2022\n"
        "  HostKeyAlias the-box\n  UserKnownHostsFile ~/.ssh/special\n  IdentityFile ~/.ssh/box_key\n"
    )
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(home / ".ssh/box_key")
    found = await resolve(Target("box"))
    assert str(found) == "alice@10.1.2.3:2200"
    assert (found.name, found.jump) == ("the-box", "bob@gate:2022")
    assert home / ".ssh/special" in found.known_hosts
    assert found.known_hosts[0] == home / "sky/known_hosts"  # accepted keys go to our own file

    # What is said in the call goes first, and config=False leaves the file unread.
    assert (await resolve(Target("box", user="eve", port=22, jump="other"))).user == "eve"
    assert str(await resolve(Target("box", user="eve", config=False))) == "eve@box:22"
    own = await resolve(Target("box", known_hosts="~/.ssh/pool"))
    assert own.known_hosts == (home / ".ssh/pool",)


@WAYS
@pytest.mark.usefixtures("config_reader")
async def test_ssh_config_cannot_disable_host_key_verification(home: Path) -> None:
    (home / ".ssh/config").write_text("Host *\n  UserKnownHostsFile none\n  StrictHostKeyChecking no\n")
    found = await resolve(Target("box"))
    assert home / "sky/known_hosts" in found.known_hosts


LOOPS = {
    "host itself": "Host *\n  ProxyJump gate\n",
    "host itself with a user": "Host *\n  ProxyJump ann@gate\n",
    "host itself with a port": "Host *\n  ProxyJump gate:2022\n",
    "two hosts": "Host box\n  ProxyJump gate\nHost gate\n  ProxyJump box\n",
    "three hosts": "Host box\n  ProxyJump gate\nHost gate\n  ProxyJump other\nHost other\n  ProxyJump gate\n",
    "unbounded new names": "Host *\n  ProxyJump x%h\n",
}


@WAYS
@pytest.mark.usefixtures("config_reader")
@pytest.mark.parametrize("loop", LOOPS)
async def test_cyclic_jump_hosts_are_rejected(home: Path, loop: str) -> None:
    (home / ".ssh/config").write_text(LOOPS[loop])
    with pytest.raises(UsageError, match=r"form a cycle|jumphost loop"):
        await connect(Target("box"), patience=0)


@WAYS
@pytest.mark.usefixtures("config_reader")
async def test_list_of_jump_hosts_overrides_the_jump_of_each_hop(home: Path) -> None:
    (home / ".ssh/config").write_text("Host box\n  ProxyJump gate,other\nHost other\n  ProxyJump other\n")
    found = await resolve(Target("box"))
    assert found.jump == "gate,other"
    hop = jump_target(Target("box"), "gate,other")
    assert (hop.host, hop.jump) == ("other", "gate")


@WAYS
@pytest.mark.usefixtures("config_reader")
async def test_invalid_ssh_config_error_names_the_file(home: Path) -> None:
    (home / ".ssh/config").write_text("Host box\n  Port many\n")
    with pytest.raises(UsageError, match=r"Cannot use ~/\.ssh/config for host box: .*(B|b)ad|Invalid") as refused:
        await resolve(Target("box"))
    assert "OpenSSH" not in str(refused.value)


@WAYS
@pytest.mark.usefixtures("config_reader")
async def test_ssh_config_that_includes_itself_is_rejected(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".ssh/config").write_text(f"Include {home}/.ssh/config\n")
    with pytest.raises(UsageError, match=r"Cannot use ~/\.ssh/config"):
        await resolve(Target("box"))
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(UsageError, match=r"it includes itself\. Install the ssh program"):
        await resolve(Target("box2"))


@pytest.mark.parametrize(
    "line", ["Match final", "Match exec 'test %h = box'", "Match !final", "CanonicalizeHostname yes"]
)
async def test_ssh_config_unsupported_by_asyncssh_needs_the_ssh_program(
    home: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("PATH", str(home))
    (home / ".ssh/config").write_text(f"{line}\n  User ann\n")
    with pytest.raises(UsageError, match=r"not supported\. Install the ssh program"):
        await resolve(Target("box"))
    assert (await resolve(Target("box", config=False))).host == "box"


class Program:
    """Fake ``ssh`` that counts its starts."""

    def __init__(self, folder: Path, script: str) -> None:
        self.log = folder / "started"
        folder.mkdir()
        (folder / "ssh").write_text(f'#!/bin/sh\necho "$*" >> {self.log}\n{script}\n')
        (folder / "ssh").chmod(0o755)

    @property
    def started(self) -> list[str]:
        return self.log.read_text().splitlines()


async def test_one_ssh_query_per_host_serves_concurrent_connections(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(home / "bin", "echo hostname there")
    monkeypatch.setenv("PATH", f"{home}/bin:/bin:/usr/bin")
    routes = await asyncio.gather(*(resolve(Target(host)) for host in ("gpu1", "gpu2", "gpu1", "gpu1")))
    assert {found.host for found in routes} == {"there"}
    assert sorted(line.rpartition(" ")[2] for line in program.started) == ["gpu1", "localhost"]
    (home / ".ssh/config").write_text("")
    await resolve(Target("gpu1"))
    os.utime(home / ".ssh/config", ns=(1, 1))  # edited: what was said before no longer holds
    await resolve(Target("gpu1"))
    assert [line for line in program.started if line.endswith("gpu1")] == [
        "-v -T -G -F none -- gpu1",
        *[f"-v -T -G -F {home}/.ssh/config -- gpu1"] * 2,
    ]


FLEET = ["gpu1", "gpu2", "gpu10", "node7", "node8", "a.lab", "b.lab", "10.0.0.1", "10.0.0.2", "10.1", "GPU1", "fe80::1"]
LINES = [
    "Host *", "Host gpu*", "Host gpu? !gpu2", "Host 10.0.0.* node7", "Host GPU1", "Host *.lab", "Host=gpu1",
    "host\tgpu2", 'Host "gpu1" node8', "HOST gpu[12]", "HostName other", "HostName gpu1", "HostName GPU1", "User ann",
    "User bob",
    "Port 2200", "IdentityFile /key-%n", "IdentityFile /key", "ProxyCommand nc %h %p", "ProxyJump gate", "Match all",
    "Match final", "HostKeyAlias one", "# Host gpu1", "Include included",
    "Match host gpu1", "Match originalhost gpu2", 'Match exec "test %n = node7"', "UserKnownHostsFile /known-%n",
    "HostName %h.lab", "CanonicalizeMaxDots 2",
]  # fmt: skip
CLEAR = LINES[:-6]


@pytest.mark.proof("0.2 s of a processor", after=4)
@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh client to ask")
@pytest.mark.parametrize("seed", range(examples(60)))
async def test_shared_ssh_answers_equal_individual_ones(home: Path, seed: int) -> None:
    chosen = random.Random(seed)
    for name in ("config", "included"):
        lines = [chosen.choice(CLEAR if seed % 3 else LINES) for _ in range(chosen.randint(1, 8))]
        text = "".join(f"{line}\n" for line in lines if name == "config" or "Include" not in line)
        (home / ".ssh" / name).write_text(text.replace("Include included", f"Include {home}/.ssh/included"))
    account = pwd.getpwuid(os.getuid()).pw_dir
    found = dict(zip(FLEET, await asyncio.gather(*map(way_of, FLEET)), strict=True))
    for name, way in found.items():
        if way is None:
            continue
        command = ["ssh", "-G", "-F", f"{home}/.ssh/config", "--", name]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        output_lines = dict(reversed([line.split(" ", 1) for line in done.stdout.splitlines() if " " in line]))
        assert (way.host, str(way.port), way.user) == (
            output_lines["hostname"],
            output_lines["port"],
            output_lines["user"],
        )
        assert (way.jump, bool(way.proxy_command)) == (output_lines.get("proxyjump"), "proxycommand" in output_lines)
        assert way.name == output_lines.get("hostkeyalias", output_lines["hostname"])
        assert way.identities[0] == output_lines["identityfile"].replace("~", str(home)).replace("%n", name)
        known = output_lines["userknownhostsfile"].split()[0]
        assert str(way.known_hosts[1]) == known.replace(f"{account}/", f"{home}/")


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh client to ask")
@pytest.mark.parametrize(
    "line",
    [
        'Host "gpu1" node8', "Host=gpu1", "\tHOST = gpu1", "Host gpu? !gpu2", "Host gp*1", '"Host" gpu1',
        "Host * !gpu2", "Match originalhost gpu1", "Match host=gpu1", 'Match exec "test %n = gpu1"', "Match !host gpu2",
    ],
)  # fmt: skip
async def test_host_block_in_ssh_config_applies_only_to_its_host(home: Path, line: str) -> None:
    (home / ".ssh/config").write_text(f"{line}\n  User ann\nHost *\n  User bob\n")
    ways = await asyncio.gather(*(resolve(Target(name)) for name in ("gpu1", "gpu2")))
    assert [way.user for way in ways] == ["ann", "bob"]


async def way_of(name: str) -> ssh_config_and_preopened_sockets.Route | None:
    try:
        return await resolve(Target(name))
    except UsageError:  # jump hosts that lead to themselves
        return None


@pytest.mark.parametrize("script", ["sleep 60 & echo $! >> {pids}; wait", "yes", "yes >&2", "exit 3", "kill -9 $$"])
async def test_ssh_query_without_an_answer_is_killed(home: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    pids = home / "pids"
    Program(home / "bin", f"echo $$ >> {pids}\n{script.format(pids=pids)}")
    monkeypatch.setenv("PATH", f"{home}/bin:/bin:/usr/bin")
    monkeypatch.setattr(ssh_config_and_preopened_sockets, "ANSWER", 0.3)
    with pytest.raises(UsageError, match=r"Cannot use ~/\.ssh/config for host \w+: `ssh -G` failed"):
        await resolve(Target("gpu1"))
    await until(lambda: not any(exists(int(pid)) for pid in pids.read_text().split()))


async def test_hanging_match_exec_of_one_host_does_not_block_others(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"case $* in *bad*) touch {home}/asked; exec sleep 60;; esac; echo hostname there"
    Program(home / "bin", script)
    monkeypatch.setenv("PATH", f"{home}/bin:/bin:/usr/bin")
    monkeypatch.setattr(ssh_config_and_preopened_sockets, "FIRST", 0.1)
    monkeypatch.setattr(ssh_config_and_preopened_sockets, "ANSWER", 60)
    bad = [asyncio.create_task(resolve(Target(f"bad{number}"))) for number in range(3)]
    await until(lambda: (home / "asked").exists())
    async with asyncio.timeout(20):
        assert (await resolve(Target("good"))).host == "there"
    assert not any(each.done() for each in bad)
    monkeypatch.setattr(ssh_config_and_preopened_sockets, "ANSWER", 0.3)
    for host in "bad7", "bad8":  # each is asked itself, so that all end at the same time
        with pytest.raises(UsageError, match=f"host {host}: `ssh -G` failed: no answer"):
            await resolve(Target(host))
    assert not any(each.done() for each in bad)
    for each in bad:
        each.cancel()


async def test_without_ssh_only_a_regular_ssh_config_file_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    os.mkfifo(home / ".ssh/config")
    with pytest.raises(UsageError, match=r"it is a named pipe, not a regular file\. Install the ssh program"):
        await resolve(Target("box"))


async def test_ssh_program_in_a_relative_path_folder_is_not_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(home / "bin", "")
    monkeypatch.setenv("PATH", "bin:.:")
    await resolve(Target("gpu1"))
    assert not program.log.exists()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh client to ask")
async def test_home_variable_applies_to_all_ssh_config_paths(home: Path) -> None:
    (home / ".ssh/config").write_text(
        "UserKnownHostsFile ~/.ssh/mine\nIdentityFile ~/key\nIdentityFile %d/other-%n\nIdentityAgent ~/agent\n"
    )
    found = await resolve(Target("box"))
    assert found.identities == (f"{home}/key", f"{home}/other-box")
    assert found.known_hosts[1] == home / ".ssh/mine"
    assert found.agent == f"{home}/agent"


def test_host_groups_of_skyward_toml_are_resolved(home: Path) -> None:
    (home / "skyward.toml").write_text('[hosts]\nlab = ["gpu1", "me@gpu2:2222"]\none = "gpu3"\n')
    assert SSH("lab").hosts == ("gpu1", "me@gpu2:2222")
    assert SSH(hosts="@lab").hosts == ("gpu1", "me@gpu2:2222")
    assert SSH(["@one", "gpu9"]).hosts == ("gpu3", "gpu9")
    assert SSH("gpu7").hosts == ("gpu7",)
    assert SSH(["lab"]).hosts == ("lab",)  # in a list a bare name is a host
    with pytest.raises(UsageError, match=r"no group 'labs'.*lab, one"):
        SSH("@labs")
    (home / "skyward.toml").unlink()
    with pytest.raises(UsageError, match=r"no group 'labs' under \[hosts\] in skyward\.toml, which has no groups"):
        SSH("@labs")


def test_invalid_ssh_provider_settings_are_rejected() -> None:
    with pytest.raises(UsageError, match="at least one host"):
        SSH([])
    with pytest.raises(UsageError, match="Named twice: gpu1"):
        SSH(["gpu1", "gpu2", "gpu1"])
    with pytest.raises(UsageError, match="'known', 'ask' or 'accept-new'"):
        SSH(["gpu1"], host_keys="off")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "is_one"),
    [
        (["gpu1", "gpu1:22"], True),
        (["box", "other", "me@10.1.2.3:2200"], True),
        (["box", "10.1.2.3:22"], False),
        (["box", "gate"], False),
    ],
)
async def test_two_names_of_one_host_in_a_pool_are_rejected(home: Path, names: list[str], is_one: bool) -> None:
    (home / ".ssh/config").write_text("Host box\n  HostName 10.1.2.3\n  Port 2200\n")
    ssh = SSH(names)
    spec = PoolSpec(name="p", provider=ssh, nodes=2)
    if is_one:
        with pytest.raises(UsageError, match=f"Named twice: {names[0]}, {names[-1]} are one machine"):
            await ssh.create(spec, "token")
    else:
        assert [machine.address for machine in await ssh.create(spec, "token")] == names


async def test_invalid_ssh_config_of_one_host_fails_only_its_own_checks(home: Path) -> None:
    (home / ".ssh" / "config").write_text("Host bind\n  BindInterface lo\nHost name\n  HostName a..b\n")
    (home / "skyward.toml").write_text('[hosts]\nlab = ["bind", "a;b", "name"]\n')
    seen = await asyncio.to_thread(list_gpu_use, ["bind", "a;b", "name"])
    assert [(each.host, each.reached) for each in seen] == [("bind", False), ("a;b", False), ("name", False)]
    assert "BindInterface is not supported" in seen[0].why
    failed = {each.subject async for each in SSH.check_all() if each.state == "fail"}
    assert failed == {"bind", "a;b", "name"}
    provider = SSH(["bind", "name"])
    machines = await provider.create(PoolSpec(name="p", provider=provider, nodes=2), "0" * 8)
    assert len(machines) == 2, "the connections to the hosts report the errors"


def test_ssh_provider_round_trips_through_json() -> None:
    made = SSH(["a", "b"], keys="~/.ssh/k", jump="gate")
    assert SSH.from_json(made.to_json()) == made
    assert hash(made) == hash(SSH(("a", "b"), keys=["~/.ssh/k"], jump="gate"))
    assert made.default_nodes == 2


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh client to ask")
async def test_exported_ssh_config_is_understood_by_openssh(home: Path) -> None:
    (home / ".ssh/config").write_text(
        "Host box\n  HostName 10.1.2.3\n  User alice\n  ProxyJump gate\n"
        "Host run\n  ProxyCommand nc %n %h '100%%'\n  CertificateFile ~/signed\n  IdentitiesOnly yes\n"
        "  IdentityAgent /agent\n  IdentityFile ~/100%%/key\n"
    )
    given = Target("10.0.0.2", user="me", port=2222, keys=(str(home / "a key"),))
    targets = [Target("box"), given, Target("run")]
    whole = await write_pool_config("train", targets)

    def ssh_settings(name: str) -> dict[str, str]:
        done = subprocess.run(["ssh", "-G", "-F", str(whole), name], capture_output=True, text=True, check=True)
        return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)

    for name in ("train", "train-0"):
        assert (ssh_settings(name)["hostname"], ssh_settings(name)["user"], ssh_settings(name)["proxyjump"]) == (
            "10.1.2.3",
            "alice",
            "gate",
        )
    second = ssh_settings("train-worker1")
    assert second["hostname"] == ssh_settings("train-1")["hostname"]
    assert (second["hostname"], second["port"], second["user"]) == ("10.0.0.2", "2222", "me")
    assert second["identityfile"] == str(home / "a key") and second["stricthostkeychecking"] in ("yes", "true")
    third = ssh_settings("train-2")
    assert third["proxycommand"] == "nc run run '100%%'"
    assert third["certificatefile"] == str(home / "signed") and third["identitiesonly"] == "yes"
    assert third["identityagent"] == "/agent" and third["identityfile"] == f"{home}/100%%/key"
    remove_pool_config("train")
    assert ssh_settings("train-1")["hostname"] == "train-1"


def test_include_line_is_added_once_at_the_top(home: Path) -> None:
    (home / ".ssh/config").write_text("Host box\n  Port 1\n")
    assert add_include_line() and not add_include_line()
    assert (home / ".ssh/config").read_text() == f"{include_line()}\n\nHost box\n  Port 1\n"
