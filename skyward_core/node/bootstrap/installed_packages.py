"""Which packages an interpreter finds, and in which version. Run by hosts and clients in the interpreter in question;
nothing of the packages is imported."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from skyward_core.node.bootstrap.package_indexes import normalize_name


def list_packages(path: Iterable[str]) -> dict[str, str]:
    """The packages on an import path, by name: their version, or "" for one that comes from a folder or an address.

    Their metadata says more, but to read it of all packages would take long.
    """
    found = {}
    for entry in reversed(list(dict.fromkeys(path))):
        try:
            with os.scandir(entry or ".") as inside:
                names = [each.name for each in inside]
        except OSError:  # an archive, or nothing
            continue
        for name in names:
            if name.endswith(".dist-info") and name.count("-") == 2:
                package, version = name[:-10].split("-")
                elsewhere = Path(entry, name, "direct_url.json").exists()
                found[normalize_name(package)] = "" if elsewhere else version
    return found


def main() -> None:
    """Tell it on standard output, as JSON."""
    sys.stdout.write(json.dumps(list_packages(sys.path[1:])))  # the first is where we come from
