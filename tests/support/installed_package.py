"""Installed package that declares an entry point."""

from __future__ import annotations

from pathlib import Path


def install_package(group: str, folder: Path, name: str, value: str, module: str, text: str) -> None:
    """Create the files of an installed package.

    Args:
        group: Group of the entry point.
        folder: Folder on the import path.
        name, value: Name of the entry point, and the declared object as MODULE:NAME.
        module, text: Name of its only module and of the package, and the source of the module.
    """
    (folder / f"{module}.py").write_text(text)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
