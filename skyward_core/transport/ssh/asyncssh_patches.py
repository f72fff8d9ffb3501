"""Import of asyncssh without its slow optional parts, and with a faster cipher and stricter configuration.

Without these changes, asyncssh searches for optional C libraries, which runs a compiler and a linker for 0.1 s in all.
The libraries would add a key exchange (sntrup761 by liboqs) and a checksum (umac by nettle), which have equivalents.
The module for X.509 certificates is skipped, because OpenSSH does not support these certificates in SSH.
typing_extensions is replaced, because asyncssh only needs ``Self``, which Python has.
asyncssh creates a new AES-GCM cipher for each packet, which takes two thirds of the encryption time of small packets.
Here the cipher is cached by its key.
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
from skyward_core.util.safe_file_access import read_bytes, read_text

_search = ctypes.util.find_library
ctypes.util.find_library = lambda name: None
sys.modules.setdefault("asyncssh.crypto.x509", None)  # type: ignore[arg-type]
_extensions = sys.modules.setdefault("typing_extensions", LazyModule("typing_extensions", {"Self": typing.Self}))
_collects = gc.isenabled()
# Disable garbage collection during the import of asyncssh, because it takes a twelfth of the import's time.
gc.disable()
try:
    import asyncssh
    from asyncssh import config as _config
    from asyncssh import public_key as _public_key
    from asyncssh.config import SSHClientConfig, SSHConfig
    from asyncssh.crypto import cipher as _ciphers
    from asyncssh.encryption import get_encryption_algs
    from asyncssh.kex import get_kex_algs
    from asyncssh.logging import SSHLogger
    from asyncssh.mac import get_mac_algs
    from asyncssh.packet import SSHPacketLogger
    from asyncssh.public_key import get_certificate_algs, get_public_key_algs
finally:
    if _collects:
        # Move the imported objects to the oldest generation by freezing and unfreezing them. Otherwise three
        # collections would traverse them, 20 ms in all. Objects that the application froze stay frozen.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
    ctypes.util.find_library = _search
    if type(_extensions) is LazyModule and sys.modules.get("typing_extensions") is _extensions:
        del sys.modules["typing_extensions"]
    if sys.modules["asyncssh.crypto.x509"] is None:
        del sys.modules["asyncssh.crypto.x509"]

# Reject files that are not regular: asyncssh would block on a named pipe, and read a device endlessly.
vars(_public_key)["read_file"] = lambda name: read_bytes(name, MAX_FILE_SIZE)
vars(_config)["open"] = lambda name: io.StringIO(read_text(name, most=MAX_FILE_SIZE))

# Make asyncssh read these options, which it would silently ignore.
for _option in ("RevokedHostKeys", "BindInterface", "ProxyUseFdpass"):
    SSHClientConfig._handlers.setdefault(_option.lower(), (_option, SSHConfig._set_string))
# Match criteria in the SSH configuration that asyncssh evaluates differently from OpenSSH, or only during a connection.
NOT_EVALUATED = {"canonical", "final", "localnetwork", "tagged", "version", "command", "sessiontype"}

# asyncssh logs each command, pages long, at level INFO, which training scripts often enable. To see these messages, set
# the level of its logger.
_logger = logging.getLogger("asyncssh")
if _logger.level == logging.NOTSET:
    _logger.setLevel(logging.WARNING)

# Skip messages that are not logged: asyncssh would format their arguments and describe each packet, 5 % of a start.
_log_message, _log_packet = SSHLogger.log, SSHPacketLogger._log_packet


def _log(self: SSHLogger, level: int, msg: object, *args: Any, **named: Any) -> None:
    if self.isEnabledFor(level):
        _log_message(self, level, msg, *args, **named)


def _log_packet_in_detail(self: SSHPacketLogger, *args: Any) -> None:
    if SSHLogger._debug_level > 2:
        _log_packet(self, *args)


SSHLogger.log = _log  # type: ignore[method-assign]
SSHPacketLogger._log_packet = _log_packet_in_detail  # type: ignore[assignment]

MAX_FILE_SIZE = 1 << 20  # maximum bytes of a key or configuration file
# maximum number of cached ciphers, two per connection; beyond it, ciphers are created again
MAX_CACHED_CIPHERS = 1024
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
