"""Other interpreters of this machine, for tests that need one."""

from __future__ import annotations

import os
import sys
from functools import cache

import pytest

from skyward_core.tasks.known_pythons import KnownPython, NoPython, ask, others


@cache
def another_python() -> KnownPython:
    """A Python of another minor version than ours that we can use; skips the test where there is none."""
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}."
    for program in others(os.environ):
        try:
            known = ask(program)
        except NoPython:
            continue
        if not known.version.startswith(ours):
            return known
    pytest.skip(f"there is no other Python than {ours[:-1]} here that is 3.11 or later")
