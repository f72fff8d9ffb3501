"""``sky.script``: a whole script as a call, for operators to send."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..model.errors import ScriptError, UsageError
from ..model.function import PendingFunction
from ..runtime.whole_script import WholeScript
from ..store.user_files import read_bytes


def script(
    path: str | os.PathLike[str],
    args: Sequence[object] = (),
    *,
    module: bool = False,
    torchrun: bool = False,
    timeout: float | None = None,
) -> PendingFunction[None]:
    """A whole script as a call: each rank runs it as its main program, with ``sys.argv`` of its own.

    What ``python train.py --epochs 3`` runs here, ``sky.script("train.py", ["--epochs", 3]) @ pool`` runs on each rank:
    ``__name__`` is ``"__main__"``, ``__file__`` is the node's copy, imports find what lies beside it. It gives None. It
    fails where it raises, and where it ends with a status other than 0. Each run of it has fresh processes.

    Args:
        path: the script, in the working folder of the pool; of a module, its name.
        args: its own; what is no text is made one.
        module: run it as ``python -m`` does.
        torchrun: have it find torchrun's variables (``RANK``, ``LOCAL_RANK``, ...) where there is one rank, too, as
            torchrun does; of several ranks each has them anyway.
        timeout: seconds that one rank may take; None for no limit.

    Raises:
        ScriptError: there is no such script, or it does not parse.
        UsageError: ``args`` is one text, not a list of them.
        ValueError: ``timeout`` is not more than 0.
    """
    if isinstance(args, str | bytes):
        raise UsageError(f"the arguments of a script are a list, such as {args.split()!r}, not one text")
    words = [os.fspath(each) if isinstance(each, os.PathLike) else str(each) for each in args]
    if module:
        if not all(part.isidentifier() for part in str(path).split(".")):
            raise ScriptError(f"{path} is no name of a module; a script is run without module=True")
        run = WholeScript(str(path), b"", words)
    else:
        from .scripts import parse

        file = Path(os.path.abspath(path))  # noqa: PTH100  a link keeps its own name, as Python has it
        parse(file)
        run = WholeScript(str(file), read_bytes(file), words)
        if not run.source:
            run.source = b"\n"  # an empty script is one
    run.torchrun = bool(torchrun)
    return PendingFunction(run, (), None).with_timeout(timeout)
