"""What a worker has put off to be there sooner, user code finds whole."""

from __future__ import annotations

import sys
from pathlib import Path

import skyward_core as sky


@sky.function
def look() -> tuple[list[str], list[str]]:

    names = ("ast", "dis", "inspect", "platform", "traceback", "uuid")
    loaded: list[str] = [name for name in names if name in sys.modules]
    return loaded, [name for name, module in sys.modules.items() if type(module).__name__ == "PutOff"]


@sky.function
def use() -> dict[str, object]:
    import dataclasses
    import dis
    import inspect
    import io
    import logging
    import platform
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
        "files": [str(module.__file__).rpartition("/")[2] for module in (dis, inspect, platform, traceback, uuid)],
        "same": sys.modules["inspect"] is inspect and not inspect.signature(lambda: 0).parameters,
        "known": [
            (cloudpickle.cloudpickle.HAVE_ARGUMENT, cloudpickle.cloudpickle.EXTENDED_ARG)
            == (dis.HAVE_ARGUMENT, dis.EXTENDED_ARG),
            (platform.python_implementation() == "PyPy") == cloudpickle.cloudpickle.PYPY,
        ],
        "class": cloudpickle.loads(cloudpickle.dumps(kind))().x,
        "by others": dataclasses.inspect.signature is inspect.signature,  # type: ignore[attr-defined]
    }


def test_user_code_sees_no_stand_in(home: Path) -> None:
    with sky.Compute(options=sky.Options(console=False)) as pool:
        assert look() >> pool == ([], [])
        assert use() >> pool == {
            "doc": "Kind(x: int = 3)",
            "logged": True,
            "files": ["dis.py", "inspect.py", "platform.py", "traceback.py", "uuid.py"],
            "known": [True, True],
            "same": True,
            "class": 3,
            "by others": True,
        }
