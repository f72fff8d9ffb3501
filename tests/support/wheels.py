"""Packages of ours in a folder, for installers that may not go anywhere else."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def tiny_wheels(folder: Path, *versions: str) -> dict[str, str]:
    """Write versions of the package skytiny; gives the variables that have the installers take it from there."""
    folder.mkdir(parents=True)
    for version in versions:
        files = {
            "skytiny.py": f"VERSION = {version!r}\n",
            f"skytiny-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: skytiny\nVersion: {version}\n",
            f"skytiny-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = (
            "".join(f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files.items())
            + f"skytiny-{version}.dist-info/RECORD,,\n"
        )
        with zipfile.ZipFile(folder / f"skytiny-{version}-py3-none-any.whl", "w") as archive:
            for name, text in (files | {f"skytiny-{version}.dist-info/RECORD": record}).items():
                archive.writestr(name, text)
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "UV_FIND_LINKS": str(folder),
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(folder.parent / "uv-cache"),
    }


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
