"""Commands sent to login shells, faults of SSH hosts, validation of host answers, and the bundle importer."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipimport import zipimporter

import asyncssh
import pytest
from cryptography.exceptions import InternalError, UnsupportedAlgorithm

from skyward_core.model.specs import Nodes, PoolSpec
from skyward_core.node import library_bundle_importer
from skyward_core.node.bootstrap import host_command_server, receive_file
from skyward_core.protocol.frame_codec import WireError
from skyward_core.protocol.node_paths import deferred_bundle_path
from skyward_core.providers import agent_status_and_termination
from skyward_core.providers.ssh.provider import SSH
from skyward_core.transport.bundle_builder import bundle
from skyward_core.transport.ssh import (
    connection,
    host_command_channel,
    ssh_config_and_preopened_sockets,
    ssh_transport_and_bundle_upload,
)
from skyward_core.transport.ssh.host_address_and_python import Target
from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import Route
from tests.support.processes import run_command

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
def test_bootstrap_command_works_in_every_login_shell(shell: str, tmp_path: Path) -> None:
    major, minor = sys.version_info[:2]
    words = [f"{major}.{minor}", f"{major},{minor}", "", "/odd 'path'/python", "word"]
    command = f"exec sh -c '{host_command_channel._SHELL}' skyward {shlex.join(words)}"
    code = host_command_channel._bootstrap_code()
    asked = json.dumps({"word": "word", "folder": "p.0", "bundles": ["0", "1"]}).encode()
    output = run(shell, command, b"word%08x%b%08x%b" % (len(code), code, len(asked), asked), tmp_path)
    facts = json.loads(output.strip().removeprefix(b"word "))
    assert facts["version"][:2] == [major, minor] and facts["root"] == f"{tmp_path}/.cache/skyward"


@pytest.fixture
def interpreter(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Interpreter at the path of the client's, in folders that other users cannot write to. It reports that it ran."""
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


def give_to_another_user(python: Path) -> None:
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
        (give_to_another_user, False), (_link_to_a_strangers, False), (_link_over_a_strangers, False),
        (_folder_below_a_strangers, False),
    ],
)  # fmt: skip
def test_interpreter_of_the_client_is_run_only_if_owner_is_trusted(
    change: Callable[[Path], None] | None, runs: bool, interpreter: Path, tmp_path: Path
) -> None:
    if change is not None:
        change(interpreter)
    assert _is_tried(interpreter, tmp_path) is runs


@pytest.mark.skipif(os.getuid() != 0, reason="makes files in /var/lib")
def test_interpreter_of_the_client_below_tmp_is_not_run(interpreter: Path, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="own-") as folder:
        shutil.copytree(interpreter.parents[1], Path(folder, "venv"))
        assert not _is_tried(Path(folder, "venv/bin/python"), tmp_path)


def _is_tried(python: Path, home: Path) -> bool:
    words = ["3.0", "3,0", "", str(python), "word", "p"]  # of that version is no other
    done = subprocess.run(
        ["sh", "-c", f"exec sh -c '{host_command_channel._SHELL}' skyward {shlex.join(words)}"],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert b"word none" in done.stdout
    return (python.parents[2] / "ran").exists()


@pytest.mark.parametrize("bundled", [True, False])
def test_client_that_leaves_early_leaves_no_process_on_the_host(bundled: bool, tmp_path: Path) -> None:
    made = bundle()
    if bundled:
        host_command_server.unpack(made.archive, str(tmp_path / ".cache/skyward" / made.name))
    major, minor = sys.version_info[:2]
    folder = f"p.{tmp_path.name}"
    words = [f"{major}.{minor}", f"{major},{minor}", "", sys.executable, "word", folder]
    command = f"exec sh -c '{host_command_channel._SHELL}' skyward {shlex.join(words)}"
    code = host_command_channel._bootstrap_code()
    asked = json.dumps({"word": "word", "folder": folder, "bundles": [made.name, made.name], "starts": True}).encode()
    output = run("sh", command, b"word%08x%b%08x%b" % (len(code), code, len(asked), asked), tmp_path)
    assert json.loads(output.strip().removeprefix(b"word "))["bundle"] is bundled
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert folder not in running  # run() has waited for the end of all that held its output


@pytest.mark.parametrize("shell", SHELLS)
def test_file_upload_command_works_in_every_login_shell(shell: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder's"

    def put(attempts: str, data: bytes) -> bytes:
        words = (str(folder), "name", "3", attempts, "word")
        return run(
            shell,
            ssh_transport_and_bundle_upload.module_command(
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


def test_bootstrap_commands_contain_no_single_quotes() -> None:
    assert not set(host_command_channel._SHELL) & set("'!\\\n")
    assert not set(ssh_transport_and_bundle_upload._MODULE) & set("'!\\\n")


# Any exception of the connection to one host, at any await, is a result for that host only, and the other hosts
# continue. The faults are injected at the interface of asyncssh, behind which simulated hosts answer at once.

BAD, HOSTS = "gpu1", ["gpu0", "gpu1", "gpu2"]
RAISED = [
    ValueError("PKCS#11 support not available"), UnicodeEncodeError("idna", "x" * 70, 0, 70, "label too long"),
    asyncssh.KeyImportError("Invalid private key"), asyncssh.ConfigParseError("Invalid port"),
    asyncssh.PermissionDenied("no key"), asyncssh.ConnectionLost("gone"), asyncssh.KeyExchangeFailed("no cipher"),
    asyncssh.HostKeyNotVerifiable("odd certificate"), asyncssh.ChannelOpenError(1, "prohibited"), TimeoutError(),
    ConnectionResetError(104, "reset"), socket.gaierror(-2, "not known"), PermissionError(13, "denied", "~/.ssh/id"),
    asyncio.IncompleteReadError(b"", 8), struct.error("short"), RecursionError(), MemoryError(), KeyError("x"),
    UnsupportedAlgorithm("dsa"), InternalError("openssl", []), OSError("odd"),
]  # fmt: skip
AWAITS = ["resolve", "connect", "create_session", "create_session, the second", "wait_closed"]
HOST_FACTS: dict[str, Any] = {
    "python": "/usr/bin/python3", "version": [3, 11, 4], "home": "/root", "hostname": "h", "system": "Linux",
    "machine": "x86_64", "uid": 0, "address": "10.0.0.1", "port": 22, "time": 1.5, "root": "/root/.cache/skyward",
    "unusable": [], "doubted": "", "gpus": [], "nvml": False, "cpus": 2, "free": 1, "bundle": True, "rest": True,
    "socket": "/s", "shared": False, "running": False,
}  # fmt: skip
FACTS = HOST_FACTS | {
    "python": sys.executable,
    "version": [*sys.version_info[:3]],
    "address": "127.0.0.1",
    "free": 3 << 30,
}


class Fault:
    """Exception for the bad host, and the place that raises it."""

    def __init__(self, where: str, error: Exception) -> None:
        self.where, self.error, self.raised = where, error, 0

    def check(self, host: str, where: str) -> None:
        if host == BAD and where == self.where:
            self.raised += 1
            raise self.error


class Channel:
    """Client's end of a command that answers its requests."""

    def __init__(self, session: Any, command: str) -> None:
        self.session, self.word = session, ""
        self.words = shlex.split(command)
        session.connection_made(self)
        if "skyward-agent" not in command:  # it asks for Pythons
            self.tell(f"\n{self.words[5]} Python 3.12.1;\n")

    def write(self, data: bytes) -> None:
        if data[8:9] == b"{":
            asked = json.loads(data[8:])
            self.word = asked.get("word") or self.word
            self.tell(f"\n{self.word} {json.dumps(FACTS if 'word' in asked else {'gpus': []})}\n")

    def tell(self, text: str) -> None:
        asyncio.get_running_loop().call_soon(self.session.data_received, text.encode(), None)

    def close(self) -> None:
        pass


class Connection:
    def __init__(self, host: str, fault: Fault) -> None:
        self.host, self.fault, self.sessions = host, fault, 0

    async def create_session(self, factory: Any, command: str, **_: Any) -> tuple[Channel, Any]:
        self.sessions += 1
        self.fault.check(self.host, "create_session" if self.sessions == 1 else "create_session, the second")
        session = factory()
        return Channel(session, command), session

    async def wait_closed(self) -> None:
        self.fault.check(self.host, "wait_closed")

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def get_extra_info(self, name: str) -> None:
        return None


@pytest.fixture
def fault(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fault]:
    fault = Fault(*request.param)
    resolve = ssh_config_and_preopened_sockets.resolve

    async def resolved(target: Target) -> Route:
        fault.check(target.host, "resolve")
        return await resolve(target)

    async def connect(host: str, **more: Any) -> Connection:
        fault.check(host, "connect")
        return Connection(host, fault)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
        patch.setattr(connection, "resolve", resolved)
        patch.setattr(asyncssh, "connect", connect)
        patch.setattr(asyncssh, "get_server_host_key", connect)
        patch.setattr(connection, "FIRST_PAUSE", 0.001)
        patch.setattr(agent_status_and_termination, "CHECK_TIMEOUT", 0.0)
        patch.setattr("skyward_core.providers.ssh.provider.CHECK_TIMEOUT", 0.0)
        yield fault


def _id(value: Any) -> str:
    return f"{value[0]} {type(value[1]).__name__}"


# By default, each error at one of the places, and each place with some of the errors.
PROOF = pytest.mark.proof("3 s of a processor, all of them together")
FAULTS = [
    pytest.param((at, each), marks=[PROOF] if (number + place) % len(AWAITS) else [])
    for number, each in enumerate(RAISED)
    for place, at in enumerate(AWAITS)
]


@pytest.mark.parametrize("fault", FAULTS, indirect=True, ids=_id)
async def test_connection_error_of_one_host_does_not_affect_others(fault: Fault) -> None:
    ssh = SSH(HOSTS, config=False)
    checks = await ssh.check()
    assert {line.subject for line in checks} == {*HOSTS}
    failed = {line.subject for line in checks if line.state == "fail"}
    machines = await ssh.create(PoolSpec(name="p", provider=ssh, nodes=Nodes(min=1, max=3)), "token")
    taken = [machine.address for machine in machines]
    looks = [await ssh.look_at(host) for host in HOSTS]
    assert fault.raised
    is_lost = fault.where != "wait_closed"  # else all that was asked has been answered
    assert failed <= {BAD} and (failed == {BAD}) is is_lost
    only_checks = fault.where == AWAITS[3]
    assert taken == (HOSTS if only_checks or not is_lost else ["gpu0", "gpu2"])
    assert [look.reached for look in looks] == [True, only_checks or not is_lost, True]
    if is_lost:
        (line,) = [line for line in checks if line.subject == BAD and line.state == "fail"]
        assert BAD in line.detail or "config" in line.detail or "key" in line.detail
        assert len(line.detail) > 20


# What a host says before it has an agent: what is not as it should be is refused before anything acts on it.

STATUS: dict[str, Any] = {"kept": {}, "orphans": [], "left": False, "ended": "", "ended_at": 0.0}


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, float("nan"), 1 << 70])
def test_invalid_host_facts_are_rejected(value: Any) -> None:
    host_command_channel.validate_facts(dict(HOST_FACTS), status=False)
    host_command_channel.validate_facts(HOST_FACTS | STATUS, status=True)
    host_command_channel.validate_facts(
        {key: HOST_FACTS[key] for key in host_command_channel.FACTS} | {"root": ""}, status=True
    )
    for key in (
        (HOST_FACTS | STATUS).keys() - {"uid", "kept", "cpus"} - ({"version", "orphans"} if value == [1] else set())
    ):
        with pytest.raises(WireError, match=key):
            host_command_channel.validate_facts(HOST_FACTS | STATUS | {key: value}, status=True)


DONE: dict[str, dict[str, Any]] = {
    "environment": {"python": "/root/.cache/skyward/env-1/bin/python", "installed": {"torch": "2.4.0+cpu", "own": ""}},
    "manifest": {"folder": "/srv/a", "wanted": [0, 3], "doubtful": [[1, "ab" * 64]]},
    "gpus": {"gpus": ["NVIDIA H100, 81559 MiB, 570.1"]},
    "reach": {"reached": [True, False]},
    "probe": {
        "gpus": [["Tesla T4", 15360.0]], "tflops": 51.5, "disk": 812.25, "port": 40001, "time": 1.5,
        "whys": {"matmul": "no torch there"},
    },
    "send": {"rate": 1200.5, "why": ""},
    "agent": {"socket": "/tmp/skyward/a.sock"},
    "end": {},
}  # fmt: skip
NO_ANSWERS: list[Any] = [
    None, 7, "", "work/a", "/a\x00b", "/" * 5000, [-1], [True], [1 << 70], ["0"], [None], [[1]], {"a": 1},
    [[0, "../x"]], [[-1, "ab"]], [[1.5, "ab"]], [[0, "ab", 1]], float("nan"), {"--hash": "1"}, {"a": "1\n-i x"},
]  # fmt: skip


def is_measurement_answer(key: str, value: Any) -> bool:
    """Check whether an answer that is invalid elsewhere is valid for a measurement: a figure, a reason, or reasons."""
    if key == "port":
        return type(value) is int and 0 <= value < 1 << 16
    if key in ("tflops", "disk", "time", "rate"):
        return type(value) in (int, float) and -(1 << 60) < value < 1 << 60
    if key == "why":
        return type(value) is str
    return False


@pytest.mark.parametrize("name", ["\x1b]0;x\x07", "gpus "])
def test_probe_reasons_are_accepted_only_for_known_measurements(name: str) -> None:
    with pytest.raises(WireError, match="invalid 'whys' in its answer"):
        host_command_channel.validate_task_result("probe", DONE["probe"] | {"whys": {name: "no"}})


@pytest.mark.parametrize("what", sorted(DONE))
def test_invalid_task_result_of_a_host_is_rejected(what: str) -> None:
    host_command_channel.validate_task_result(what, DONE[what])
    for key, value in DONE[what].items():
        with pytest.raises(WireError, match=f"invalid '{key}' in its answer: None"):
            host_command_channel.validate_task_result(
                what, {name: each for name, each in DONE[what].items() if name != key}
            )
        others = [other[name] for other in DONE.values() for name in other if type(other[name]) is not type(value)]
        for wrong in (*NO_ANSWERS, *others):
            if wrong == [True] and what == "reach":
                continue
            if wrong == ["0"] and what == "gpus":
                continue
            if what in ("probe", "send") and is_measurement_answer(key, wrong):
                continue
            with pytest.raises(WireError, match=f"invalid '{key}' in its answer"):
                host_command_channel.validate_task_result(what, DONE[what] | {key: wrong})


# A module of a bundle is what ``zipimporter`` makes of it, and is read once.


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("host") / "bundle-0" / "all.zip")
    host_command_server.unpack(bundle().archive, path)
    host_command_server.unpack(bundle().rest, deferred_bundle_path(path))
    return path


def modules(archive: str) -> dict[str, str]:
    """Return the modules of an archive's packages, and the places where they are searched."""
    with zipfile.ZipFile(archive) as file:
        paths = [path for path in file.namelist() if path.endswith((".py", ".pyc"))]
    names = {path.rpartition(".")[0].removesuffix("/__init__") for path in paths}
    return {name.replace("/", "."): f"{archive}/{name.rpartition('/')[0]}" for name in sorted(names) if "/" in name}


@pytest.mark.parametrize("which", ["what nodes start with", "the rest"])
def test_bundle_importer_finds_modules_like_zipimport(unpacked: str, which: str) -> None:
    archive = unpacked if which == "what nodes start with" else deferred_bundle_path(unpacked)
    found = modules(archive)
    assert len(found) > 80
    for name, place in found.items():
        ours, theirs = library_bundle_importer._Importer(place).find_spec(name), zipimporter(place).find_spec(name)
        assert ours is not None and theirs is not None and type(ours.loader) is library_bundle_importer._Importer
        assert ours.origin == theirs.origin and ours.has_location and ours.cached == theirs.cached, name
        assert ours.submodule_search_locations == theirs.submodule_search_locations
    importer = library_bundle_importer._Importer(place)
    assert importer.find_spec(name) and importer.get_code(name) == importer.get_code(name), "it is available repeatedly"


def test_other_zip_files_are_imported_by_zipimport(tmp_path: Path) -> None:
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("parcel/__init__.py", "")
        file.writestr("parcel/inner.py", "value = 3")
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import skyward_core.node.library_bundle_importer as ours, zipimport\n"
        "ours.install_bundle_importer('/nowhere/bundle-0/all.zip')\n"
        "import parcel.inner; print(type(parcel.inner.__loader__) is zipimport.zipimporter, parcel.inner.value)"
    )
    root = str(Path(library_bundle_importer.__file__).parents[2])
    done = run_command([sys.executable, "-I", "-c", script, root, str(other)])
    assert done.stdout.strip() == "True 3", done.stderr
