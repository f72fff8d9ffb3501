"""asyncssh, imported without its search for optional C libraries.

The search runs a compiler and a linker for each name, a tenth of a second in all. What it could find are a key
exchange (sntrup761 by liboqs) and a checksum (umac by nettle) that have equals or betters without them.
"""

from __future__ import annotations

import ctypes.util

_search = ctypes.util.find_library
ctypes.util.find_library = lambda name: None
try:
    import asyncssh
finally:
    ctypes.util.find_library = _search

__all__ = ["asyncssh"]
