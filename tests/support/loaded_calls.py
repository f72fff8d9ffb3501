"""One call of a script's function, loaded as pools load scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skyward_core.tasks.pickled_calls_and_blobs import Task
from skyward_core.tasks.script_loader_parent import build_tasks


def build_task(path: Path, function: str | None, kwargs: Mapping[str, Any], **how: Any) -> Task:
    """Load the script and pickle one call."""
    return build_tasks(path, function, [kwargs], **how)[0]
