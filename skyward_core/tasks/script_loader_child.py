"""Child process that loads a user's script and pickles calls of one of its functions.

The script's top-level statements run one after another, in a module named after the script's file instead of
``__main__``. A pool that a statement opens is not started. After such a statement only definitions and imports run,
because all other statements would need the results of the pool.

The parent process names a folder for ``report.json`` and the files of the task. Standard input delivers the request:
its length as eight hexadecimal digits, then the pickled bytes, which may contain tokens. The parent then keeps the pipe
open, and this process exits when the pipe closes.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import json
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any, get_type_hints

from skyward_core.model.errors import NotPicklableError
from skyward_core.runtime import import_hooks_gc_pause_and_alias
from skyward_core.tasks.guarded_user_code import safe_repr

# Whether a script is being loaded, so that pools must not start.
loading = False

MIN_CLOUDPICKLE = 3  # oldest major version of cloudpickle that is supported in the environment of a project
_DEFINITIONS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
)


class PoolInScript(BaseException):
    """Raised instead of starting a pool while a script is loaded.

    The class does not derive from ``Exception``, so that exception handlers of the script do not catch it.
    """


class LoadError(Exception):
    """Error of a script that cannot be used. ``kind`` and ``trace`` are written to the report."""

    def __init__(self, kind: str, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace


def load_script(path: Path) -> ModuleType:
    """Execute a script as a module, without starting its pools, and return the module.

    Raises:
        LoadError: If a statement raised or called ``sys.exit``.
    """
    global loading
    # Compile under the script's path, because tracebacks read the source lines from this path.
    filename = str(path)
    tree = ast.parse(path.read_bytes(), filename)
    flags = _future_flags(tree)
    module = ModuleType(_module_name(path), ast.get_docstring(tree))
    module.__file__ = filename
    sys.modules[module.__name__] = module
    folder = str(path.resolve().parent)
    import_hooks_gc_pause_and_alias.unload_shadowed_modules([folder])
    sys.path.insert(0, folder)
    # Set sys.argv as Python does for a script that is started from the current folder.
    sys.argv = [filename.removeprefix(f"{Path.cwd()}{os.sep}")]
    sys.orig_argv[:] = [sys.executable, *sys.argv]
    only_definitions = False
    loading = True
    try:
        for statement in tree.body:
            if only_definitions and not isinstance(statement, _DEFINITIONS):
                continue
            code = compile(ast.Module([statement], []), filename, "exec", flags, dont_inherit=True)
            try:
                exec(code, module.__dict__)  # noqa: S102  this process exists to run the user's script
            except PoolInScript:
                only_definitions = True
            except SystemExit as error:
                where = f"{path} calls sys.exit({safe_repr(error.code)}) at line {_error_line(error, filename)}"
                advice = 'Put the call under if __name__ == "__main__":'
                raise LoadError("failed", f"{where} while loading. {advice}") from error
            except BaseException as error:
                where = f"{path} failed at line {_error_line(error, filename)}"
                message = f"{where}: {traceback.format_exception_only(error)[-1].strip()}{_error_advice(error)}"
                raise LoadError("failed", message, _format_traceback(error, filename)) from error
    finally:
        loading = False
    return module


def make_call(module: ModuleType, function: str, values: Mapping[str, Any]) -> Any:
    """Call the script's decorated function, which returns a pending call without running its body.

    Raises:
        LoadError: If the function does not exist, does not accept these values, or does not have our decorator.
    """
    from skyward_core.model.function import PendingFunction

    target = getattr(module, function, None)
    if target is None:
        raise LoadError("script", f"{module.__file__} does not define {function} when loaded")
    try:
        args, kwargs = _bind_arguments(target, _convert_values(target, function, values))
        inspect.signature(target).bind(*args, **kwargs)
        pending = target(*args, **kwargs)
    except TypeError as error:
        trace = _format_traceback(error, str(module.__file__))
        raise LoadError("script", f"{function} cannot be called with these arguments: {error}", trace) from error
    if not isinstance(pending, PendingFunction):
        raise LoadError(
            "script",
            f"{function} returned {type(pending).__name__}, not a pending call. "
            "Make @sky.function its topmost decorator",
        )
    return pending


def _convert_values(target: Any, function: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call. Convert texts whose types only the script defines.

    Raises:
        LoadError: If a text does not match its parameter's type.
    """
    from skyward_core.tasks.argument_parsing_and_sweeps import RawArgument, convert_argument

    if not any(isinstance(value, RawArgument) for value in values.values()):
        return dict(values)
    parameters = inspect.signature(target).parameters
    rest = next((p for p in parameters.values() if p.kind is p.VAR_KEYWORD), None)
    made = dict(values)
    for name, value in values.items():
        parameter = parameters.get(name, rest)
        if isinstance(value, RawArgument) and parameter is not None:
            try:
                made[name] = convert_argument(name, str(value), _parameter_type(target, parameter), function)
            except ValueError as error:
                raise LoadError("usage", str(error)) from error
    return made


def _parameter_type(target: Any, parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter from its annotation or default; ``Any`` if neither can be resolved."""
    from skyward_core.tasks.parameter_types_from_source import default_type, list_type

    empty = parameter.empty
    if parameter.annotation is empty:
        return default_type(None if parameter.default is empty else parameter.default)
    described = SimpleNamespace(__annotations__={"it": parameter.annotation})
    names = getattr(inspect.unwrap(target), "__globals__", {})
    try:
        kind = get_type_hints(described, names, include_extras=True)["it"]
    except Exception:  # noqa: BLE001  the annotation has a name that only type checkers can import
        return Any
    return list_type(kind) if parameter.kind is parameter.VAR_POSITIONAL else kind


def main(folder: str) -> None:
    """Serve the request in the folder: write the report and the task to the folder, and end this process."""
    request = _read_request()
    os.dup2(2, 1)  # send the script's output to standard error, because the parent's standard output must stay clean
    report: dict[str, str] = {"kind": "task"}
    try:
        _serve_request(request, Path(folder))
    except LoadError as error:
        report = {"kind": error.kind, "message": str(error), "traceback": error.trace}
    except NotPicklableError as error:
        report = {"kind": "pickle", "message": str(error)}
    with suppress(OSError):  # ignore a failed flush, because only output of the script is lost
        sys.stdout.flush()
    draft = Path(folder, "report.part")
    draft.write_text(json.dumps(report), encoding="utf-8")
    draft.rename(Path(folder, "report.json"))
    # Exit without waiting for the script's threads and exit handlers.
    os._exit(0)


def _serve_request(request: bytes, folder: Path) -> None:
    import cloudpickle

    if int(cloudpickle.__version__.partition(".")[0]) < MIN_CLOUDPICKLE:
        found = f"{sys.executable} has cloudpickle {cloudpickle.__version__}"
        raise LoadError("script", f"{found}, but version {MIN_CLOUDPICKLE} or later is required. Upgrade it there")

    from skyward_core.tasks import missing_packages
    from skyward_core.tasks.function_pickling import make_tasks
    from skyward_core.tasks.pickled_calls_and_blobs import write_tasks

    # The pickle is trusted, because only the parent process can have sent it.
    name, function, calls, plugins, missing_packages.from_metadata = pickle.loads(request)
    import_hooks_gc_pause_and_alias.install()
    import_hooks_gc_pause_and_alias.install_gc_pause()
    if function is None:
        from skyward_core.tasks.shell_and_script_calls import script

        (values,) = calls
        how = {"module": bool(values["module"]), "torchrun": bool(values.get("torchrun"))}
        pendings = [script(values["module"] or name, values["args"], **how)]
    else:
        module = load_script(Path(name))
        cloudpickle.register_pickle_by_value(module)
        pendings = [make_call(module, function, values) for values in calls]
    try:
        tasks = list(make_tasks(tuple(pendings), plugins, folder))
    except NotPicklableError:
        raise
    except TypeError as error:
        raise LoadError("script", str(error)) from error
    write_tasks(tasks, folder)


def _read_request() -> bytes:
    """Read the parent's request. From then on, this process ends when its parent ends."""
    watched = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)

    def read(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += os.read(watched, size - len(data)) or os._exit(1)
        return bytes(data)

    def watch() -> None:
        while os.read(watched, 1):
            pass
        os._exit(1)

    request = read(int(read(8), 16))
    try:
        threading.Thread(target=watch, daemon=True).start()
    except RuntimeError as error:  # no thread can be started, because the user's limit of processes is reached
        sys.exit(str(error))
    return request


def _module_name(path: Path) -> str:
    """Return the stem of a script's file name. Add a suffix if a loaded or standard module has that name."""
    name = path.stem
    return f"{name}_script" if name in sys.modules or name in sys.stdlib_module_names else name


def _error_advice(error: BaseException) -> str:
    from skyward_core.tasks import missing_packages

    if isinstance(error, ImportError) and "no known parent package" in str(error):
        return ". The script is part of a package: import by the package's name, or run it with -m PACKAGE.MODULE"
    if isinstance(error, ModuleNotFoundError):
        name = str(error.name or "").partition(".")[0]
        if name and missing_packages.is_missing(name):
            return f". {missing_packages.install_advice(name)}"
    return ""


def _future_flags(tree: ast.Module) -> int:
    """Return the flags of ``from __future__`` imports. Statements are compiled separately, and all need these flags."""
    flags = 0
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            for name in statement.names:
                flags |= getattr(__future__, name.name).compiler_flag
    return flags


def _bind_arguments(target: Any, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Split values by name into positional and keyword arguments of a call."""
    kwargs = dict(values)
    args: list[Any] = []
    parameters = inspect.signature(target).parameters.values()
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    by_position = kwargs.get(rest) if rest else None
    for parameter in parameters:
        name = parameter.name
        is_required = parameter.kind is parameter.POSITIONAL_ONLY or (
            parameter.kind is parameter.POSITIONAL_OR_KEYWORD and by_position
        )
        if is_required and name in kwargs:
            args.append(kwargs.pop(name))
        elif is_required and by_position:
            args.append(parameter.default)
        elif name == rest:
            args.extend(kwargs.pop(name, ()))
    return args, kwargs


def _script_traceback(error: BaseException, filename: str) -> TracebackType | None:
    """Return the traceback from the script's first frame on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != filename:
        trace = trace.tb_next
    return trace


def _error_line(error: BaseException, filename: str) -> int | str:
    trace = _script_traceback(error, filename)
    return trace.tb_lineno if trace else "?"


def _format_traceback(error: BaseException, filename: str) -> str:
    return "".join(traceback.format_exception(type(error), error, _script_traceback(error, filename)))
