"""The table of supported versions agrees with pyproject.toml and the workflow of the tests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "start" / "install.md").read_text("utf-8").partition("## Supported versions")[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REQUIREMENTS = {
    re.split(r"[=<>]", each)[0]: each for each in PROJECT["optional-dependencies"]["test"] if not each.startswith("-")
}


def row(name: str) -> str:
    """Return the row of the page that begins with a name."""
    (found,) = (line for line in PAGE.splitlines() if line.startswith(f"| {name} "))
    return found


def test_python_versions_are_those_of_the_classifiers() -> None:
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert row("Linux").count("3.") == len(versions) and ", ".join(versions) in row("Linux")
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    assert all(f'"{each}"' in workflow for each in versions)
    (macos,) = re.findall(r"runs-on: macos.*?python-version: \"([\d.]+)\"", workflow, re.DOTALL)
    assert f"Python {macos}" in row("macOS")


@pytest.mark.parametrize(
    ("name", "package"),
    [("torch", "torch"), ("jax", "jax"), ("keras", "keras"), ("transformers", "transformers"), ("Dask", "distributed")],
)
def test_package_has_the_version_of_the_test_extra(name: str, package: str) -> None:
    version = re.split(r"[=<>]+", REQUIREMENTS[package])[1]
    assert version in row(name) and "in CI" in row(name)


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"].keys() - {"test"}))
def test_package_extra_accepts_older_installed_versions(extra: str) -> None:
    specifiers = {each.name: each.specifier for each in map(Requirement, PROJECT["optional-dependencies"][extra])}
    assert {part.operator for found in specifiers.values() for part in found} <= {">="}
    assert all(specifiers[name].contains("2.4.0") for name in {"torch"} & specifiers.keys())


@pytest.mark.parametrize("name", ["tensorflow", "Lightning", "Ray"])
def test_package_that_ci_lacks_is_tested_if_installed(name: str) -> None:
    assert name.lower() not in REQUIREMENTS and "if installed" in row(name)
