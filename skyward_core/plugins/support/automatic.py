"""What the oldest generation does by itself: a function that uses ``torch.distributed`` finds its process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar

from ...runtime.info import instance_info
from ...runtime.torchrun import mentions
from ..base import Plugin, enter_late
from ..built_in.torch import Torch

BRINGS = "__skyward_brings__"  # an attribute of functions that bring their plugins along


@dataclass(frozen=True)
class Automatic(Plugin):
    """Makes the process group at the first broadcast of a function whose code names ``torch.distributed``."""

    name: ClassVar[str] = "automatic"
    help: ClassVar[str] = "the process group of functions that use torch.distributed"

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        from inspect import isgeneratorfunction

        if getattr(fn, BRINGS, False) or not mentions(fn, "torch.distributed"):
            return fn
        if isgeneratorfunction(fn):

            @wraps(fn)
            def stream(*args: Any, **kwargs: Any) -> Any:
                with _in_its_group():
                    return (yield from fn(*args, **kwargs))

            return stream

        @wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _in_its_group():
                return fn(*args, **kwargs)

        return call


@contextmanager
def _in_its_group() -> Iterator[None]:
    """The group of all ranks for broadcasts; none for a task, which has a world of one rank."""
    if instance_info().world_size < 2:
        yield
        return
    enter_late((Torch(),))
    yield
