"""A project's own ``pyproject.toml``: what it depends on, without versions that are chosen already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...node.boot.indexes import normal, package_of
from ...store.user_files import expanded, resolved
from ..inline_metadata import Wrong, read_tables
from .folder_packages import Extras, extras_of, with_dependencies
from .packages import Packages, PackagesError, is_package
from .toml_file import check_python, tables

# What [tool.uv] says beside what a run depends on: of uv itself, of development, of publishing.
_ELSEWHERE = (
    "build-backend", "cache-dir", "cache-keys", "check-url", "compile-bytecode", "concurrent-builds",
    "concurrent-downloads", "concurrent-installs", "conflicts", "default-groups", "dependency-groups",
    "dev-dependencies", "environments", "link-mode", "managed", "native-tls", "no-cache", "no-progress", "offline",
    "package", "pip", "preview", "publish-url", "python-downloads", "python-install-mirror", "python-preference",
    "pypy-install-mirror", "reinstall", "reinstall-package", "required-environments", "required-version",
    "trusted-publishing", "upgrade", "upgrade-package", "workspace",
)  # fmt: skip


def read(path: Path, version: str) -> Packages:
    """What the file says of the project's dependencies; groups and extras are none of them.

    Args:
        version: of the Python that they are for.

    Raises:
        PackagesError: it cannot be read, or asks for what is not done.
    """
    said = tables(path)
    project = said.get("project")
    if not isinstance(project, dict):
        raise PackagesError(
            f"{path} has no [project] table with dependencies: use a lock, or a requirements file"
        )
    if "dependencies" in (project.get("dynamic") or ()):
        raise PackagesError(
            f"{path}: its dependencies are dynamic, and only building the project would tell them: use a lock, or a "
            "requirements file"
        )
    uv = (said.get("tool") or {}).get("uv") or {}
    if not isinstance(uv, dict):
        raise PackagesError(f"{path}: [tool.uv] should be a table")
    uv = {name: given for name, given in uv.items() if name not in _ELSEWHERE}
    limits = uv.pop("constraint-dependencies", [])
    dependencies, folders = _without_local(project.get("dependencies", []), uv, path)
    asked = {"dependencies": dependencies, "tool": {"uv": uv}}
    if "requires-python" in project:
        asked["requires-python"] = project["requires-python"]
    try:
        found = read_tables(asked, path.parent)
    except Wrong as error:
        raise PackagesError(f"{path}: {error}") from None
    check_python(path, found.requires_python, version)
    places: Mapping[str, Any] = found.environment
    own = [str(path.parent)] if "build-system" in said else []
    local = with_dependencies(folders)
    return Packages(
        str(path),
        requirements=local.added_to(places["pip"]),
        constraints=tuple(map(str, limits)),
        indexes=tuple(places.get("pip_indexes", ())),
        index=places.get("index", ""),
        find_links=tuple(places.get("find_links", ())),
        no_index=places.get("no_index", False),
        folders=tuple(dict.fromkeys([*own, *local.folders])),
    )


def _without_local(dependencies: Any, uv: dict[str, Any], path: Path) -> tuple[Any, dict[str, Extras]]:
    """The dependencies but for those that ``[tool.uv.sources]`` has in a folder, and these folders."""
    sources = uv.get("sources")
    if not isinstance(sources, dict) or not isinstance(dependencies, list):
        return dependencies, {}  # whoever reads them says what they should be
    folders: dict[str, Extras] = {}
    local = set()
    extras = {package_of(each): extras_of(each) for each in dependencies if isinstance(each, str)}
    for name, source in sources.items():
        if not isinstance(source, dict) or not isinstance(source.get("path"), str):
            if isinstance(source, dict) and source.get("workspace"):
                raise PackagesError(
                    f"{path}: [tool.uv.sources] {name} is of a workspace, and only uv.lock says where: use that as the "
                    "lock"
                )
            continue
        folder = resolved(path.parent / expanded(source["path"]))
        if not is_package(folder):
            raise PackagesError(
                f"{path}: [tool.uv.sources] {name}: {folder} is no folder with a package in it"
            )
        local.add(normal(name))
        folders[str(folder)] = extras.get(normal(name), frozenset())
    uv["sources"] = {name: source for name, source in sources.items() if normal(name) not in local}
    texts = [each for each in dependencies if not (isinstance(each, str) and package_of(each) in local)]
    return texts, folders
