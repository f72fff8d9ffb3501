"""Modules that an agent's imports ask for and never use: put off until somebody does.

Sent to hosts ahead of everything else, as ``bootstrap.host_command_server`` is: standard library only, nothing of the
package.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing's would be imported for it

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


# What the standard library's modules import and agents never ask anything of, unless something goes wrong: a quarter of
# what they import.
LAZY_MODULES = ("inspect", "ipaddress", "linecache", "locale", "textwrap")


class TypingStub:
    """Stands for what only type checkers ask anything of: in annotations, and as a base."""

    def __class_getitem__(cls, _: object) -> type[TypingStub]:
        return cls


# What these modules, and ours, have of typing before they run: a twelfth of what they import.
TYPING_STUBS = {"TYPE_CHECKING": False, "final": lambda kind: kind}
TYPING_STUBS |= dict.fromkeys(
    (
        "Any",
        "Awaitable",
        "Callable",
        "IO",
        "Iterable",
        "List",
        "Literal",
        "Optional",
        "Protocol",
        "Tuple",
        "Type",
    ),
    TypingStub,
)


def import_asyncio() -> None:
    """Import it as an agent needs it: without ssl, which takes 7 MB of memory, for it speaks through Unix sockets."""
    install_lazy_modules()
    sys.modules["ssl"] = None  # type: ignore[assignment]
    import asyncio  # noqa: F401

    del sys.modules["ssl"]


def install_lazy_modules() -> None:
    """Have what is imported next get stand-ins for the modules of ``NOT_NOW``, and for typing."""
    for name in LAZY_MODULES:
        if name not in sys.modules:
            sys.modules[name] = LazyModule(name)
    if "typing" not in sys.modules:
        sys.modules["typing"] = LazyModule("typing", TYPING_STUBS)


class LazyModule(type(sys)):  # type: ignore[misc]
    """Stands for a module until something of it is asked for. (importlib's LazyLoader loads at the next import.)"""

    def __init__(self, name: str, known: Mapping[str, Any] = {}) -> None:
        super().__init__(name)
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # what imports from it ask of each module
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        __import__(self.__name__)
        return getattr(sys.modules[self.__name__], name)
