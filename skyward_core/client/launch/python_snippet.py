"""Python script equivalent to a launch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from keyword import iskeyword
from math import isfinite
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from skyward_core.client.launch.image_option_parsing import LISTS, parse_image_options
from skyward_core.client.launch.launch_option_declarations import LaunchRequest, options_of
from skyward_core.client.launch.launch_plan import LaunchPlan, make_plan
from skyward_core.model.errors import UsageError, set_error_field
from skyward_core.model.provider_settings_schema import parse_settings
from skyward_core.model.specs import Image, Nodes, Options, PoolSpec
from skyward_core.plugins import built_in
from skyward_core.providers import DEFAULT_PROVIDER, provider_class
from skyward_core.tasks.script_functions import parse_script
from skyward_core.util.safe_file_access import resolve_path

if TYPE_CHECKING:
    from skyward_core.plugins.plugin import Plugin
    from skyward_core.views.pool_view import PoolView

_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes)
_BRACKETS: Mapping[type, str] = {list: "[{}]", tuple: "({},)", set: "{{{}}}", frozenset: "frozenset([{}])"}
# Names that a snippet uses itself, so that variables must have other names.
_OURS = {"sky", "pool", "print", "value", "values"}
_TEARDOWN_COMMENT = "# The pool ends with the block; the launch would leave it up.\n"


def write_snippet(request: LaunchRequest, live: PoolView | None = None) -> str:
    """Return a Python script that is equivalent to a request, to be run in the current folder.

    Args:
        live: The existing pool that the launch uses.

    Raises:
        SkywardError: If a value is invalid, or has no Python form. The error's ``field`` names the field.
    """
    plan = make_plan(request)
    if request.sweep:
        with set_error_field("sweep"):
            operator = " >> pool"
            if request.gang:
                operator = " @ pool"
            elif request.gang_nodes is not None:
                operator = f".with_nodes({request.gang_nodes}) @ pool"
            raise UsageError(f"in Python, write a sweep as sky.sweep(FUNCTION, NAME=[...]){operator}")
    if live is not None:
        plan = plan.on_pool(live)
    source = _Source(parse_image_options(request.image_settings).secrets)
    if plan.function.is_generator:
        source.modules.add("itertools")
    with set_error_field("arguments"):
        arguments = "" if plan.whole else ", ".join(_arguments(plan, source))
    if plan.spec is None:
        pool, comment = f"sky.attach({plan.pool.name!r})", ""
    else:
        lines = "".join(f"    {each},\n" for each in _compute(plan, plan.spec, source))
        pool, comment = f"sky.Compute(\n{lines})", _TEARDOWN_COMMENT if plan.keep else ""
    with set_error_field("script"):
        imported, function = ("", "") if plan.whole else _function(plan, source)
    called = _script(plan, source) if plan.whole else f"{function}({arguments})"
    ran = f"{called} {'>>' if request.one else '@'} pool"
    script = f"{source.import_lines()}\n{imported}\n{comment}with {pool} as pool:\n{_result_lines(plan, ran)}"
    # The script cannot choose the Python that runs it, so a comment names the interpreter.
    return script if request.python is None else f"# To be run with {plan.interpreter.path}\n{script}"


class _Source:
    """Generator of Python expressions, which collects the modules that they need."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self.modules = set[str]()
        self.secrets = secrets  # names of secret variables, whose values the snippet reads from the environment

    def import_lines(self) -> str:
        lines = "".join(f"import {name}\n" for name in sorted(self.modules))
        return lines + ("\n" if lines else "") + "import skyward_core as sky\n"

    def expression(self, value: Any) -> str:
        """Return a Python expression that evaluates to a value.

        Raises:
            UsageError: If the value cannot be expressed.
        """
        kind = type(value)
        if kind in _BRACKETS and value:
            return _BRACKETS[kind].format(", ".join(map(self.expression, value)))
        if kind is dict:
            return f"{{{', '.join(f'{self.expression(key)}: {self.expression(each)}' for key, each in value.items())}}}"
        if kind is float and not isfinite(value):
            return f"float({str(value)!r})"
        if isinstance(value, PurePath):
            self.modules.add("pathlib")
            return f"pathlib.Path({str(value)!r})"
        if isinstance(value, date):
            self.modules.add("datetime")
        elif kind not in _PLAIN and kind not in _BRACKETS:  # the repr of an empty collection is a valid expression
            raise UsageError(f"{value!r:.80} has a type that only the script itself can create")
        return repr(value)

    def variables(self, env: Mapping[str, str]) -> str:
        """Return a dict expression of variables; the values of secrets are read from the environment."""
        pairs = [
            f"{name!r}: {self.shell_variable(name) if name in self.secrets else repr(value)}"
            for name, value in env.items()
        ]
        return f"{{{', '.join(pairs)}}}"

    def shell_variable(self, name: str) -> str:
        """Return an expression that reads an environment variable."""
        self.modules.add("os")
        return f"os.environ[{name!r}]"

    def call(self, made: type, values: Mapping[str, Any], written: Mapping[str, str] | None = None) -> str:
        """Return an expression that calls a class, by the class's public name if it belongs to this library.

        Args:
            written: Additional keyword arguments, as expressions.
        """
        if _is_ours(made.__module__):
            name = f"sky.{made.__name__}"
        else:
            self.modules.add(made.__module__)
            name = f"{made.__module__}.{made.__qualname__}"
        given = {key: self.expression(value) for key, value in values.items()} | dict(written or {})
        return f"{name}({', '.join(f'{key}={each}' for key, each in given.items())})"


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def _compute(plan: LaunchPlan, spec: PoolSpec, source: _Source) -> Iterator[str]:
    """Yield the arguments of the snippet's ``Compute`` call, as source text."""
    request = plan.request
    if request.pool is not None:
        yield f"name={request.pool!r}"
    with set_error_field("settings"):
        provider = provider_class(request.provider or DEFAULT_PROVIDER)
        yield f"provider={source.call(provider, parse_settings(provider, request.settings))}"
    nodes = source.call(Nodes, asdict(spec.nodes)) if isinstance(spec.nodes, Nodes) else str(spec.nodes)
    yield f"nodes={nodes}"
    if spec.accelerator is not None:
        yield f"accelerator={str(spec.accelerator)!r}"
    if spec.wish is not None:
        yield f"allocation={spec.wish.allocation!r}"
        if spec.wish.max_hourly is not None:
            yield f"max_hourly_cost={source.expression(spec.wish.max_hourly)}"
        if spec.wish.selection != "cheapest":
            yield f"selection={spec.wish.selection!r}"
    options = {name: getattr(spec.options, name) for name in options_of("options") if request.is_given(name)}
    options = {name: given for name, given in options.items() if given != getattr(Options(), name)}
    if spec.options.on_loss != Options().on_loss:
        options = {"on_loss": spec.options.on_loss} | options
    secrets = {"secrets": f"[{', '.join(map(source.shell_variable, source.secrets))}]"} if source.secrets else {}
    if options or secrets:
        yield f"options={source.call(Options, options, secrets)}"
    image = {name: getattr(spec.image, name) for name in ("workdir", *options_of("image"), *LISTS)}
    image = {name: list(each) if isinstance(each, tuple) else each for name, each in image.items() if each}
    variables = {"env": source.variables(spec.image.env)} if spec.image.env else {}
    if image or variables:
        yield f"image={source.call(Image, image, variables)}"
    if spec.plugins:
        with set_error_field("plugin_settings"):
            made = [_plugin(each, plan.plugin_values.get(each.name, {}), source) for each in spec.plugins]
        yield f"plugins=[{', '.join(made)}]"
    if spec.worker.ranks_per_node != 1:
        yield f"worker=sky.Worker(ranks_per_node={spec.worker.ranks_per_node!r})"


def _plugin(plugin: Plugin, given: Mapping[str, Any], source: _Source) -> str:
    """Return the expression that creates a plugin; plugins of other packages are created by name."""
    ours = type(plugin).__module__.startswith(f"{built_in.__name__}.")
    parameters = [f"{name}={source.expression(value)}" for name, value in given.items()]
    made = f"sky.plugins.{plugin.name}" if ours else "sky.plugins.by_name"
    return f"{made}({', '.join(parameters if ours else [repr(plugin.name), *parameters])})"


def _function(plan: LaunchPlan, source: _Source) -> tuple[str, str]:
    """Return the lines that import the function, and its name in the snippet."""
    source.modules.add("sys")
    module, name = plan.script.stem, plan.function.name
    taken = module in sys.stdlib_module_names or _is_ours(module)
    if plan.script.suffix != ".py" or not _is_name(module) or taken:
        raise UsageError(f"{plan.script.name} cannot be imported by name. Rename the file")
    alias = name if name not in _OURS | {each.partition(".")[0] for each in source.modules} else f"{name}_"
    lines = [
        f"sys.path.insert(0, {str(resolve_path(plan.script).parent)!r})",
        f"from {module} import {name}" + (f" as {alias}" if alias != name else ""),
    ]
    if plan.request.timeout is not None:
        lines.append(f"{alias} = sky.Function({alias}.fn, {source.expression(plan.request.timeout)})")
    return "\n".join(lines) + "\n", alias


def _script(plan: LaunchPlan, source: _Source) -> str:
    """Return the expression that runs a whole script."""
    module, args = plan.values["module"], plan.values["args"]
    given = [source.expression(module or str(plan.script)), *([source.expression(args)] if args else [])]
    given += ["module=True"] if module else []
    given += ["torchrun=True"] if plan.values.get("torchrun") else []
    given += [] if plan.request.timeout is None else [f"timeout={source.expression(plan.request.timeout)}"]
    return f"sky.script({', '.join(given)})"


def _arguments(plan: LaunchPlan, source: _Source) -> Iterator[str]:
    """Yield the arguments of the call: parameters before ``*args`` by position, all others by name."""
    values = dict(plan.values)
    rest = next((each.name for each in plan.function.params if each.kind == "var_positional"), None)
    by_position = values.pop(rest, []) if rest else []
    positional = [each.name for each in plan.function.params if each.kind == "positional"]
    for each in positional if by_position else _positional_only(plan):
        if each not in values:
            raise UsageError(f"argument {each} of {plan.function.name} is required: later arguments are positional")
        yield source.expression(values.pop(each))
    yield from map(source.expression, by_position)
    for name, value in values.items():
        given = source.expression(value)
        yield f"{name}={given}" if _is_name(name) else f"**{{{name!r}: {given}}}"


def _positional_only(plan: LaunchPlan) -> list[str]:
    """Return the positional-only parameters, up to the last one that has a value."""
    names = [
        each.arg
        for node in ast.walk(parse_script(plan.script))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno == plan.function.line
        for each in node.args.posonlyargs
    ]
    while names and names[-1] not in plan.values:
        names.pop()
    return names


def _is_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text)


def _result_lines(plan: LaunchPlan, ran: str) -> str:
    """Return the lines of the snippet that print the results."""
    if plan.request.one and not plan.function.is_generator:
        return f"    print({ran})\n"
    if plan.request.one or not plan.function.is_generator:
        return f"    for value in {ran}:\n        print(value)\n"
    return f"    for values in itertools.zip_longest(*({ran})):\n        print(*values)\n"
