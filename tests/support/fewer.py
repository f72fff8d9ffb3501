"""Interpreters that run as where some packages are not installed; see ``fewer_packages``."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_name("fewer_packages")


def without(packages: str) -> dict[str, str]:
    """The environment of such an interpreter.

    Args:
        packages: their names, separated by spaces.
    """
    return {"NOT_INSTALLED": packages, "PYTHONPATH": str(FOLDER)}
