"""asyncssh, imported without what takes long and is not used here.

It looks for optional C libraries, which runs a compiler and a linker for each name, a tenth of a second in all; what
it could find are a key exchange (sntrup761 by liboqs) and a checksum (umac by nettle) that have equals or betters
without them. X.509 certificates in SSH are no part of OpenSSH, and never trusted here; the module for them is one that
asyncssh can do without. Of typing_extensions it asks a single name, which Python has by now.

It makes a cipher of AES-GCM anew for each packet, of the same key: two thirds of the time that a small packet takes to
be encrypted. Here it gets the one that it had.
"""

from __future__ import annotations

import ctypes.util
import gc
import io
import logging
import sys
import typing
from functools import lru_cache
from typing import Any

from skyward_core.node.deferred_imports import LazyModule
from skyward_core.util.user_files import read_bytes, read_text

_search = ctypes.util.find_library
ctypes.util.find_library = lambda name: None
sys.modules.setdefault("asyncssh.crypto.x509", None)  # type: ignore[arg-type]
_extensions = sys.modules.setdefault("typing_extensions", LazyModule("typing_extensions", {"Self": typing.Self}))
_collects = gc.isenabled()
gc.disable()  # looking for garbage among what is imported takes a twelfth of the time
try:
    import asyncssh
    from asyncssh import config as _config
    from asyncssh import public_key as _public_key
    from asyncssh.config import SSHClientConfig, SSHConfig
    from asyncssh.crypto import cipher as _ciphers
    from asyncssh.encryption import get_encryption_algs
    from asyncssh.kex import get_kex_algs
    from asyncssh.mac import get_mac_algs
    from asyncssh.public_key import get_certificate_algs, get_public_key_algs
finally:
    if _collects:
        # What was imported is young now, and three looks for garbage would go through all of it, 20 ms in all. This
        # makes it old without a look; who has frozen something keeps that.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
    ctypes.util.find_library = _search
    if type(_extensions) is LazyModule and sys.modules.get("typing_extensions") is _extensions:
        del sys.modules["typing_extensions"]
    if sys.modules["asyncssh.crypto.x509"] is None:
        del sys.modules["asyncssh.crypto.x509"]

# It would wait for a named pipe in the place of a key or a configuration, and read a device without end.
vars(_public_key)["read_file"] = lambda name: read_bytes(name, MAX_FILE_SIZE)
vars(_config)["open"] = lambda name: io.StringIO(read_text(name, most=MAX_FILE_SIZE))

# Options that asyncssh does not know, and ignores without a word.
for _option in ("RevokedHostKeys", "BindInterface", "ProxyUseFdpass"):
    SSHClientConfig._handlers.setdefault(_option.lower(), (_option, SSHConfig._set_string))
# Criteria of Match that asyncssh evaluates otherwise than OpenSSH, or only while it connects.
NOT_EVALUATED = {"canonical", "final", "localnetwork", "tagged", "version", "command", "sessiontype"}

# It tells each command, of pages, to whoever has set up logging, as most scripts that train do; ours tell what matters.
# Who wants to hear it all gives its logger a level.
_logger = logging.getLogger("asyncssh")
if _logger.level == logging.NOTSET:
    _logger.setLevel(logging.WARNING)

MAX_FILE_SIZE = 1 << 20  # bytes of such a file
MAX_CACHED_CIPHERS = 1024  # two of a connection; others are made anew
_cipher_class = vars(_ciphers).get("AESGCM")
if isinstance(_cipher_class, type):
    vars(_ciphers)["AESGCM"] = lru_cache(MAX_CACHED_CIPHERS)(_cipher_class)


def _match(config: Any, option: str, args: list[str]) -> None:
    words = {word.lower().lstrip("!") for word in args}
    if words & NOT_EVALUATED or ("exec" in words and any("%" in word for word in args)):
        config._error(f"Match {' '.join(args)} is not supported")
    SSHConfig._match(config, option, args)


SSHClientConfig._handlers["match"] = ("Match", _match)

__all__ = [
    "asyncssh",
    "get_certificate_algs",
    "get_encryption_algs",
    "get_kex_algs",
    "get_mac_algs",
    "get_public_key_algs",
]
