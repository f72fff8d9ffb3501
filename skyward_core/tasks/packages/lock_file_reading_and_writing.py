"""Reading of ``uv.lock`` and ``pylock.toml``, and writing of lock files with the packages installed for a pool."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import convert_errors
from skyward_core.node.bootstrap.package_index_restrictions import (
    PINNED,
    map_packages_to_indexes,
    normalize_name,
    package_name,
)
from skyward_core.tasks.bounded_subprocess import QueryTimeout, run_bounded
from skyward_core.tasks.packages.package_specs_and_local_packages import (
    PackagesError,
    PackageSpecs,
    check_python,
    direct_address,
    format_requirement,
    group_by_index,
    package_names,
    read_toml,
)
from skyward_core.util.redaction import strip_credentials
from skyward_core.util.safe_file_access import PROJECT_FILE, is_dir, is_file, parse_toml, read_text, resolve_path

if TYPE_CHECKING:
    from packaging.pylock import Package

    from skyward_core.model.specs import Interpreter


def read_uv_lock(path: Path, version: str) -> PackageSpecs:
    """Return the packages that a ``uv.lock`` installs for the project in the same folder, as uv exports them.

    Args:
        version: Version of the Python that installs the packages.

    Raises:
        PackagesError: If uv is not installed or rejects the lock, and in the cases of :func:`read_pylock`.
    """
    with convert_errors(f"uv cannot read {path}", PackagesError, (OSError, QueryTimeout)):
        stamps = [each.stat() for each in (path, path.with_name(PROJECT_FILE)) if is_file(each)]
        text = _export_uv_lock(path, tuple(number for each in stamps for number in (each.st_mtime_ns, each.st_size)))
    return read_pylock(path, parse_toml(text), version)


@lru_cache(maxsize=4)  # cached, because the launch form reads the lock after each key press
def _export_uv_lock(path: Path, unchanged: tuple[int, ...]) -> str:
    # Prefer a uv in this program's own environment, because it is recent enough to read the format of the lock.
    folders = [str(Path(sys.executable).parent), *filter(os.path.isabs, os.get_exec_path())]
    uv = shutil.which("uv", path=os.pathsep.join(folders))
    if uv is None:
        raise PackagesError(f"{path} cannot be read: uv is not installed. Install it: pip install uv")
    if path.name == "uv.lock":
        project = path.with_name(PROJECT_FILE)
        has_own = not is_file(project) or "project" in read_toml(project)
        # A workspace may have no root project. In this case, export the packages of all its members.
        what = [] if has_own else ["--all-packages"]
    else:
        what = ["--script", path.name.removesuffix(".lock")]
    command = [
        uv, "export", "--format", "pylock.toml", "--frozen", "--offline", "--no-config", "--no-header",
        "--no-default-groups", "--directory", str(path.parent), *what,
    ]  # fmt: skip
    done = run_bounded(command, unchanged)
    if done.returncode:
        message = " ".join(done.stderr.decode(errors="replace").removeprefix("error: ").split())
        raise PackagesError(f"uv rejected {path}: {message:.500}")
    return done.stdout.decode()


def read_pylock(path: Path, table: dict[str, Any], version: str) -> PackageSpecs:
    """Return the packages that a ``pylock.toml`` installs.

    Args:
        path: Path of the lock.
        table: Content of the lock.
        version: Version of the Python that installs the packages.

    Raises:
        PackagesError: If the lock is invalid, is for another Python, or needs local files of this machine.
    """
    # Imported late, because the import takes 80 ms and few projects have a lock.
    from packaging.pylock import Pylock, PylockValidationError

    with convert_errors(f"{path} is not a lock of version 1", PackagesError, PylockValidationError):
        lock = Pylock.from_dict(table)
    check_python(path, lock.requires_python, version)
    lines, folders = [], []
    for package in lock.packages:
        if package.directory is None:
            lines.append(_format_line(path, package))
            continue
        folder = resolve_path(path.parent / package.directory.path)
        if not is_dir(folder):
            raise PackagesError(f"{path}: package {package.name}: {folder} is not a folder")
        folders.append(str(folder))
    return PackageSpecs(str(path), pinned=group_by_index(lines), folders=tuple(folders))


def _format_line(path: Path, package: Package) -> tuple[str, str]:
    """Return the URL of a package's index, and the line of the package in a requirements file."""
    marker = str(package.marker or "")
    if "extras" in marker or "dependency_groups" in marker:
        raise PackagesError(
            f"{path}: package {package.name} is for some extras or groups only ({marker}). "
            "Write a lock that contains only the packages of the run"
        )
    direct = package.vcs or package.archive
    files: list[Any] = [*(package.wheels or ()), *filter(None, [package.sdist, package.archive])]
    if local := next((file.path for file in filter(None, [package.vcs, *files]) if not file.url), None):
        raise PackagesError(f"{path}: package {package.name} comes from {local}, on this machine. Use an index")
    hashes = [f"{kind}:{text}" for file in files for kind, text in file.hashes.items()]
    if direct is None:
        if package.index and not package.index.startswith(("https://", "http://")):
            raise PackagesError(
                f"{path}: package {package.name} comes from {package.index}, on this machine. Use an index"
            )
        return package.index or "", format_requirement(f"{package.name}=={package.version}", marker, hashes)
    address = direct.url
    if package.vcs:
        if package.vcs.type != "git":
            raise PackagesError(f"{path}: package {package.name} comes from {package.vcs.type}; only git is supported")
        address = f"git+{address}@{package.vcs.commit_id}"
    folder = f"#subdirectory={direct.subdirectory}" if direct.subdirectory else ""
    return "", format_requirement(f"{package.name} @ {address}{folder}", marker, hashes)


_HEADING = re.compile(
    r"# (?:installed for pool \S+ with|nothing was installed for pool \S+: its ranks had) Python (\d+\.\d+)"
)


def lock_heading(pool: str, python: Interpreter, *, installed: bool) -> str:
    """Return the first line of a lock file, without its ``#``.

    Args:
        pool: Name of the pool.
        python: Python of the pool's ranks.
        installed: Whether any package was installed for the pool.
    """
    if installed:
        return f"installed for pool {pool} with Python {python.minor}; Image(lock=...) installs it again"
    return f"nothing was installed for pool {pool}: its ranks had {python}, with these packages"


def lock_python_version(path: Path) -> str:
    """Return the ``requires-python`` of a lock that this library saved; "" for any other file."""
    try:
        found = _HEADING.match(read_text(path, errors="replace")[:1000].partition("\n")[0])
    except OSError as error:
        raise PackagesError(f"{path} cannot be read: {error.strerror}") from None
    return f"=={found[1]}.*" if found else ""


def format_lock(image: Mapping[str, Any], installed: Mapping[str, str], heading: str) -> str:
    """Return the text of a lock file with the installed packages of an image.

    Args:
        image: Image as JSON.
        installed: Versions by package name, from ``installed_packages.list_packages``. A node reports them, so only
            names and versions are used. Addresses come from the image.
        heading: First line, from :func:`lock_heading`.
    """
    lines = [line for group in image.get(PINNED) or () for line in group["lines"]]
    exact = {name: line for line in lines for name in package_names([line])}
    asked = {name: line for line in image.get("pip") or () if direct_address(line) for name in package_names([line])}
    requirements = [_requirement_line(name, version, exact, asked) for name, version in sorted(installed.items())]
    text = "\n".join([f"# {heading}", *_index_lines(image), *requirements]) + "\n"
    return strip_credentials(text)


def _requirement_line(name: str, version: str, exact: Mapping[str, str], asked: Mapping[str, str]) -> str:
    """Return the line of an installed package for a lock file.

    It contains the hashes of the lock file that the image names, if any.
    """
    found = exact.get(name, "")
    plain, _, hashes = found.partition(" --hash=")
    behind = f" --hash={hashes}" if hashes else ""
    if direct_address(found) or (not version and name in asked):
        return (plain or asked[name]).partition(" ;")[0] + behind
    if not version:
        return f"# {name}: from a folder or an address, which is not saved"
    same = package_name(plain) == normalize_name(name) and plain.partition(";")[0].strip().endswith(f"=={version}")
    return f"{name}=={version}" + (behind if same else "")


def _index_lines(image: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines with index options for a lock file.

    Omit indexes that are restricted to some packages, which this format cannot express.
    """
    if image.get("index"):
        yield f"--index-url {image['index']}"
    general = [each["url"] for each in image.get("pip_indexes") or () if not each.get("packages")]
    of_lock = [each["index"] for each in image.get(PINNED) or () if each["index"]]
    yield from (f"--extra-index-url {url}" for url in dict.fromkeys([*general, *of_lock]))
    yield from (f"--find-links {link}" for link in image.get("find_links") or ())
    if image.get("no_index"):
        yield "--no-index"
    if restricted := sorted(map_packages_to_indexes(image.get("pip_indexes") or ())):
        yield f"# {', '.join(restricted)}: from a restricted index; pass Image(pip_indexes=...) again"
