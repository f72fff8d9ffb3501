"""The child process that loads a person's script and pickles calls of one of its functions.

The script's top-level statements run one after another in a module named after its file, not as ``__main__``.
Where one of them opens a pool, that pool is not started; from there on only definitions and imports run, as
what follows would need the pool's results.

The parent names a folder, and finds there ``report.json`` and the task's files. The pickled request, which may hold
tokens, comes by our standard input: its length in eight hexadecimal digits, then itself. After that the parent only
holds that pipe open: at its end we end too.
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
from skyward_core.runtime import import_hooks
from skyward_core.tasks.guarded_user_code import safe_repr

loading = False
"""Whether a script is being loaded: pools it opens must not start."""

MIN_CLOUDPICKLE = 3  # the oldest version that a project may have of its own
_DEFINITIONS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
)


class PoolInScript(BaseException):
    """Raised in place of starting a pool while a script is loaded.

    No ``Exception``, so that no handler of the script takes it for a failure.
    """


class LoadError(Exception):
    """The script cannot be used; ``kind`` and ``traceback`` as in the report."""

    def __init__(self, kind: str, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace


def load_script(path: Path) -> ModuleType:
    """Execute a script as a module, without its pools, and return the module.

    Raises:
        LoadError: a statement raised or called ``sys.exit``.
    """
    global loading
    # linecache needs the source by this very name to show it in tracebacks.
    filename = str(path)
    tree = ast.parse(path.read_bytes(), filename)
    flags = _future_flags(tree)
    module = ModuleType(_module_name(path), ast.get_docstring(tree))
    module.__file__ = filename
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(path.resolve().parent))
    # As if Python had been started with the script, from the same folder.
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
                exec(code, module.__dict__)  # noqa: S102  the person's own script is what we are for
            except PoolInScript:
                only_definitions = True
            except SystemExit as error:
                where = f"{path} calls sys.exit({safe_repr(error.code)}) at line {_error_line(error, filename)}"
                advice = 'put that under if __name__ == "__main__":'
                raise LoadError("failed", f"{where} when it is loaded; {advice}") from error
            except BaseException as error:
                where = f"{path} failed at line {_error_line(error, filename)}"
                message = f"{where}: {_error_summary(error)}{_error_advice(error)}"
                raise LoadError("failed", message, _format_traceback(error, filename)) from error
    finally:
        loading = False
    return module


def make_call(module: ModuleType, function: str, values: Mapping[str, Any]) -> Any:
    """Call the script's decorated function, which gives a pending call and runs nothing of it.

    Raises:
        LoadError: there is no such function, it does not take these values, or it is not one of ours.
    """
    from skyward_core.model.function import PendingFunction

    target = getattr(module, function, None)
    if target is None:
        raise LoadError("script", f"{module.__file__} defines no {function} when it is loaded")
    try:
        args, kwargs = _bind_arguments(target, _convert_values(target, function, values))
        inspect.signature(target).bind(*args, **kwargs)
        pending = target(*args, **kwargs)
    except TypeError as error:
        trace = _format_traceback(error, str(module.__file__))
        raise LoadError("script", f"{function} cannot be called so: {error}", trace) from error
    if not isinstance(pending, PendingFunction):
        raise LoadError(
            "script",
            f"{function} gives {type(pending).__name__} and no pending call; "
            "make @sky.function the topmost of its decorators",
        )
    return pending


def _convert_values(target: Any, function: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those made that only the script's own types can make.

    Raises:
        LoadError: a text is no value of its parameter's type.
    """
    from skyward_core.tasks.argument_parsing import RawArgument, convert_argument

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
    """The type of a parameter, by its annotation or its default; ``Any`` where neither can be made sense of."""
    from skyward_core.tasks.source_annotations import default_type, list_type

    empty = parameter.empty
    if parameter.annotation is empty:
        return default_type(None if parameter.default is empty else parameter.default)
    described = SimpleNamespace(__annotations__={"it": parameter.annotation})
    names = getattr(inspect.unwrap(target), "__globals__", {})
    try:
        kind = get_type_hints(described, names, include_extras=True)["it"]
    except Exception:  # noqa: BLE001  a name that is there for type checkers only: the text is taken as it is
        return Any
    return list_type(kind) if parameter.kind is parameter.VAR_POSITIONAL else kind


def main(folder: str) -> None:
    """Serve the request in the folder, leave the report and the task there, and end this process."""
    request = _read_request()
    os.dup2(2, 1)  # what the script prints must not mix with what our caller prints
    report: dict[str, str] = {"kind": "task"}
    try:
        _serve_request(request, Path(folder))
    except LoadError as error:
        report = {"kind": error.kind, "message": str(error), "traceback": error.trace}
    except NotPicklableError as error:
        report = {"kind": "pickle", "message": str(error)}
    with suppress(OSError):  # what the script printed is lost, and the task is not
        sys.stdout.flush()
    draft = Path(folder, "report.part")
    draft.write_text(json.dumps(report), encoding="utf-8")
    draft.rename(Path(folder, "report.json"))
    # Threads and exit handlers of the script are none of the task's business and could hold us up.
    os._exit(0)


def _serve_request(request: bytes, folder: Path) -> None:
    import cloudpickle

    if int(cloudpickle.__version__.partition(".")[0]) < MIN_CLOUDPICKLE:
        here = f"{sys.executable} has cloudpickle {cloudpickle.__version__}"
        raise LoadError("script", f"{here}, and {MIN_CLOUDPICKLE} or later is needed: install it there anew")

    from skyward_core.tasks import missing_packages
    from skyward_core.tasks.function_pickling import make_tasks
    from skyward_core.tasks.task_and_blob_values import write_tasks

    name, function, calls, plugins, missing_packages.from_metadata = pickle.loads(request)  # of our parent
    import_hooks.install()
    import_hooks.install_gc_pause()
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
    """What the parent asks for; from here on this process ends with it."""
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
    threading.Thread(target=watch, daemon=True).start()
    return request


def _module_name(path: Path) -> str:
    """The file's stem, unless a module of that name is in use here or belongs to Python."""
    name = path.stem
    taken = name in sys.modules or name in sys.stdlib_module_names
    return f"{name}_script" if taken else name


def _error_advice(error: BaseException) -> str:
    from skyward_core.tasks import missing_packages

    if isinstance(error, ImportError) and "no known parent package" in str(error):
        return "; it is part of a package: have it import by the package's name, or run it whole, -m PACKAGE.MODULE"
    if isinstance(error, ModuleNotFoundError):
        name = str(error.name or "").partition(".")[0]
        if name and missing_packages.is_missing(name):
            return f"; {missing_packages.install_advice(name)}"
    return ""


def _future_flags(tree: ast.Module) -> int:
    """Statements are compiled one by one; ``from __future__`` must hold for all of them."""
    flags = 0
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            for name in statement.names:
                flags |= getattr(__future__, name.name).compiler_flag
    return flags


def _bind_arguments(target: Any, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Values by name as a call: those of positional-only parameters and of ``*args`` go by position."""
    kwargs = dict(values)
    args: list[Any] = []
    parameters = inspect.signature(target).parameters.values()
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    by_position = kwargs.get(rest) if rest else None
    for parameter in parameters:
        name = parameter.name
        wanted = parameter.kind is parameter.POSITIONAL_ONLY or (
            parameter.kind is parameter.POSITIONAL_OR_KEYWORD and by_position
        )
        if wanted and name in kwargs:
            args.append(kwargs.pop(name))
        elif wanted and by_position:
            args.append(parameter.default)
        elif name == rest:
            args.extend(kwargs.pop(name, ()))
    return args, kwargs


def _script_traceback(error: BaseException, filename: str) -> TracebackType | None:
    """The traceback from the script's first frame on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != filename:
        trace = trace.tb_next
    return trace


def _error_line(error: BaseException, filename: str) -> int | str:
    trace = _script_traceback(error, filename)
    return trace.tb_lineno if trace else "?"


def _format_traceback(error: BaseException, filename: str) -> str:
    return "".join(traceback.format_exception(type(error), error, _script_traceback(error, filename)))


def _error_summary(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()
