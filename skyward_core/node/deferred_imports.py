"""Lazy stand-ins for modules that an agent imports but rarely uses.

Stand-ins make agents start faster and use less memory. The client sends this module to hosts before the rest of the
package, together with ``bootstrap.host_command_server``, so it imports nothing from the package.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # Not imported, because ``from typing import TYPE_CHECKING`` would load the module typing.

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


# The standard library imports these modules, but agents use them only after an error. Deferring them saves a quarter of
# the time of all imports.
LAZY_MODULES = ("asyncio.sslproto", "inspect", "ipaddress", "linecache", "locale", "textwrap")


class TypingStub:
    """Placeholder for typing constructs that are used only in annotations and as base classes."""

    def __class_getitem__(cls, _: object) -> type[TypingStub]:
        return cls


# Attributes of typing that modules of the standard library and of this package access when an agent imports them.
# Replacing typing saves a twelfth of the time of all imports.
TYPING_STUBS = {"TYPE_CHECKING": False, "final": lambda kind: kind}
TYPING_STUBS |= dict.fromkeys(
    ("Any", "Awaitable", "Callable", "IO", "Iterable", "List", "Literal", "Optional", "Protocol", "Tuple", "Type"),
    TypingStub,
)


def import_asyncio() -> None:
    """Import asyncio without ssl, which takes 7 MB. Agents do not need ssl, because they use Unix sockets."""
    install_lazy_modules()
    sys.modules["ssl"] = None  # type: ignore[assignment]
    import asyncio  # noqa: F401

    del sys.modules["ssl"]


def install_lazy_modules() -> None:
    """Install stand-ins for ``LAZY_MODULES`` and for typing in ``sys.modules``."""
    for name in LAZY_MODULES:
        if name not in sys.modules:
            sys.modules[name] = LazyModule(name)
    if "typing" not in sys.modules:
        sys.modules["typing"] = LazyModule("typing", TYPING_STUBS)


SPARE: list[int] = []  # spare descriptors of an agent, closed if an import finds no free descriptor


class LazyModule(type(sys)):  # type: ignore[misc]
    """Stand-in that imports its module on first attribute access. (importlib's LazyLoader loads at the next import.)"""

    def __init__(self, name: str, known: Mapping[str, Any] = {}) -> None:
        super().__init__(name)
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # ``from module import name`` reads __path__, which must not load the module.
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        try:
            __import__(self.__name__)
        except OSError:  # The import failed because the process has no free descriptor.
            while SPARE:
                os.close(SPARE.pop())
            __import__(self.__name__)
        return getattr(sys.modules[self.__name__], name)
