"""What a worker has put off to be there sooner, user code finds whole."""

from __future__ import annotations

import sys
from pathlib import Path

import skyward_core as sky


@sky.function
def look() -> tuple[list[str], list[str]]:
    import sys

    loaded: list[str] = [name for name in ("ast", "inspect", "traceback", "uuid") if name in sys.modules]
    return loaded, [name for name, module in sys.modules.items() if type(module).__name__ == "PutOff"]


@sky.function
def use() -> dict[str, object]:
    import dataclasses
    import inspect
    import io
    import logging
    import sys
    import traceback
    import uuid

    import cloudpickle.cloudpickle

    kind = dataclasses.make_dataclass("Kind", [("x", int, 3)])
    written = io.StringIO()
    logger = logging.getLogger("put-off")
    logger.addHandler(logging.StreamHandler(written))
    try:
        print(1 / 0)
    except ZeroDivisionError:
        logger.exception("so it was")
        text = traceback.format_exc()
    return {
        "doc": kind.__doc__,
        "logged": "ZeroDivisionError" in written.getvalue() and "ZeroDivisionError" in text,
        "files": [str(module.__file__).rpartition("/")[2] for module in (inspect, traceback, uuid)],
        "same": sys.modules["inspect"] is inspect and not inspect.signature(lambda: 0).parameters,
        "class": cloudpickle.loads(cloudpickle.dumps(kind))().x,
        "by others": dataclasses.inspect.signature is inspect.signature,  # type: ignore[attr-defined]
    }


def test_user_code_sees_no_stand_in(home: Path) -> None:
    with sky.Compute(options=sky.Options(console=False)) as pool:
        # Since Python 3.12 every dataclass asks something of inspect.
        loaded = ["ast", "inspect"] if sys.version_info >= (3, 12) else []
        assert look() >> pool == (loaded, [])
        assert use() >> pool == {
            "doc": "Kind(x: int = 3)",
            "logged": True,
            "files": ["inspect.py", "traceback.py", "uuid.py"],
            "same": True,
            "class": 3,
            "by others": True,
        }
