"""Second client, which is killed and restarted: ``python -m tests.chaos.beside POOL`` works until it is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cloudpickle

import skyward_core as sky

from . import work


class Another:
    """Second client; see the module.

    Attributes:
        problems: Problems that it reported.
    """

    def __init__(self, pool: str) -> None:
        self.problems: list[str] = []
        self._pool = pool
        self._process: subprocess.Popen[str] | None = None

    def trouble(self) -> None:
        """Start the client, or kill it."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.beside", self._pool],
                cwd=Path(__file__).parents[2],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        else:
            self.close()

    def close(self) -> None:
        """Kill the client if it runs."""
        if self._process is not None:
            self._process.kill()
            self.problems += self._process.communicate()[0].splitlines()
            self._process = None


def main(pool: str) -> None:
    """Broadcast repeatedly."""
    cloudpickle.register_pickle_by_value(work)
    number = 0
    with sky.attach(pool) as compute:
        while True:
            number += 1
            try:
                found = work.work(f"b{number}", number, 1, 0.01) @ compute
            except sky.RunError as error:
                if error.root_cause.outcome not in ("exited", "lost"):
                    print(f"failed without a cause: {error}", flush=True)
                continue
            if [p.value for p in found] != [number * number + rank for rank in range(len(found))]:
                print(f"got {found} for {number}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
