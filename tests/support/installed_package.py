"""A package that is installed and declares something of ours by an entry point."""

from __future__ import annotations

from pathlib import Path


def install_package(group: str, folder: Path, name: str, value: str, module: str, text: str) -> None:
    """What pip leaves of it.

    Args:
        group: of entry points.
        folder: where packages are, on the import path.
        name, value: what it declares: what that is called, and where in it that is, as MODULE:NAME.
        module, text: its one module; the package is called so, too.
    """
    (folder / f"{module}.py").write_text(text)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
