"""Images on this machine: packages, setup, working folders and pruned environments."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.node.bootstrap import image_environment
from skyward_core.store.pool_folder import read_events
from skyward_core.store.state_folder import ENVIRONMENTS_FOLDER
from skyward_core.transport.local_transport_and_environments import LocalTransport, without_cuda
from skyward_core.views.events import NodePhase
from tests.support.child import Child
from tests.support.processes import descendants
from tests.support.waiting import wait_until
from tests.support.wheels import tiny_wheels

ROOT = Path(__file__).parents[2]


@sky.function
def seen() -> tuple[str, str]:
    import skytiny  # type: ignore[import-not-found]

    return sys.executable, skytiny.VERSION


@sky.function
def executable() -> str:
    return sys.executable


@pytest.fixture
def wheels(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make installers find only the package skytiny."""
    for name, value in tiny_wheels(tmp_path / "wheels", "1.0", "2.0").items():
        monkeypatch.setenv(name, value)


def pool(**image: Any) -> Any:
    return sky.Compute(provider=sky.Local(), nodes=2, image=sky.Image(**image), options=QUIET)


QUIET = sky.Options(console=False)


def environments(home: Path) -> list[Path]:
    return sorted(path for path in (home / "environments").glob("env-*") if path.is_dir())


def test_ranks_have_the_packages_of_the_image(wheels: None, home: Path) -> None:
    with pool(pip=["skytiny==1.0"]) as compute:
        found = seen() @ compute
        folder = compute.pool.archive.folder
    reported = [each for each in read_events(folder) if isinstance(each, NodePhase)]  # all that was told is written now
    details = [each.detail for each in reported if each.phase == "installed"]
    assert [each for each in details if "skytiny" in each], "the phase board tells what is installed"
    (made,) = environments(home)
    assert found == [(f"{made}/bin/python", "1.0")] * 2
    os.utime(made / image_environment.MADE_FILE, (0, 0))
    with pool(pip=["skytiny==1.0"]) as compute:
        assert seen() @ compute == found
    assert (made / image_environment.MADE_FILE).stat().st_mtime > 0  # what is used is not pruned
    with pool(pip=["skytiny>=2"]) as compute:
        assert [version for _, version in seen() @ compute] == ["2.0"] * 2


def test_packages_of_the_client_environment_are_not_reinstalled(home: Path) -> None:
    with pool(pip=["cloudpickle>=1", "asyncssh"]) as compute:
        assert executable() @ compute == [sys.executable] * 2
    assert not environments(home)


def test_setup_command_runs_once_and_a_failing_one_is_named(home: Path, tmp_path: Path) -> None:
    for _ in range(2):
        with pool(setup=[f"echo made >> {tmp_path}/made"]) as compute:
            executable() @ compute
    assert (tmp_path / "made").read_text() == "made\n"
    with (
        pytest.raises(sky.PoolError, match=r"setup command 'echo why >&2; exit 3' failed with exit code 3: why"),
        pool(setup=["echo why >&2; exit 3"]),
    ):
        pass


def test_unusable_environments_folder_is_named(home: Path) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "environments").write_text("a file in its place")
    with (
        pytest.raises(sky.PoolError, match=r"Cannot create the image's environment on this machine: .*environments"),
        pool(setup=["true"]),
    ):
        pass


def test_startup_output_of_an_interpreter_is_ignored(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = "print([1]); print('x' * 3_000_000); print('no JSON')\n"
    monkeypatch.setattr(image_environment, "_MAIN", noise + image_environment._MAIN)
    with pool(setup=[f"touch {tmp_path}/made"]) as compute:
        assert executable() @ compute == [sys.executable] * 2
    assert (tmp_path / "made").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may install Debian packages")
def test_installed_debian_packages_do_not_rebuild_the_environment(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for there in (False, True):
        monkeypatch.setattr(image_environment, "has_package", lambda package, there=there: there)
        image = sky.Image(apt=["bash"], setup=[f"echo made >> {tmp_path}/made"])
        options = sky.Options(console=False, allow_apt=True)
        with sky.Compute(provider=sky.Local(), image=image, options=options) as compute:
            executable() @ compute
    assert (tmp_path / "made").read_text() == "made\n"


def test_unavailable_package_is_named(wheels: None, home: Path) -> None:
    with pytest.raises(sky.PoolError, match="skynowhere"), pool(pip=["skynowhere"]):
        pass


def test_missing_debian_packages_are_rejected_on_this_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(sky.PoolError, match=r"sky-no-such-package would be installed for the whole machine"),
        pool(apt=["bash", "sky-no-such-package"]),
    ):
        pass
    with pool(apt=["bash"]) as compute:
        assert executable() @ compute == [sys.executable] * 2


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ("jax[cuda12]", "jax"),
        ("jax[cuda12,k8s]>=0.6", "jax[k8s]>=0.6"),
        ("tensorflow[and-cuda]==2.19; python_version > '3.9'", "tensorflow==2.19; python_version > '3.9'"),
        ("ray[default]", "ray[default]"),
        ("torch", "torch"),
    ],
)
def test_cuda_extras_are_dropped_on_machines_without_gpu(asked: str, taken: str) -> None:
    assert without_cuda([asked]) == [taken]


def test_image_with_another_python_is_rejected_locally(home: Path) -> None:
    with pytest.raises(sky.UsageError, match=r"Image\(python='3.7'\)"), pool(python="3.7"):
        pass


def running(mark: str) -> list[int]:
    """Return the processes with a word on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_start_timeout_leaves_no_installer_process(home: Path, tmp_path: Path) -> None:
    wait = f"touch {tmp_path}/began; until test -e {tmp_path}/go; do sleep 0.1; done"
    options = sky.Options(console=False, start_timeout=3)
    with (
        pytest.raises(sky.PoolError, match="did not start within 3 s"),
        sky.Compute(provider=sky.Local(), image=sky.Image(setup=[wait]), options=options),
    ):
        pass
    assert (tmp_path / "began").exists()
    wait_until(lambda: not running(f"{tmp_path}/go"))
    (made,) = environments(home)
    assert not (made / image_environment.MADE_FILE).exists()
    (tmp_path / "go").touch()
    with pool(setup=[wait]) as compute:
        assert executable() @ compute == [sys.executable] * 2
    assert (made / image_environment.MADE_FILE).exists()


def test_child_processes_of_a_killed_installer_end(home: Path, tmp_path: Path) -> None:
    wait = f"touch {tmp_path}/began; until test -e {tmp_path}/go; do sleep 0.1; done"
    failures: list[BaseException] = []

    def use() -> None:
        try:
            with pool(setup=[wait]):
                pass
        except sky.PoolError as error:
            failures.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    wait_until((tmp_path / "began").exists)
    ours = descendants(os.getpid())
    (installer,) = [pid for pid in running("bootstrap.image_environment import main") if pid in ours]
    os.kill(installer, signal.SIGKILL)
    thread.join()
    assert "environment on this machine: the builder process was killed by SIGKILL" in str(failures[0])
    wait_until(lambda: not running(f"{tmp_path}/go"))


async def test_node_phase_never_goes_backwards_during_preparation(home: Path, tmp_path: Path) -> None:
    class Starter:
        async def start(self, request: dict[str, Any]) -> dict[str, Any]:
            return {}

    way = LocalTransport(tmp_path / "node", tmp_path / "socket", Starter())  # type: ignore[arg-type]
    for image in ({}, {"pip": ["cloudpickle"]}):
        messages: list[str] = []
        config = {"nodes": 1, "ranks_per_node": 1, "image": image}
        await way.prepare(config, lambda phase, *args, messages=messages, **more: messages.append(phase))
        order = ["running", "connected", "synced", "installed"]
        assert sorted(messages, key=order.index) == messages and set(messages) == set(order)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("says", ["echo more", ":"], ids=["talkative", "silent"])
def test_killed_client_leaves_no_partial_environment(home: Path, tmp_path: Path, says: str) -> None:
    until_told = f"until test -e {tmp_path}/go; do {says}; sleep 0.05; done"
    steps = f"touch {tmp_path}/began; (setsid sh -c '{until_told}') & {until_told}"
    script = (
        "import json, sys, skyward_core as sky\n"
        "with sky.Compute(provider=sky.Local(), image=sky.Image(setup=json.loads(sys.argv[1]))): pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, json.dumps([steps])], cwd=ROOT) as client:
        wait_until((tmp_path / "began").exists)
        client.send_signal(signal.SIGKILL)
    wait_until(lambda: not running(f"{tmp_path}/go"))
    (tmp_path / "go").touch()
    with pool(setup=[steps]) as compute:
        assert executable() @ compute == [sys.executable] * 2


@sky.function
def where() -> str:
    return str(Path.cwd())


@pytest.mark.proof("0.2 s of a processor", after=1)
@pytest.mark.parametrize("folder", ["sub", "~/sub", Path("sub")], ids=["relative", "home", "path"])
def test_relative_or_home_workdir_is_resolved_as_in_a_shell(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | Path
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with sky.Compute(image=sky.Image(workdir=folder), options=QUIET) as compute:
        assert where() >> compute == str(tmp_path / "sub")


@pytest.mark.parametrize("folder", ["nowhere", "~nouser/x", "file", "a\0b", "a" * 300])
def test_missing_workdir_is_rejected_before_the_start(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sky.UsageError, match=r"workdir: .* is not a folder"):
        sky.Compute(image=sky.Image(workdir=folder), options=QUIET).__enter__()
    assert not list(home.glob("pools/*"))


IMAGE: dict[str, Any] = {"setup": ["echo made >> made"]}
# Says where it is, and goes on when its input ends.
PRUNE = """
import fcntl, sys
from skyward_core.store.ledger import Ledger
from skyward_core.store.old_pool_environment_and_clone_pruning import prune_environments

ledger, flock = Ledger(), fcntl.flock

def halting(*args):
    if sys.argv[1] == "looked":
        halt()
    flock(*args)
    if sys.argv[1] == "locked":
        halt()

def halt():
    print("here", flush=True)
    sys.stdin.read()

fcntl.flock = halting
print(*(each.folder for each in prune_environments(ledger, age=3600.0)))
"""


@contextmanager
def prune(halted: str) -> Iterator[Callable[[], list[str]]]:
    """Start a prune that halts at a step. Yield a function that resumes it and returns the names of removed folders."""
    command = [sys.executable, "-c", PRUNE, halted]
    with Child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        yield lambda: process.communicate()[0].split()


@pytest.fixture
def root(home: Path, tmp_path: Path) -> Path:
    """Folder of environments with an old environment of ``IMAGE``."""
    folder = home / ENVIRONMENTS_FOLDER
    folder.mkdir(parents=True)
    image_environment.ensure_environment(IMAGE, folder, {}, str(tmp_path), lambda line: None)
    make_old(folder)
    return folder


def make_old(root: Path) -> None:
    for made in root.glob(f"env-*/{image_environment.MADE_FILE}"):
        os.utime(made, (0, 0))


def test_environment_used_after_the_prune_scan_is_kept(root: Path) -> None:
    with prune("looked") as go_on:
        python = image_environment.find_ready_environment(IMAGE, root)
        assert go_on() == []
    assert python == sys.executable
    assert image_environment.find_ready_environment(IMAGE, root) == python


def test_environment_being_removed_is_not_ready(root: Path) -> None:
    with prune("locked") as go_on:
        assert image_environment.find_ready_environment(IMAGE, root) == ""
        assert len(go_on()) == 1
    assert image_environment.find_ready_environment(IMAGE, root) == ""


def waiting_start(root: Path, folder: Path, messages: list[str]) -> threading.Thread:
    """Start a thread that waits for the lock of an environment."""
    wants = threading.Thread(
        target=image_environment.ensure_environment, args=(IMAGE, root, {}, str(folder), messages.append)
    )
    wants.start()
    wait_until(lambda: bool(messages))
    return wants


def test_environment_being_removed_is_created_again(root: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    with prune("locked") as go_on:
        wants = waiting_start(root, tmp_path, messages)
        assert "waiting for another process" in messages[0]
        assert len(go_on()) == 1
        wants.join()
    assert (tmp_path / "made").read_text() == "made\n" * 2
    assert image_environment.find_ready_environment(IMAGE, root) == sys.executable


def test_environment_waited_for_counts_as_used(root: Path, tmp_path: Path) -> None:
    """A dry-run prune also locks the environment for a moment."""
    messages: list[str] = []
    (lock,), (made,) = root.glob("*.lock"), root.glob(f"env-*/{image_environment.MADE_FILE}")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        wants = waiting_start(root, tmp_path, messages)
    wants.join()
    assert (tmp_path / "made").read_text() == "made\n"
    assert made.stat().st_mtime > 0


def test_environment_can_be_used_by_many_starts_at_once(root: Path) -> None:
    """A start that only uses the environment takes a shared lock."""
    (lock,) = root.glob("*.lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert image_environment.find_ready_environment(IMAGE, root) == sys.executable
