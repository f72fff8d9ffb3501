"""What a rank does with memory that its code has freed."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

import skyward_core as sky

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc",
    reason="the GNU C library's settings",
)

PAGES_OF_A_STEP = 2 * 20_000_000 // 4096


@sky.function
def step() -> int:
    """Make 40 MB, and free them; how many pages that had to be mapped."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    made = bytearray(20_000_000)
    copy = bytes(made)
    del made, copy
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def later_steps(image: sky.Image) -> int:
    with sky.Compute(provider=sky.Local(), image=image, options=sky.Options(console=False)) as pool:
        return max([step() >> pool for _ in range(6)][3:])


def test_what_a_step_has_freed_serves_the_next(home: Path) -> None:
    assert later_steps(sky.Image()) < PAGES_OF_A_STEP / 10


@pytest.mark.proof("1 s of a processor")
def test_unless_somebody_wants_it_given_back(home: Path) -> None:
    image = sky.Image(env={"MALLOC_TRIM_THRESHOLD_": "131072"})
    assert later_steps(image) > later_steps(sky.Image())
