"""Who this client is, in words that another client's person understands."""

from __future__ import annotations

import os
import pwd
import socket
import sys
from functools import cache
from pathlib import Path


@cache
def ourselves() -> str:
    """``process 4711 (train.py) of ada@laptop``: arguments are left out, they may hold secrets."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    program = Path(sys.argv[0] if sys.argv else "").name or "python"
    return f"process {os.getpid()} ({program:.60}) of {user}@{socket.gethostname()}"
