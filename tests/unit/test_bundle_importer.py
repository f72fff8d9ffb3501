"""A module of a bundle is what ``zipimporter`` makes of it, and is read once."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

from skyward_core.node import bundle_importer
from skyward_core.node.bootstrap import host_command_server
from skyward_core.protocol.node_paths import deferred_bundle_path
from skyward_core.transport.bundle_builder import bundle

COUNTING = """
import sys, zipimport
sys.path.insert(0, sys.argv[1])
import skyward_core
loads = []
real = zipimport.zipimporter.get_code
def get_code(self, name):
    code = real(self, name)
    loads.append(name)
    return code
def get_filename(self, name):
    raise AssertionError(name + " is read to know its file")
zipimport.zipimporter.get_code, zipimport.zipimporter.get_filename = get_code, get_filename
import skyward_core.node.worker.worker, skyward_core.plugins.built_in.mig, skyward_core.providers.ssh.provider
print(len(loads) - len(set(loads)), "skyward_core.node.worker.worker" in loads)
print(skyward_core.plugins.built_in.mig.__file__)
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("host") / "bundle-0" / "all.zip")
    host_command_server.unpack(bundle().archive, path)
    host_command_server.unpack(bundle().rest, deferred_bundle_path(path))
    return path


def modules(archive: str) -> dict[str, str]:
    """The modules of an archive's packages, and the places that they are looked for in."""
    with zipfile.ZipFile(archive) as file:
        paths = [path for path in file.namelist() if path.endswith((".py", ".pyc"))]
    names = {path.rpartition(".")[0].removesuffix("/__init__") for path in paths}
    return {name.replace("/", "."): f"{archive}/{name.rpartition('/')[0]}" for name in sorted(names) if "/" in name}


@pytest.mark.parametrize("which", ["what nodes start with", "the rest"])
def test_modules_are_found_as_python_finds_them(unpacked: str, which: str) -> None:
    archive = unpacked if which == "what nodes start with" else deferred_bundle_path(unpacked)
    found = modules(archive)
    assert len(found) > 80
    for name, place in found.items():
        ours, theirs = bundle_importer._Importer(place).find_spec(name), zipimporter(place).find_spec(name)
        assert ours is not None and theirs is not None and type(ours.loader) is bundle_importer._Importer
        assert ours.origin == theirs.origin and ours.has_location and ours.cached == theirs.cached, name
        assert ours.submodule_search_locations == theirs.submodule_search_locations


def test_its_code_may_be_asked_for_as_often_as_anybody_likes(unpacked: str) -> None:
    name, place = "skyward_core.protocol.frame_codec", f"{unpacked}/skyward_core/protocol"
    importer = bundle_importer._Importer(place)
    assert importer.find_spec(name) is not None
    code = importer.get_code(name)
    assert code == importer.get_code(name) == zipimporter(place).get_code(name)
    assert importer.find_spec("skyward_core.protocol.no_such_module") is None
    with pytest.raises(ImportError, match="no_such_module"):
        importer.get_code("skyward_core.protocol.no_such_module")


def test_each_module_is_read_once(unpacked: str) -> None:
    done = subprocess.run([sys.executable, "-I", "-c", COUNTING, unpacked], capture_output=True, text=True, check=False)
    file = f"{unpacked}/skyward_core/plugins/built_in/mig.py"
    assert done.stdout.splitlines() == ["0 True", file], done.stderr


def test_other_files_are_imported_from_as_ever(tmp_path: Path) -> None:
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("parcel/__init__.py", "")
        file.writestr("parcel/inner.py", "value = 3")
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import skyward_core.node.bundle_importer as ours, zipimport\n"
        "ours.install_bundle_importer('/nowhere/bundle-0/all.zip')\n"
        "import parcel.inner; print(type(parcel.inner.__loader__) is zipimport.zipimporter, parcel.inner.value)"
    )
    root = str(Path(bundle_importer.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, root, str(other)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "True 3", done.stderr
