"""Schemas of the files in `.github`, and the commands that workflows share with CONTRIBUTING.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


def check_schema(schema: str, *files: Path) -> subprocess.CompletedProcess[str]:
    """Run check-jsonschema with one of its vendored schemas."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def commands(workflow: Path) -> list[str]:
    """Return the shell commands of all steps."""
    jobs: dict[str, Any] = yaml.safe_load(workflow.read_text("utf-8"))["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_workflows_and_dependabot_settings_match_their_schemas() -> None:
    assert len(WORKFLOWS) == 3
    for schema, files in (("vendor.github-workflows", WORKFLOWS), ("vendor.dependabot", [GITHUB / "dependabot.yml"])):
        checked = check_schema(schema, *files)
        assert checked.returncode == 0, checked.stdout


def test_schema_check_rejects_a_workflow_without_a_runner(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text("utf-8").replace("runs-on:", "runs-at:"))
    assert check_schema("vendor.github-workflows", broken).returncode == 1


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_contributing_names_the_commands_of_each_workflow(workflow: Path) -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for command in commands(workflow):
        command = command.removeprefix('sudo env "PATH=$PATH" PROOFS=today ')
        assert command.replace("--group docs", "--group dev") in contributing


def test_tests_run_on_every_python_that_the_package_supports() -> None:
    versions = yaml.safe_load((GITHUB / "workflows/tests.yml").read_text("utf-8"))["jobs"]["linux"]["strategy"]
    assert versions["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
