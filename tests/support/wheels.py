"""Test packages in a folder, for installers without network access."""

from __future__ import annotations

import base64
import hashlib
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    """Write a wheel with one module of the package's name."""
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = (
        "".join(f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files.items())
        + f"{name}-{version}.dist-info/RECORD,,\n"
    )
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files | {f"{name}-{version}.dist-info/RECORD": record}).items():
            archive.writestr(file, text)
    return path


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Yield the address of a page that links to the files in a folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def tiny_wheels(folder: Path, *versions: str) -> dict[str, str]:
    """Write versions of the package skytiny. Return the variables that make installers use them."""
    folder.mkdir(parents=True)
    for version in versions:
        wheel(folder, "skytiny", version)
    return from_folder(folder)


def from_folder(folder: Path) -> dict[str, str]:
    """Return the variables that make installers use only packages in a folder."""
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "UV_FIND_LINKS": str(folder),
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(folder.parent / "uv-cache"),
    }


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
