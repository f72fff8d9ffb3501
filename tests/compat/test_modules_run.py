"""Targets of ``run`` other than a file: a module of a package, a folder, an archive."""

from __future__ import annotations

import os
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from skyward_core.__main__ import load_main_from_path
from tests.support.processes import run_command

ROOT = Path(__file__).parents[2]
FILES = {
    "mine/__init__.py": "WORD = 'of the package'\n",
    "mine/models/__init__.py": "from .net import Net\n",
    "mine/models/net.py": "class Net:\n    def __init__(self, width): self.width = width\n",
    "mine/__main__.py": "from .train import main\nmain()\n",
    "mine/train.py": """
from __future__ import annotations
import multiprocessing, sys
import skyward as sky
from .models import Net

@sky.function
def train(net: Net):
    from . import WORD  # of the package, in the rank
    return net.width, WORD, __name__, type(net) is Net

def says():
    print("child:", sky.Compute(provider=sky.AWS()).spec.provider.name, flush=True)

def main():
    with sky.Compute(provider=sky.RunPod(), nodes=2) as compute:
        print(sys.argv[1:], train(Net(3)) @ compute)

if __name__ == "__main__":
    main()
    child = multiprocessing.get_context("spawn").Process(target=says)
    child.start()
    child.join()
""",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    archived = folder / "archived"
    for name, text in FILES.items():
        (archived / name).parent.mkdir(parents=True, exist_ok=True)
        (archived / name).write_text(text)
    (archived / "__main__.py").write_text("from mine.train import main\nmain()\n")
    zipapp.create_archive(archived, folder / "app.pyz")
    return folder


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return run_command(
        [sys.executable, "-m", "skyward_core", "--provider", "local", *arguments],
        cwd=project,
        env=os.environ | {"PYTHONPATH": path, "SKYWARD_HOME": str(project / "home")},
    )


def gave(name: str, *arguments: str) -> str:
    return f"{[*arguments]} {[(3, 'of the package', name, True)] * 2}\n"


def test_module_of_a_package_runs_with_dash_m(project: Path) -> None:
    done = run(project, "-m", "mine.train", "--provider", "mars")
    assert done.stdout == gave("__main__", "--provider", "mars") + "child: local\n", done.stderr


@pytest.mark.proof("1 s of a processor")
@pytest.mark.parametrize("what", [("app.pyz",), ("-m", "mine"), ("archived",)], ids=str)
def test_archive_package_and_folder_run_as_scripts(project: Path, what: tuple[str, ...]) -> None:
    done = run(project, *what, "-x")
    assert done.stdout == gave("mine.train", "-x"), done.stderr


REFUSED = {
    "-m nothing": "error: no module nothing to run in ",
    "-m mine.nothing": "error: no module mine.nothing to run",
    "-m mine.train.main": "error: no module mine.train.main to run",
    "-m mine.models": "error: package mine.models has no __main__ to run",
    "-m mine/train.py": "error: no module mine/train.py: -m takes the name of a module. Leave -m out for a file",
    "-m .train": "error: no module .train to run",
    "mine/train.py": "mine/train.py is part of a package. Run it as a module: -m PACKAGE.MODULE",
    "home": "error: home is a folder. Name a script in it",
    "-m": "error: name a SCRIPT, or a module with -m MODULE",
}


@pytest.mark.proof("0.2 s of a processor", after=4)
@pytest.mark.parametrize("given", REFUSED)
def test_target_that_cannot_run_is_refused_in_one_sentence(project: Path, given: str) -> None:
    (project / "home").mkdir(exist_ok=True)
    done = run(project, *given.split())
    assert done.returncode in (1, 2) and not done.stdout
    assert REFUSED[given] in done.stderr.splitlines()[-1]


def test_import_error_of_a_parent_package_is_shown(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("import not_there_at_all\n")
    done = run(tmp_path, "-m", "broken.train")
    assert done.returncode == 1 and "ModuleNotFoundError: No module named 'not_there_at_all'" in done.stderr


def test_main_of_a_plain_script_keeps_path_and_folder(tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text("x = 1\n")
    main = load_main_from_path(script)
    assert (main.file, main.argument, main.folder, main.spec) == (str(script), str(script), str(tmp_path), None)
