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
import logging
import sys
import typing
from functools import lru_cache

from ...node.put_off import PutOff

_search = ctypes.util.find_library
ctypes.util.find_library = lambda name: None
sys.modules.setdefault("asyncssh.crypto.x509", None)  # type: ignore[arg-type]
_extensions = sys.modules.setdefault("typing_extensions", PutOff("typing_extensions", {"Self": typing.Self}))
_collects = gc.isenabled()
gc.disable()  # looking for garbage among what is imported takes a twelfth of the time
try:
    import asyncssh
    from asyncssh.config import SSHClientConfig, SSHConfig
    from asyncssh.crypto import cipher as _ciphers
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
    if type(_extensions) is PutOff and sys.modules.get("typing_extensions") is _extensions:
        del sys.modules["typing_extensions"]
    if sys.modules["asyncssh.crypto.x509"] is None:
        del sys.modules["asyncssh.crypto.x509"]

# An option that asyncssh does not know it passes over in silence, and this one says whom not to believe.
SSHClientConfig._handlers.setdefault("revokedhostkeys", ("RevokedHostKeys", SSHConfig._set_string))

# It tells each command, of pages, to whoever has set up logging, as most scripts that train do; ours tell what matters.
# Who wants to hear it all gives its logger a level.
_logger = logging.getLogger("asyncssh")
if _logger.level == logging.NOTSET:
    _logger.setLevel(logging.WARNING)

CIPHERS_KEPT = 1024  # two of a connection; others are made anew
_made = vars(_ciphers).get("AESGCM")
if isinstance(_made, type):
    vars(_ciphers)["AESGCM"] = lru_cache(CIPHERS_KEPT)(_made)

__all__ = ["asyncssh", "get_certificate_algs", "get_public_key_algs"]
