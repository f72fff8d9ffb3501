"""Untrusted project: each of its files leaves a mark if it is run or imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MINOR = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SCRIPT = "train.py"
JOB = "job.yaml"
PRESET = "theirs"
# Programs and modules that this project shadows, in case that anything is looked up in the working folder.
PROGRAMS = ("git", "ssh", "uv", "python3", "sh", "env", "nvidia-smi", "ssh-keygen")
MODULES = (
    "sitecustomize", "usercustomize", "yaml", "tomllib", "shutil", "conftest", "setup", "skyward_core", "textual",
)  # fmt: skip

TOML = """
[app]
theme = "{evil}"
[keys]
quit = "{evil}"
[notify]
command = "{evil} notify"
[hosts]
theirs = ["localhost"]
[pools.theirs]
provider = "local"
python = "{evil}"
[presets.{preset}]
script = "{script}"
nodes = 1
function = "train"
python = "{evil}"
image_settings = ["setup={evil} image"]
outputs = ["$({evil} outputs)", "`{evil} outputs`"]
arguments = ["lr=0.5"]
"""
HEAD = """# /// script
# requires-python = ">=3.11"
# dependencies = []
# [tool.uv]
# find-links = ["./package"]
# ///
"""
JOB_TEXT = """
name: theirs
workdir: .
num_nodes: 1
envs:
  A: $({evil} env)
file_mounts:
  /tmp/there: ./package
setup: "{evil} setup"
run: "{evil} run"
"""


def hostile_project(folder: Path, mark: Path) -> Path:
    """Create the project. Every part of it that runs appends a word to ``mark``.

    Returns:
        Program that a preset, a job and other files name.
    """

    def program(path: Path, word: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{word}' \"$@\" >> '{mark}'\nexit 1\n")
        path.chmod(0o755)
        return path

    def module(path: Path, word: str, rest: str = "") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(mark)!r}, 'a').write({word + chr(10)!r})\n{rest}")

    folder.mkdir(parents=True, exist_ok=True)
    evil = program(folder / "evil.sh", "evil.sh")
    body = "import skyward_core as sky\n\n\n@sky.function\ndef train(lr: float = 0.1) -> None: ...\n"
    module(folder / SCRIPT, "train.py", body)
    for name in PROGRAMS:
        program(folder / name, name)
    for name in MODULES:
        module(folder / f"{name}.py", f"{name}.py")
    (folder / "block.py").write_text(HEAD + body)
    (folder / "notebook.ipynb").write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": [f"!{evil} notebook"]}], "nbformat": 4, "metadata": {}})
    )
    _environment(folder / ".venv", program, module)
    named = {"evil": evil, "folder": folder, "preset": PRESET, "script": SCRIPT}
    (folder / "skyward.toml").write_text(TOML.format(**named))
    (folder / JOB).write_text(JOB_TEXT.format(**named))
    _packages(folder, evil, module)
    _repository(folder, evil, program)
    return evil


def _environment(folder: Path, program, module) -> None:  # type: ignore[no-untyped-def]
    for name in ("python", "python3", "activate", "pip", "uv"):
        program(folder / "bin" / name, f".venv/bin/{name}")
    (folder / "pyvenv.cfg").write_text(f"home = {folder}/bin\nversion = {sys.version.split()[0]}\n")
    packages = folder / "lib" / MINOR / "site-packages"
    for name in ("sitecustomize", "usercustomize", "torch"):
        module(packages / f"{name}.py", f".venv/{name}.py")
    (packages / "evil.pth").write_text("import sitecustomize\n")


def _packages(folder: Path, evil: Path, module) -> None:  # type: ignore[no-untyped-def]
    package = folder / "package"
    module(package / "setup.py", "package/setup.py")
    module(package / "backend.py", "package/backend.py")
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (package / "pyproject.toml").write_text(build + '[project]\nname = "package"\nversion = "1"\n')
    (folder / "pyproject.toml").write_text(
        build
        + f'[project]\nname = "theirs"\nversion = "1"\ndependencies = []\n[tool.uv]\nkeyring-provider = "{evil}"\n'
    )
    (folder / "requirements.txt").write_text("-e ./package\n")
    (folder / "uv.toml").write_text(f'python-downloads-json-url = "{evil}"\n')
    (folder / "pip.conf").write_text(f"[global]\npython = {evil}\n")
    for name in (".python-version", ".env", ".envrc"):
        (folder / name).write_text(f"$({evil} {name})\n")


def _repository(folder: Path, evil: Path, program) -> None:  # type: ignore[no-untyped-def]
    def git(*words: str) -> None:
        subprocess.run(["/usr/bin/git", "-C", folder, *words], check=True, capture_output=True)

    git("init", "--quiet")
    git("add", SCRIPT, "block.py")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first")
    for key in (
        "core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "diff.external", "diff.theirs.textconv",
        "diff.theirs.command", "filter.theirs.clean", "filter.theirs.smudge", "filter.theirs.process",
        "credential.helper", "gpg.program", "alias.ls-files", "alias.diff",
    ):  # fmt: skip
        git("config", key, f"{evil} {key}")
    git("config", "filter.theirs.required", "true")
    (folder / ".gitattributes").write_text("* filter=theirs diff=theirs\n")
    (folder / "block.py").write_text((folder / "block.py").read_text() + "\n")  # as git sees it, it was changed
    for hook in ("post-index-change", "pre-auto-gc", "reference-transaction", "post-checkout", "fsmonitor-watchman"):
        program(folder / ".git" / "hooks" / hook, f"hook {hook}")
