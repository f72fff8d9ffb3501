"""Where the web pages of a pool's plugins are on its head: in a file of the pool's folder, which is the person's alone.

Addresses may have a secret in them that only the client which made the pool knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .home import pool_dir, pool_path
from .user_files import json_of, read_text
from .whole_file import write_whole

FILE = "dashboards.json"


def keep(pool: str, name: str, plugins: Iterable[Any]) -> None:
    """Keep those of a pool's plugins that have one.

    Args:
        pool: its key.
        name: its name.

    Raises:
        OSError: it cannot be written.
    """
    asked = ((plugin.name, getattr(plugin, "dashboard_at", lambda pool: None)(name)) for plugin in plugins)
    if found := [[plugin, *place] for plugin, place in asked if place is not None]:
        write_whole(pool_dir(pool) / FILE, json.dumps(found).encode())


def kept(pool: str) -> list[tuple[str, int, str]]:
    """Of each the plugin's name, the port on the head's loopback, and the path there.

    Raises:
        OSError, ValueError: they cannot be read.
    """
    try:
        told = json_of(read_text(pool_path(pool) / FILE))
    except FileNotFoundError:
        return []
    return [(str(name), int(port), str(path)) for name, port, path in told]
