"""Bundle of node code: reproducible, cached, split in two archives, and importable with plain Python."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.bootstrap import host_command_server
from skyward_core.protocol.node_paths import deferred_bundle_path
from skyward_core.transport import bundle_builder
from skyward_core.transport.bundle_builder import (
    Bundle,
    _bundle_for_other,
    _without_docstrings,
    bundle,
    bundle_for,
    bundle_with_nvml,
)
from tests.support.pythons import another_python

# Modules that a node imports. The names are listed, so that a new module on the worker's path must be added here
# deliberately.
WORKER_SIDE = (
    "skyward_core",
    "skyward_core.model.function",
    "skyward_core.model.outcomes_states_and_alerts",
    "skyward_core.protocol.frame_codec",
    "skyward_core.node.agent.agent",
    "skyward_core.node.worker.worker",
    "skyward_core.node.bootstrap.socket_relay",
    "skyward_core.node.bootstrap.receive_file",
    "skyward_core.runtime.instance_info_and_attempt",
    "skyward_core.runtime.output_decorators",
    "skyward_core.runtime.sharding",
    "skyward_core.plugins",
    "skyward_core.node.bootstrap.host_commands",
    "skyward_core.node.bootstrap.image_environment",
    "skyward_core.node.bootstrap.receive_working_folder",
    "cloudpickle",
    "pynvml",
)
CLIENT_SIDE = {"pydantic", "asyncssh", "textual", "boto3", "click", "platformdirs", "torch", "numpy"}


@pytest.fixture(scope="module")
def unpacked_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    bundle.cache_clear()
    made = bundle_with_nvml()
    path = folder / made.name
    host_command_server.unpack(made.archive, str(path))
    return path


@pytest.fixture(autouse=True)
def archive_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Separate cache folder for archives."""
    folder = tmp_path_factory.mktemp("kept")
    monkeypatch.setattr(bundle_builder, "_path", lambda variant: f"{folder}/{variant}")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return folder


def test_bundle_name_depends_only_on_content() -> None:
    bundle.cache_clear()
    first = bundle()
    bundle.cache_clear()
    second = bundle()
    assert first is not second and first.name == second.name and first.archive == second.archive
    one, same, other = (Bundle(f"x{data!r}", (("a.py", data),), ("a.py",), "test") for data in (b"1", b"1", b"2"))
    assert one.archive == same.archive != other.archive


def test_bundle_size_is_bounded() -> None:
    paths = 20 * len(str(Path(bundle_builder.__file__).parents[2]))  # Bytecode contains the paths of its sources.
    assert len(bundle().archive) < 756_000 + paths  # what a start waits for
    assert len(bundle().rest) < 750_000  # which nobody waits for


def test_bundle_bytecode_differs_only_by_missing_docstrings() -> None:
    text = """
def told():
    'told'
    return 'told'
def documented(x):
    'what it does'
    return [f'{each} what' for each in x]
class Kept:
    'kept'
    def method(self):
        'what it does'
        return 'value'
first = lambda: 'lambda'
each = list('generator' for _ in 'x')
"""
    found: dict[str, Any] = {}
    exec(_without_docstrings(compile(text, "m.py", "exec", dont_inherit=True)), found)
    assert found["documented"].__doc__ is found["Kept"].method.__doc__ is None and found["Kept"].__doc__ == "kept"
    assert (found["told"](), found["first"](), found["each"]) == ("told", "lambda", ["generator"])
    assert found["documented"]([1]) == ["1 what"] and found["Kept"]().method() == "value"


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("is_here", [True, False])
def test_other_python_version_uses_its_bytecode_or_the_sources(
    is_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    other = another_python()
    request.addfinalizer(_bundle_for_other.cache_clear)
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    _bundle_for_other.cache_clear()
    made = bundle_for(True, ".".join(other.version.split(".")[:2]))
    assert made.name != bundle_with_nvml().name and dict(made.files) == dict(bundle_with_nvml().files)
    made.compile_bytecode(other.path if is_here else "")
    path = tmp_path / made.name
    host_command_server.unpack(made.archive, str(path))
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from skyward_core.node.agent.__main__ import preload_modules as preload; preload()\n"
        "import skyward_core.node.worker.worker, cloudpickle\n"
        "ours = [m for n, m in sys.modules.items() if n.startswith(('skyward_core', 'cloudpickle'))]\n"
        "print(*(getattr(m, '__file__', '') for m in ours))"
    )
    command = [other.path, "-I", "-S", "-B", "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {name.endswith(".pyc") for name in done.stdout.split()} == {is_here}


def test_bundle_has_bytecode_of_sources_that_the_installer_did_not_compile(tmp_path: Path) -> None:
    source = tmp_path / "worker.py"
    source.write_text("answer = 42\n")
    made = Bundle("y", (("skyward_core/node/worker/worker.py", source.read_bytes()),), (str(source),), "test")
    path = tmp_path / "all.zip"
    host_command_server.unpack(made.archive, str(path))
    assert zipfile.ZipFile(path).namelist() == ["skyward_core/node/worker/worker.pyc"]


def test_pynvml_is_only_in_the_bundle_with_nvml() -> None:
    plain, with_nvml = bundle(), bundle_with_nvml()
    assert plain.name != with_nvml.name
    more = [path for path, _ in with_nvml.files if path not in dict(plain.files)]
    assert more == ["pynvml.py"]


def test_bundle_archive_is_packed_once_and_cached(
    unpacked_bundle: Path, archive_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.cache_clear()
    first = bundle().archive
    assert [path.name for path in archive_folder.iterdir()] == ["plain"]
    with monkeypatch.context() as patch:
        patch.setattr("skyward_core.transport.bundle_builder._archive", lambda *parts: pytest.fail("packed anew"))
        bundle.cache_clear()
        assert bundle().archive == first
    (archive_folder / "plain").unlink()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    bundle.cache_clear()
    assert bundle().archive == first and not list(archive_folder.iterdir())


@pytest.mark.parametrize("spoilt", ["cut", "changed", "emptied", "other content", "folder"])
def test_corrupt_cached_archive_is_packed_again(spoilt: str, unpacked_bundle: Path, archive_folder: Path) -> None:
    bundle.cache_clear()
    first, file = bundle().archive, archive_folder / "plain"
    data = file.read_bytes()
    if spoilt == "folder":
        file.unlink()
        file.mkdir()
    elif spoilt == "other content":
        bundle_builder.store_archive("bundle-0/all.zip", "plain", b"another")
    else:
        file.write_bytes({"cut": data[:-1], "changed": data[:-1] + b"?", "emptied": b""}[spoilt])
    bundle.cache_clear()
    assert bundle().archive == first
    if spoilt != "folder":
        assert file.read_bytes() == data
    assert [path.name for path in archive_folder.iterdir()] == ["plain"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be a stranger for a moment")
@pytest.mark.parametrize("left", ["private", "writable by others", "owned by another user"])
def test_cached_bundle_archive_writable_by_others_is_ignored(
    left: str, archive_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as folder:  # which a stranger can enter
        Path(folder).chmod(0o755)
        monkeypatch.setattr(bundle_builder, "_path", lambda variant: f"{folder}/{variant}")
        before = os.umask(0)  # as some containers have it
        try:
            bundle_builder.store_archive("x", "plain", b"ours")
        finally:
            os.umask(before)
        file = Path(folder, "plain")
        assert bundle_builder.load_archive("x", "plain") == b"ours"
        if left == "writable by others":
            file.chmod(0o666)
        elif left == "owned by another user":
            os.chown(file, 65534, 65534)
        theirs = Path(folder, "theirs")
        theirs.write_bytes(hashlib.sha256(b"x" + b"theirs").digest() + b"theirs")
        theirs.chmod(0o644)
        done = subprocess.run(["cp", str(theirs), str(file)], user=65534, group=65534, extra_groups=[], check=False)
        assert (done.returncode == 0) == (left != "private")
        assert bundle_builder.load_archive("x", "plain") == (b"ours" if left == "private" else b"")


def test_partial_archive_of_a_killed_process_is_removed_by_next_packing(
    unpacked_bundle: Path, archive_folder: Path
) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from skyward_core.transport import bundle_builder as archive_cache\n"
        "sys.dont_write_bytecode = False\n"
        "archive_cache._path = lambda variant: f'{sys.argv[1]}/{variant}'\n"
        "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "archive_cache.store_archive('bundle-0/all.zip', 'plain', b'another' * 1000)"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(archive_folder)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in archive_folder.iterdir()] not in ([], ["plain"])
    bundle.cache_clear()
    assert bundle().archive
    assert [path.name for path in archive_folder.iterdir()] == ["plain"]


def test_worker_side_modules_import_from_the_bundle_alone(unpacked_bundle: Path) -> None:
    script = (
        "import importlib\n"
        "for name in sys.argv[2:]: importlib.import_module(name)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    assert not CLIENT_SIDE & set(run_in_bundle(unpacked_bundle, script, *WORKER_SIDE).split())


def _imports(name: str, first: Path, patience: float) -> subprocess.Popen[str]:
    """Return a process of a node that reports the start and the end of a module's import."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import skyward_core.node.library_bundle_importer as rest\n"
        "rest.BUNDLE_TIMEOUT = float(sys.argv[3])\n"
        "print('begins', flush=True)\n"
        "__import__(sys.argv[2]); print(sys.modules[sys.argv[2]].__file__)"
    )
    return subprocess.Popen(
        [sys.executable, "-I", "-c", script, str(first), name, str(patience)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_import_of_deferred_module_waits_for_the_second_archive(unpacked_bundle: Path) -> None:
    rest = Path(deferred_bundle_path(str(unpacked_bundle)))
    with _imports("skyward_core.providers.ssh.provider", unpacked_bundle, 60) as process:
        assert process.stdout is not None and process.stdout.readline() == "begins\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        host_command_server.unpack(bundle_with_nvml().rest, str(rest.parent.with_suffix(".part") / rest.name))
        rest.parent.with_suffix(".part").rename(rest.parent)
        output, errors = process.communicate(timeout=60)
    assert output == f"{rest}/skyward_core/providers/ssh/provider.py\n", errors
    # What is in neither file is nowhere, and nobody waits for it.
    with _imports("skyward_core.providers.no_such", unpacked_bundle, 60) as process:
        assert "No module named 'skyward_core.providers.no_such'" in process.communicate(timeout=60)[1]


def test_deferred_archive_that_never_arrives_is_an_import_error(unpacked_bundle: Path, tmp_path: Path) -> None:
    alone = tmp_path / "bundle-1" / "all.zip"
    host_command_server.unpack(bundle_with_nvml().archive, str(alone))
    with _imports("skyward_core.pool.pool", alone, 0.1) as process:
        errors = process.communicate(timeout=60)[1]
    assert "skyward_core.pool is not on this node" in errors and "had sent this part" in errors


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")
def test_deferred_archive_owned_by_another_user_is_not_imported(unpacked_bundle: Path, tmp_path: Path) -> None:
    alone = tmp_path / "bundle-1" / "all.zip"
    host_command_server.unpack(bundle_with_nvml().archive, str(alone))
    rest = Path(deferred_bundle_path(str(alone)))
    host_command_server.unpack(bundle_with_nvml().rest, str(rest))
    os.chown(rest, 65534, 65534)
    with _imports("skyward_core.pool.pool", alone, 0.1) as process:
        errors = process.communicate(timeout=60)[1]
    assert f"skyward_core.pool is not on this node: {rest} belongs to another user" in errors


def test_bundle_writers_with_equal_pids_use_separate_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, written = zlib.compress(b"whole"), []
    unpack = host_command_server.unpack

    def half(archive: bytes, path: str) -> None:
        written.append(path)
        if len(written) == 1:  # another container that shares the home comes meanwhile
            host_command_server.save_bundle(str(tmp_path), "bundle-0/all.zip", len(archive))
        unpack(archive, path)

    monkeypatch.setattr(host_command_server, "receive", lambda size: archive)
    monkeypatch.setattr(host_command_server, "unpack", half)
    host_command_server.save_bundle(str(tmp_path), "bundle-0/all.zip", len(archive))
    assert len(set(written)) == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "bundle-0"]
    assert (tmp_path / "bundle-0/all.zip").read_bytes() == b"whole"


def test_worker_frames_are_hidden_in_user_tracebacks(unpacked_bundle: Path) -> None:
    script = (
        "from skyward_core.node.worker.worker import WorkerProcess\n"
        "from skyward_core.node.worker.returned_exceptions import describe_error\n"
        "class Mine(WorkerProcess):\n"
        "    def __init__(self): pass\n"
        "    def _load_function(self, header, body): return (lambda: 1 / 0), ((), {})\n"
        "try: Mine()._run_function({'run': 'r', 'i': 0}, b'', None)\n"
        "except ZeroDivisionError as error:\n"
        "    error = error.with_traceback(error.__traceback__.tb_next)\n"
        "    print(describe_error(error)[0]['traceback'])\n"
    )
    text = run_in_bundle(unpacked_bundle, script)
    assert "in <lambda>" in text and "worker.py" not in text


def run_in_bundle(path: Path, script: str, *words: str) -> str:
    """Run a script that finds only the standard library and the bundle, and return its output."""
    command = [
        sys.executable,
        "-I",
        "-S",
        "-B",
        "-c",
        f"import sys; sys.path.insert(0, sys.argv[1])\n{script}",
        str(path),
    ]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
