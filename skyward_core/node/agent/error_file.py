"""What user code wrote down as the cause of its end, where torchrun has it do so (``TORCHELASTIC_ERROR_FILE``)."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypedDict

    class Said(TypedDict):
        """What stands in one. (To make such a type takes each agent's start a millisecond.)"""

        message: str
        traceback: str


LONGEST = 1 << 16  # bytes that are read of one
MESSAGE = 8192  # characters


def error_of(path: str) -> Said | None:
    """Read such a file, once; None where there is none, or nothing that makes sense.

    It is a person's own code that writes it, and may write anything.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(LONGEST + 1)
        os.unlink(path)  # noqa: PTH108  an agent has no need of pathlib here
        told = json.loads(data)["message"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(told, str):
        return {"message": told[:MESSAGE], "traceback": ""}
    if not isinstance(told, dict) or not isinstance(told.get("message"), str):
        return None
    more = told.get("extraInfo")
    trace = more.get("py_callstack") if isinstance(more, dict) else ""
    return {"message": told["message"][:MESSAGE], "traceback": trace if isinstance(trace, str) else ""}
