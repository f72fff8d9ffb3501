"""Installed packages of an interpreter and their versions.

Hosts and clients run this module in the interpreter whose packages they list. It imports none of the packages.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from skyward_core.node.bootstrap.package_index_restrictions import normalize_name


def list_packages(path: Iterable[str]) -> dict[str, str]:
    """Return the version of each package on an import path; "" for packages installed from a folder or an address.

    Reads only the names of metadata folders, because reading the metadata of all packages takes long.
    """
    found = {}
    for entry in reversed(list(dict.fromkeys(path))):
        try:
            with os.scandir(entry or ".") as inside:
                names = [each.name for each in inside]
        except OSError:  # an archive, or missing
            continue
        for name in names:
            if name.endswith(".dist-info") and name.count("-") == 2:
                package, version = name[:-10].split("-")
                found[normalize_name(package)] = "" if Path(entry, name, "direct_url.json").exists() else version
    return found


def main() -> None:
    """Print the packages as JSON."""
    sys.stdout.write(json.dumps(list_packages(sys.path[1:])))  # the first entry is the folder or bundle of this module
