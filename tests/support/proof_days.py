"""Days on which CI runs each proof: a seventh a day, so that none breaks unnoticed.

``python -m tests.support.proof_days DAY apt`` (or ``pip``) prints the packages that the proofs of a day need beside the
test extra. It runs before anything is installed, so it imports the standard library only.
"""

from __future__ import annotations

import sys
from zlib import crc32

DAYS = 7
# Test files whose proofs need further packages: day, installer, packages. All proofs of such a file are due together.
NEEDS = {
    "tests/lab/test_engines.py": (1, "pip", "ray[default]"),
    "tests/frameworks/test_tensorflow.py": (2, "pip", "tensorflow-cpu"),
    "tests/frameworks/test_launcher_guides.py": (3, "pip", "lightning"),
    "tests/frameworks/test_recovery.py": (3, "pip", "lightning"),
    "tests/lab/test_mpi.py": (4, "apt", "mpich"),
    "tests/local/test_slurm.py": (5, "apt", "slurm-wlm munge"),
}


def is_due(node_id: str, day: int | None) -> bool:
    """Check whether CI runs a proof on a day.

    Args:
        node_id: Pytest's name of the test, with its parameters.
        day: Days since 1970; None for runs without proofs.
    """
    if day is None:
        return False
    file = node_id.partition("::")[0]
    due = NEEDS[file][0] if file in NEEDS else crc32(node_id.encode())
    return due % DAYS == day % DAYS


def packages(day: int, installer: str) -> list[str]:
    """Return the packages that an installer has to install for the proofs of a day."""
    return [
        name for due, by, names in NEEDS.values() if due == day % DAYS and by == installer for name in names.split()
    ]


if __name__ == "__main__":
    sys.stdout.writelines(f"{name}\n" for name in packages(int(sys.argv[1]), sys.argv[2]))
