"""Rules for imports, dependencies and unused code of the whole tree."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import skyward_core
from skyward_core.transport.bundle_builder import CLIENT_FILES, bundle
from tests.support.sources import nodes_of, text_of

ROOT = Path(skyward_core.__file__).parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("skyward_core", "skyward_tui")
    for path in (ROOT / package).rglob("*.py")
}


@cache
def imported(name: str) -> set[str]:
    """Return the modules of the project that a module imports anywhere in it."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    modules: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name in MODULES}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                module = f"{base}.{alias.name}"
                modules.add(module if module in MODULES else base)
    return modules


def test_parts_of_the_pool_do_not_import_the_pool_module() -> None:
    for name in MODULES:
        if name.startswith("skyward_core.pool.") and name != "skyward_core.pool.pool":
            assert "skyward_core.pool.pool" not in imported(name), name


MAY_IMPORT_A_TEST = re.compile(r"\b(?:from|import)\b(?:[^\n(]|\\\n)*(?:\([^)]*)?\btest_")


def test_no_test_module_imports_another() -> None:
    """Code shared by two test modules belongs in ``tests/support/``."""
    assert MAY_IMPORT_A_TEST.search("from tests.unit \\\n import \\\n test_a")
    imports = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "tests").rglob("*.py")
        if MAY_IMPORT_A_TEST.search(text := path.read_text())  # to parse all of them takes a second
        for node in ast.walk(ast.parse(text))
        for name in (
            [node.module or "", *(alias.name for alias in node.names)]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
        if name.rpartition(".")[2].startswith("test_") and not name.endswith(path.stem)
    ]
    assert imports == []


UNTYPED_HEADERS = {"Header", "AnyHeader"}


def test_keys_of_untyped_header_parameters_are_not_used() -> None:
    """Handlers outside ``protocol/`` take frames of a declared type, so that type checkers know their keys."""
    found = [
        f"{module}:{node.lineno}"
        for module, path in MODULES.items()
        if not module.startswith("skyward_core.protocol.")
        for scope in nodes_of(path)
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef)
        for argument in (*scope.args.args, *scope.args.kwonlyargs)
        if isinstance(argument.annotation, ast.Name) and argument.annotation.id in UNTYPED_HEADERS
        for node in ast.walk(scope)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
        if isinstance(node.value, ast.Name) and node.value.id == argument.arg
    ]
    assert found == []


def test_test_extra_equals_the_dependency_groups() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    parts = [*groups["dev"], *groups["frameworks"], *groups["bench"]]
    assert sorted(project["project"]["optional-dependencies"]["test"]) == sorted(parts)
    assert not any(name.startswith(("torch", "jax", "keras", "transformers")) for name in groups["dev"])


def test_provider_capabilities_are_not_guessed_by_attribute() -> None:
    """Check for a capability (``model/provider_capability_protocols.py``), not for an attribute name."""
    guessed = [
        f"{name}:{node.lineno}"
        for name, path in MODULES.items()
        if not name.startswith("skyward_core.providers")
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in ("getattr", "hasattr") and "provider" in ast.unparse(node.args[0])
    ]
    assert guessed == []


CALLED_BY_TEXTUAL = {"_get_renders", "get_suggestion"}  # overrides
CALLED_BY_OTHER_CODE = {"create_module", *CALLED_BY_TEXTUAL}  # of loaders


def test_no_library_function_is_used_only_by_tests() -> None:
    """A test of a function that only tests call proves nothing about the program."""
    words = Counter(word for path in MODULES.values() for word in re.findall(r"\w+", text_of(path)))
    documented = set(re.findall(r"\w+", "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))))
    tested = {word for path in (ROOT / "tests").rglob("*.py") for word in re.findall(r"\w+", path.read_text())}
    alone = {
        f"{module}:{node.name}"
        for module, path in MODULES.items()
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if words[node.name] == 1
        and node.name in tested - documented - CALLED_BY_OTHER_CODE
        and not node.name.startswith(("__", "action_"))  # Textual calls actions by their names
        if not any(ast.unparse(each).startswith("command(") for each in node.decorator_list)  # found by its name
    }
    assert alone == set()


# What others call, by names of theirs: scripts, joblib, the programs that we show.
def test_bundled_modules_import_no_client_only_module() -> None:
    """The bundled folders contain a few modules that only the app and the command line use."""
    paths = {path for path, _ in bundle().files}
    there = [name for name, path in MODULES.items() if path.relative_to(ROOT).as_posix() in paths]
    stay = {name for name, path in MODULES.items() if path.relative_to(ROOT).as_posix() in CLIENT_FILES}
    assert len(stay) == len(CLIENT_FILES) and not stay & set(there)
    assert {name: imported(name) & stay for name in there if imported(name) & stay} == {}
