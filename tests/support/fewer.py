"""Interpreters that run as if some packages were not installed; see ``fewer_packages``."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_name("fewer_packages")


def without(packages: str) -> dict[str, str]:
    """Return the environment of such an interpreter.

    Args:
        packages: Names of the packages, separated by spaces.
    """
    return {"NOT_INSTALLED": packages, "PYTHONPATH": str(FOLDER)}
