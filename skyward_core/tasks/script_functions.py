"""Functions of a script and their parameters, and arguments parsed for them.

All of this is read from the script's syntax tree, without running it. ``tasks.script_loader_parent`` executes the
scripts.
"""

from __future__ import annotations

import ast
import difflib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from skyward_core.model.errors import ScriptError, UsageError, set_error_field
from skyward_core.store.default_and_forbidden_working_folders import unusable_reason
from skyward_core.tasks import parameter_types_from_source as parameter_types
from skyward_core.tasks.argument_parsing_and_sweeps import RawArgument, convert, convert_argument
from skyward_core.util import safe_file_access
from skyward_core.util.content_hash import hash_bytes

PACKAGES = ("skyward_core", "skyward")
MAX_PATH_LENGTH = 200  # maximum characters of a path in error messages; longer paths are shortened
# Maximum bytes of a script, because its syntax tree takes a hundred times this size in memory.
MAX_SCRIPT_BYTES = 4 << 20
# Names of the decorator that marks a script's functions; "compute" is the older one.
DECORATOR_NAMES = ("function", "compute")
APP_NAMES = ("app",)

ParamKind = Literal["positional", "keyword", "var_positional", "var_keyword"]


@dataclass(frozen=True, slots=True)
class Param:
    """Parameter of a function; ``annotation`` and ``default`` are source text."""

    name: str
    annotation: str | None
    default: str | None
    required: bool
    kind: ParamKind

    def __str__(self) -> str:
        star = {"var_positional": "*", "var_keyword": "**"}.get(self.kind, "")
        text = f"{star}{self.name}" + (f": {self.annotation}" if self.annotation else "")
        if self.default is None:
            return text
        return f"{text} = {self.default}" if self.annotation else f"{text}={self.default}"


@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """Decorated function of a script.

    Attributes:
        line: Line number, from 1.
        timeout: Source text of the decorator's ``timeout``.
        types: The script's own classes, from :func:`~skyward_core.tasks.parameter_types_from_source.script_types`.
    """

    name: str
    params: tuple[Param, ...]
    doc: str
    line: int
    is_generator: bool
    timeout: str | None
    types: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.params))})"


def split_target(text: str) -> tuple[Path, str | None]:
    """Split ``"train.py:main"`` into script and function. If a file with the whole name exists, there is no
    function.
    """
    head, colon, tail = text.rpartition(":")
    return (
        (Path(text), None)
        if not colon or not tail.isidentifier() or safe_file_access.exists(text)
        else (Path(head), tail)
    )


def list_functions(path: Path) -> list[FunctionInfo]:
    """Return the functions of a script that have this library's decorator, in source order, without executing the
    script.

    Raises:
        ScriptError: If the script does not exist, is a folder, does not parse or has no such function.
    """
    tree = parse_script(path)
    modules, names = _find_bindings(tree)
    found: dict[str, FunctionInfo] = {}
    statements = list(_top_level_statements(tree.body))
    types = parameter_types.script_types([each for each in statements if isinstance(each, ast.ClassDef)])
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in statement.decorator_list:
                if _is_own_decorator(decorator, modules, names):
                    found.pop(statement.name, None)  # a later definition of the same name replaces the function
                    found[statement.name] = _describe_function(statement, decorator, types)
    if not found:
        raise ScriptError(
            f"{path} has no function decorated with @sky.function. "
            "Add import skyward_core as sky, and @sky.function above the function to run"
        )
    return list(found.values())


def list_commands(path: Path) -> list[FunctionInfo]:
    """Return the functions of a script that ``sky.app`` turns into commands, in source order. Do not run the script.

    Raises:
        ScriptError: If the script does not exist, is a folder or does not parse.
    """
    tree = parse_script(path)
    modules, names = _find_bindings(tree, APP_NAMES)
    statements = list(_top_level_statements(tree.body))
    made = {
        target.id
        for each in statements
        if isinstance(each, ast.Assign) and _is_own_decorator(each.value, modules, names, APP_NAMES)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    found = {}
    for each in statements:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in each.decorator_list:
                if _is_own_decorator(decorator, modules, names, APP_NAMES) or (
                    isinstance(decorator, ast.Name) and decorator.id in made
                ):
                    found[each.name] = _describe_function(each, decorator, {})
    return list(found.values())


def has_functions(path: Path) -> bool:
    """Check whether a script has functions with this library's decorator.

    Raises:
        ScriptError: If the script does not exist, is a folder or does not parse.
    """
    parse_script(path)
    try:
        return bool(list_functions(path))
    except ScriptError:
        return False


def describe_script(path: Path, module: str) -> FunctionInfo:
    """Return a description of a whole script or module, in the form of the description of a function.

    Raises:
        ScriptError: If the script does not exist, is a folder or does not parse.
    """
    parse_script(path)
    return FunctionInfo(module or path.name, (), "", 1, False, None)


def find_function(path: Path, name: str | None) -> FunctionInfo:
    """Return the function of a script with the given name; without a name, the script's only function.

    Raises:
        ScriptError: In the same cases as in :func:`list_functions`, or if the function does not exist, or if ``name``
            is None and there are several functions.
    """
    functions = list_functions(path)
    if name is None:
        if len(functions) == 1:
            return functions[0]
        listing = "".join(f"\n  {function}" for function in functions)
        raise ScriptError(f"{path} has {len(functions)} functions. Name one, as in {path}:{functions[0].name}{listing}")
    for function in functions:
        if function.name == name:
            return function
    raise ScriptError(f"{path} has no function {name!r}" + _suggest_name(name, [f.name for f in functions]))


def parse_arguments(info: FunctionInfo, pairs: Sequence[str], *, list_hint: str = "") -> dict[str, Any]:
    """Parse ``name=value`` texts to the types of a function's signature.

    The annotation decides, otherwise the type of the default. Without either, a Python literal is evaluated, and any
    other text is kept. Arguments with unknown names go to ``**kwargs`` if the function has it.

    Args:
        list_hint: Appended to the error for a value that is a list of valid values.

    Returns:
        Values by name; ``*args`` as a list under its own name. If a value has a class that the script defines, only the
            loaded script can create it. Such a value is checked as far as possible and stays an
            ``argument_parsing_and_sweeps.RawArgument``.

    Raises:
        UsageError: If a value does not match its type, or if an argument is missing, unknown or repeated. The error's
            ``field`` is ``arguments.NAME``.
    """
    params = {param.name: param for param in info.params if param.kind != "var_keyword"}
    rest = next((param for param in info.params if param.kind == "var_keyword"), None)
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"invalid argument {pair!r}. Write name=value")
        with set_error_field(f"arguments.{name}"):
            if name in values:
                raise UsageError(f"argument {name} of {info.name} is repeated")
            param = params.get(name, rest)
            if param is None:
                raise UsageError(f"{info.name} has no argument {name!r}" + _suggest_name(name, list(params)))
            values[name] = _parse_value(info, param, name, text, list_hint)
    missing = [param.name for param in params.values() if param.required and param.name not in values]
    if missing:
        with set_error_field(f"arguments.{missing[0]}"):
            raise UsageError(f"{info.name} needs {', '.join(missing)}. Its signature is {info}")
    return values


def _parse_value(info: FunctionInfo, param: Param, name: str, text: str, list_hint: str) -> Any:
    if param.default == "None" and text in ("None", "null"):
        return None
    kind = parameter_types.source_type(param.annotation, param.default, info.types)
    if param.kind == "var_positional":
        kind = parameter_types.list_type(kind)
    try:
        value = convert_argument(name, text, kind, info.name) if parameter_types.is_checkable(kind) else None
    except ValueError as error:
        hint = list_hint if list_hint and _is_list_of(text, kind) else ""
        raise UsageError(f"{error}{hint}") from error
    return value if parameter_types.is_convertible(kind) else RawArgument(text)


def _is_list_of(text: str, kind: Any) -> bool:
    """Check whether each part of a text between commas is a valid value of a type."""
    try:
        for part in text.split(","):
            convert(part, kind)
    except ValueError:
        return False
    return True


def parse_script(path: Path) -> ast.Module:
    name = str(path) if len(str(path)) <= MAX_PATH_LENGTH else f"{str(path)[: MAX_PATH_LENGTH // 2]}…"
    try:
        source = safe_file_access.read_bytes(path, MAX_SCRIPT_BYTES)
    except FileNotFoundError:
        raise ScriptError(f"script {name} does not exist{_suggest_script(path)}") from None
    except IsADirectoryError:
        raise ScriptError(f"{name} is a folder. Name a script in it") from None
    except OSError as error:
        raise ScriptError(f"{name} cannot be read: {error.strerror or error}") from error
    if b"\0" in source:
        raise ScriptError(f"{path} is not a Python script. Use python -m skyward_core for archives")
    try:
        with warnings.catch_warnings():
            # No warnings here, because the script loader shows them when it compiles the script.
            warnings.simplefilter("ignore")
            tree = parameter_types.parse_source(source, str(path))
            compile(
                tree, str(path), "exec", dont_inherit=True
            )  # finds errors that the parser accepts, such as a return outside of a function
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""
        shown = f"\n  {error.text.strip()}" if error.text else ""
        if path.suffix in (".yaml", ".yml"):
            raise ScriptError(f"{path} is not a Python script. Launch a job file with `launch {path}`") from error
        raise ScriptError(f"{path}{where} does not parse: {error.msg}{shown}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ScriptError(f"{path} does not parse: {error or type(error).__name__}") from error
    return tree


def _suggest_script(path: Path) -> str:
    if not safe_file_access.is_dir(path.parent):
        return ""
    try:
        others = [other.stem for other in safe_file_access.list_entries(path.parent) if other.suffix == ".py"]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.stem, others, n=1)
    return f". Did you mean '{close[0]}.py'?" if close else ""


def _suggest_name(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f". Did you mean {close[0]!r}?"
    return f". It has {', '.join(known)}" if known else ""


def _top_level_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run on import, including those inside ``if`` and ``try``."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            if ast.unparse(statement.test) not in ("__name__ == '__main__'", "'__main__' == __name__"):
                yield from _top_level_statements(statement.body)
            yield from _top_level_statements(statement.orelse)
        elif isinstance(statement, ast.Try | ast.TryStar):
            for block in (statement.body, *(h.body for h in statement.handlers), statement.orelse):
                yield from _top_level_statements(block)
            yield from _top_level_statements(statement.finalbody)


def _find_bindings(tree: ast.Module, decorators: Sequence[str] = DECORATOR_NAMES) -> tuple[set[str], set[str]]:
    """Return two sets of names in a script: names of this library's package, and names of its decorators."""
    modules: set[str] = set()
    names: set[str] = set()
    for statement in _top_level_statements(tree.body):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                root = alias.name.partition(".")[0]
                if root in PACKAGES:
                    modules.add(alias.asname or root)
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0:
            if (statement.module or "").partition(".")[0] not in PACKAGES:
                continue
            for alias in statement.names:
                if alias.name in decorators:
                    names.add(alias.asname or alias.name)
                elif alias.name == "*":
                    names.update(decorators)
                elif alias.name == "compat":
                    modules.add(alias.asname or alias.name)
    return modules, names


def _is_own_decorator(
    decorator: ast.expr, modules: set[str], names: set[str], decorators: Sequence[str] = DECORATOR_NAMES
) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    match target:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return module in modules and name in decorators
    return False


def _describe_function(
    function: ast.FunctionDef | ast.AsyncFunctionDef, decorator: ast.expr, types: Mapping[str, Any]
) -> FunctionInfo:
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    return FunctionInfo(
        name=function.name,
        params=tuple(_parse_parameters(function.args)),
        doc=ast.get_docstring(function) or "",
        line=function.lineno,
        is_generator=_is_generator(function),
        timeout=next((ast.unparse(k.value) for k in keywords if k.arg == "timeout"), None),
        types=types,
    )


def _parse_parameters(args: ast.arguments) -> Iterator[Param]:
    def param(arg: ast.arg, default: ast.expr | None, kind: ParamKind, required: bool) -> Param:
        annotation = None if arg.annotation is None else ast.unparse(arg.annotation)
        return Param(arg.arg, annotation, None if default is None else ast.unparse(default), required, kind)

    positional = [*args.posonlyargs, *args.args]
    padding: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    for arg, default in zip(positional, [*padding, *args.defaults], strict=True):
        yield param(arg, default, "positional", default is None)
    if args.vararg:
        yield param(args.vararg, None, "var_positional", False)
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield param(arg, default, "keyword", default is None)
    if args.kwarg:
        yield param(args.kwarg, None, "var_keyword", False)


def _is_generator(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Check whether the body of a function itself contains ``yield``. Nested functions do not count."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))
    return False


def check_script_folder(script: Path) -> None:
    """Reject a script that imports modules from its folder if that folder must not be sent, such as the user's home.

    Raises:
        UsageError: If that is the case. The message names the modules.
    """
    folder = safe_file_access.resolve_path(script).parent
    if not (reason := unusable_reason(folder)):
        return
    if modules := sorted(set(local_imports(script, folder))):
        raise UsageError(
            f"{script} imports {', '.join(modules)} from its folder, which cannot be sent to other machines "
            f"({reason}). Move the script and its modules into a separate folder"
        )


def local_imports(script: Path, folder: Path) -> Iterator[str]:
    """Yield the names of the modules and packages of a folder that a Python file imports by absolute imports."""
    try:
        tree = parameter_types.parse_source(safe_file_access.read_bytes(script))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return  # the script loader reports a script that cannot be read or parsed
    for node in ast.walk(tree):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in (each.partition(".")[0] for each in names):
            if safe_file_access.is_file(folder / f"{name}.py") or safe_file_access.is_file(
                folder / name / "__init__.py"
            ):
                yield name


MAX_WATCHED_FILES = 500  # maximum number of files of a script that are checked for edits
SETTLE_SECONDS = 0.3  # seconds without a change after which a saved file counts as complete


class ScriptWatch:
    """Detection of edits of a script, and of the modules and packages in its folder that it imports.

    Files are read only after their ``stat`` has changed. A deleted file does not count as edited, because some editors
    delete a file before they save it.

    Args:
        script: Path of the script.
        module: Name of the module if the script runs as with ``python -m``; its imports then start in the current
            folder.
    """

    def __init__(self, script: Path, module: str = "") -> None:
        folder = safe_file_access.current_folder() if module else safe_file_access.resolve_path(script).parent
        files, known = [script], {""}
        for file in files:  # the loop also visits the files that it appends
            for name in {*local_imports(file, folder), module.partition(".")[0]} - known:
                known.add(name)
                path = folder / f"{name}.py"
                found = [path] if path.exists() else safe_file_access.find_matching(folder / name, "**/*.py")
                files += found[: MAX_WATCHED_FILES - len(files)]
        # Read the stat before the content, so that an edit in between changes the stat again.
        self._stats = {file: _stat_key(file) for file in files}
        self._contents = {file: _hash_file(file) for file in files}
        self._touched_at: float | None = None  # monotonic time of the last change of a stat; None after the check
        self._edited = ""

    def edited_file(self) -> str:
        """Return the name of an edited file once it is completely saved; "" without one."""
        stats = {file: _stat_key(file) for file in self._contents}
        if stats != self._stats:
            self._stats, self._touched_at = stats, monotonic()
        elif self._touched_at is not None and monotonic() - self._touched_at >= SETTLE_SECONDS:
            self._touched_at = None
            for file, before in self._contents.items():
                if _hash_file(file) not in ("", before) and _stat_key(file) == stats[file]:
                    self._edited = file.name
        return self._edited


def _stat_key(file: Path) -> tuple[int, ...]:
    """Return the values of a file's ``stat`` that every change of its content changes; empty without a file."""
    with suppress(OSError):
        found = file.stat()
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
    return ()


def _hash_file(file: Path) -> str:
    """Return the hash of a file's content; "" if the file cannot be read."""
    with suppress(OSError):
        return hash_bytes(safe_file_access.read_bytes(file))
    return ""
