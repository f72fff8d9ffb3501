"""Files and paths that users and projects name, for app and command line."""

from __future__ import annotations

from ..store.user_files import (
    entries,
    exists,
    expanded,
    is_dir,
    is_file,
    json_of,
    read_bytes,
    read_text,
    resolved,
)

__all__ = [
    "entries",
    "exists",
    "expanded",
    "is_dir",
    "is_file",
    "json_of",
    "read_bytes",
    "read_text",
    "resolved",
]
