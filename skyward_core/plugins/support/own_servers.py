"""What plugins with servers of their own on nodes have in common: their ports, and what processes know of them by."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ...model.errors import PoolError


def check_free(plugin: str, address: str, port: int) -> None:
    """See whether a server can have its port: those there are would take another one, where nobody looks for it, or end
    and say little.

    Args:
        plugin: what takes another port.

    Raises:
        PoolError: it cannot.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            words = f"port {port} of {address} cannot be had ({error.strerror}): give another one, {plugin}(port=...)"
            raise PoolError(words) from error


@contextmanager
def variables(given: Mapping[str, str]) -> Iterator[None]:
    """Have variables in this process while the block runs."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
