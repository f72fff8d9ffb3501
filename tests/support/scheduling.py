"""Assignment of test files to processes: like pytest-xdist's ``loadfile``, but files with shared set-up stay
together.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

# Folders whose files share a set-up that takes seconds of CPU time once per process, and the number of processes for
# them: importing moto's EC2 takes two seconds, and its lists are cached.
SHARING = {"tests/aws": 2}
# Files that run in one process because of a shared set-up: rules about all sources, which are read and parsed once
# (`sources.py`), and tests that import PyTorch, which takes two seconds of CPU time.
TOGETHER = {
    "sources": ("errors", "node_paths", "prose", "protocol", "source_rules", "structure"),
    "torch": ("metric_logging", "framework_plugins", "public_docstrings", "distributed_sampler", "shard"),
}
PLACES = {f"tests/unit/test_{name}.py": place for place, names in TOGETHER.items() for name in names}


class SharingFiles(LoadFileScheduling):
    """Scheduler that gives files of a shared folder to a fixed number of processes, and all others to idle
    processes.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._places: dict[str, dict[str, int]] = {}  # by folder, the number of each of its files

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if file in PLACES:
            return PLACES[file]
        folder = file.rpartition("/")[0]
        if folder not in SHARING:
            return file
        places = self._places.setdefault(folder, {})
        return f"{folder} {places.setdefault(file, len(places)) % SHARING[folder]}"
