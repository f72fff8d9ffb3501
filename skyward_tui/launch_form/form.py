"""Fields of the launch form, and their conversion to and from a ``LaunchRequest``."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from itertools import count as count_from
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.client.launch.launch_option_declarations import (
    DEFAULTS,
    JOB_LIMITS,
    NO_SCRIPT,
    OPTIONS,
    PACKAGES,
    WAYS,
    LaunchRequest,
)
from skyward_core.client.launch.plugin_and_provider_catalog import (
    DEFAULT_PROVIDER,
    argument_values,
    available,
    parse_source,
)
from skyward_core.model.errors import ScriptError, SkywardError, SpecError, TooFewHosts, UsageError
from skyward_core.util.safe_file_access import current_folder, exists, expand_user
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.pool_view import PoolView
from skyward_tui.text.text_width_tables_and_ascii import one_line

if TYPE_CHECKING:
    from skyward_core.client.launch.launch_plan import LaunchPlan
    from skyward_core.client.launch.plugin_and_provider_catalog import ArgumentField, FunctionInfo, ProviderInfo
    from skyward_core.client.launch.presets import Preset
    from skyward_core.model.provider_settings_schema import Setting


# The choice of ``pyproject.toml``, which needs no path because the launch finds the file.
PROJECT = "project"


def format_choice(field: str, path: str = "") -> str:
    """Return the value that stands for a choice of packages in the form: name of the request's field, and path of the
    file; "" for no packages.
    """
    return field if field in ("", PROJECT) else f"{field} {path}"


def package_choices(script: Path | None, chosen: str) -> list[tuple[str, str]]:
    """Return the choices of packages for a script as (label, choice): first no packages, then the files of its project.

    Args:
        script: The script; None if there is none yet.
        chosen: The present choice, which stays in the list even if its file no longer exists.
    """
    from skyward_core.client.launch.plugin_and_provider_catalog import has_own_block, packages_for

    choices = [("inline metadata" if script is not None and has_own_block(script) else "none", "")]
    for each in [] if script is None else packages_for(script):
        choices.append((Path(each.path).name, format_choice(each.field, relative_path(each.path))))
    if chosen not in [choice for _, choice in choices]:
        choices.append((Path(chosen.partition(" ")[2]).name or "pyproject.toml", chosen))
    return choices


def relative_path(path: str) -> str:
    """Return a path relative to the current folder, if it is below that folder."""
    folder = current_folder()
    return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path


FOLDER = Path(__file__).parents[1] / "examples"
PREFIX = "example:"


def example_paths() -> list[Path]:
    """Return the paths of the packaged examples, sorted by name."""
    return sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("_"))


@lru_cache
def script_summary(path: Path) -> str:
    """Return the first line of a script's docstring, without markup."""
    try:
        return (ast.get_docstring(parse_source(path.read_bytes())) or "").partition("\n")[0].replace("``", "")
    except (OSError, SyntaxError, ValueError):
        return ""


def example_path(name: str) -> Path:
    """Return the path of an example.

    Raises:
        UsageError: If there is no example of that name.
    """
    known = {path.stem: path for path in example_paths()}
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(known)}"
        raise UsageError(f"no example is named {name!r}: {hint}")
    return known[name]


def expand_example(target: str) -> str:
    """Replace the example's name in ``example:ddp`` or ``example:ddp:train`` by its path; return other targets
    unchanged.

    Raises:
        UsageError: If the example does not exist.
    """
    if not target.startswith(PREFIX) or exists(target):
        return target
    name, colon, function = target.removeprefix(PREFIX).partition(":")
    return f"{example_path(name)}{colon}{function}"


def suggest_example(script: Path) -> str:
    """Return an example with the same name as a missing script; "" if there is none."""
    known = not exists(script) and script.stem in {path.stem for path in example_paths()}
    return f"{PREFIX}{script.stem}" if known else ""


def script_argument(script: str) -> str:
    """Return a script as a word of the command line; an example as its name."""
    path = Path(script)
    return f"{PREFIX}{path.stem}" if path.parent == FOLDER else script


# IDs of other widgets on the screen, which fields of settings must not use. IDs with a hyphen cannot collide.
OTHER_IDS = frozenset(
    (
        *("call", "check", "code", "fields", "form", "gangs", "hint", "label", "last", "launch", "market", "message"),
        *("money", "options", "plan", "sides", "starts", "where", "why"),
    )
)
ALL_NODES = "all"
# by field name: the field's label and maximum value
_NUMBERS = {"nodes": ("Nodes", 1024), "ranks_per_node": ("Ranks per node", 64)}


@cache
def provider_choices() -> Mapping[str, ProviderInfo]:
    """Return the providers by name. Installed providers that cannot be loaded are included, because using such a
    provider reports the error.
    """
    return {each.name: each for each in available()}


@cache
def _settings_by_id() -> Mapping[str, Mapping[str, Setting]]:
    """Return the provider settings that have a field in the form, by provider name and field ID."""
    taken = {field.name for field in fields(Form)} | OTHER_IDS
    found: dict[str, Mapping[str, Setting]] = {}
    for name, each in provider_choices().items():
        found[name] = {_free_id(own.name, taken): own for own in each.settings if own.field is not None}
        taken |= set(found[name])
    return found


def _free_id(name: str, taken: Collection[str]) -> str:
    """Return an ID for the field of a setting: its name, with a number appended if the name is taken."""
    return name if name not in taken else next(f"{name}-{n}" for n in count_from(2) if f"{name}-{n}" not in taken)


class FieldError(Exception):
    """Error in the value of a field of the launch form.

    Attributes:
        field: ID of the field.
        argument: Name of the invalid argument; "" for other fields.
    """

    def __init__(self, field: str, message: str, argument: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.argument = argument


@dataclass(frozen=True, slots=True)
class Form:
    """Values of the launch form. An attribute for a launch option has the name of the option.

    Attributes:
        whole: Whether the script runs as a whole; ``arguments`` are then its command line arguments.
        pool: Key of an existing pool; "" for a new pool.
        name: Name of a new pool.
        settings: Texts of the provider's settings by field ID.
        gang: Number of nodes for each trial of a sweep; "all" for all nodes; "" for one rank.
        plugin_settings: Texts of plugin parameters by names such as "torch.backend"; ignored for plugins not chosen.
        packages: Choice of packages, as written by :func:`format_choice`.
        timeout: Value for which the form has no field. It comes from the launch that the form was filled from, and only
            the plan shows it.
        grace, checkpoints, checkpoint_store, resume, debug_wait: As ``timeout``.
        torchrun: As ``timeout``.
    """

    script: str = ""
    function: str = ""
    whole: bool = False
    arguments: str = ""
    python: str = ""
    pool: str = ""
    name: str = ""
    provider: str = DEFAULT_PROVIDER
    settings: Mapping[str, str] = field(default_factory=dict)
    accelerator: str = ""
    allocation: str = ""
    max_hourly_cost: str = ""
    selection: str = ""
    budget: str = ""
    wait_for_capacity: str = ""
    nodes: str = "4"
    ranks_per_node: str = "1"
    plugins: tuple[str, ...] = ()
    plugin_settings: Mapping[str, str] = field(default_factory=dict)
    packages: str = ""
    outputs: str = ""
    keep: bool = True
    one: bool = False
    sweep: bool = False
    gang: str = ""
    timeout: str = ""
    grace: str = ""
    restarts: str = ""
    error_restarts: str = ""
    restart_smaller: bool = False
    checkpoints: str = ""
    checkpoint_store: str = ""
    resume: str = ""
    debug_wait: str = ""
    torchrun: bool = False
    image_settings: str = ""


def path_of(script: str) -> Path:
    """Return the path of the script or example that the text of the form's script field names.

    Raises:
        UsageError: If the text names an example that does not exist.
    """
    return expand_user(expand_example(script.strip()))


def is_job(script: str) -> bool:
    """Check whether the form's script field names a job file."""
    return script.strip().lower().endswith((".yaml", ".yml"))


def functions_of(script: str) -> list[FunctionInfo]:
    """Return the functions of a script; empty if it can only run as a whole.

    Raises:
        FieldError: If no script is given, or the script cannot be read.
    """
    from skyward_core.client.launch.plugin_and_provider_catalog import has_functions, list_functions

    if not script.strip():
        raise FieldError("script", "enter a script, or press {launch.files} to pick one or an example")
    try:
        return list_functions(path) if has_functions(path := path_of(script)) else []
    except ScriptError as error:
        example = f". Packaged example of this name: {found}" if (found := suggest_example(path)) else ""
        raise FieldError("script", f"{error}{example}") from error
    except SkywardError as error:
        raise FieldError("script", str(error)) from error


def _text(text: str) -> str | None:
    return text.strip() or None


def split_patterns(text: str) -> list[str]:
    """Split patterns at spaces and commas outside of quotation marks.

    Raises:
        ValueError: If a closing quotation mark is missing.
    """
    words = shlex.shlex(text, posix=True, punctuation_chars=False)
    words.whitespace += ","
    words.whitespace_split, words.commenters = True, ""
    return list(words)


def _split_or_whole(split: Callable[[str], list[str]], text: str) -> list[str]:
    try:
        return split(text)
    except ValueError:  # a quotation is unfinished, because the user is still typing
        return [text]


_pairs = partial(_split_or_whole, shlex.split)
_patterns = partial(_split_or_whole, split_patterns)


def parse_amount(text: str, kinds: Sequence[Callable[[str], float]] = (int, float)) -> Any:
    """Parse a number. Return other text unchanged, so that the validation of the request rejects it.

    Args:
        kinds: Types of the number, in the order in which they are tried.
    """
    for kind in kinds:
        with suppress(ValueError):
            return kind(text)
    return _text(text)


_number = partial(parse_amount, kinds=(int,))


# Conversion from texts of the form to values of options, by the option's type.
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "bool": bool,
    "str | None": _text,
    "float | None": parse_amount,
    "int | None": _number,
    "int | str | None": _number,  # a range such as "2:8" stays a text
    "int | Literal['gpu'] | None": lambda text: None if text.strip() == "1" else _number(text),
    "Sequence[str]": _pairs,
}
_OWN_READERS: Mapping[str, Callable[[Any], Any]] = {"provider": str, "plugins": tuple, "outputs": _patterns}
# options that do not correspond to exactly one field of the form
_SEPARATE = ("pool", "settings", "plugin_settings", *WAYS)
_SHOWN = {"function", "arguments", "plugins", "plugin_settings", "image_settings"}
_SHOWN |= {name for name, each in OPTIONS.items() if each.row}
_TEXTS = [each.name for each in fields(Form) if each.name in OPTIONS and each.name not in _SEPARATE]


def _asked_options(provider: str, pool: str = "") -> list[str]:
    """Return the launch options that have a field of their own in the form, and that apply to a provider or to an
    existing pool.
    """
    choice = provider_choices().get(provider)
    has = {"": True, "offers": bool(choice and choice.chooses), "price": bool(choice and choice.costs)}
    return [name for name in _TEXTS if not OPTIONS[name].part or (not pool and has[OPTIONS[name].needs])]


def read_options(form: Form, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of options that a form contains as texts."""
    kinds = {name: _OWN_READERS.get(name, _READERS.get(OPTIONS[name].type, str)) for name in names}
    return {name: read(getattr(form, name)) for name, read in kinds.items()}


def build_request(form: Form) -> LaunchRequest:
    """Convert a form to a launch request.

    Raises:
        UsageError: If the form names an example that does not exist.
    """
    values = read_options(form, _asked_options(form.provider, form.pool))
    values["function"] = _text(form.function)
    gang = form.gang.strip().lower()
    values |= {"gang": True} if gang == ALL_NODES else {"gang_nodes": _number(gang)}
    if form.pool:
        values["pool"] = _name_of(form.pool)
    else:
        values |= {"pool": _text(form.name), **_parse_choice(form.packages)}
        given = {name: text for name, text in form.plugin_settings.items() if text and _plugin_of(name) in form.plugins}
        values |= {"settings": dict(provider_settings(form)), "plugin_settings": given}
    if form.whole:
        values |= {"function": None, "arguments": (), "script_args": values["arguments"]}
    else:  # torchrun's variables are set only for scripts that run as a whole
        values["torchrun"] = False
    return LaunchRequest(script=str(path_of(form.script)), **values)


def _plugin_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _parse_choice(choice: str) -> dict[str, Any]:
    """Return the request's field, and the field's value, that a choice of packages stands for."""
    name, _, path = choice.partition(" ")
    if choice == PROJECT:
        return {PROJECT: True}
    return {name: path} if name in PACKAGES and path else {}


def selected_pool(form: Form, pools: Collection[PoolView]) -> PoolView | None:
    """Return the live pool that the form selects; None for a new pool.

    Raises:
        FieldError: If the selected pool has ended, or a live pool has the name of the new pool.
    """
    name = _name_of(form.pool) or form.name.strip()
    live = [pool for pool in pools if pool.is_live]
    used = next((pool for pool in live if pool.key == form.pool), None)
    if form.pool and used is None:
        raise FieldError("pool", f"pool {name} has ended. Choose another pool, or create a new one")
    if not form.pool and any(pool.name == name for pool in live):
        raise FieldError("name", f"pool {name} is already up: use it, or choose another name")
    return used


def _name_of(pool: str) -> str:
    """Return the name of a pool from its key."""
    return pool.partition(".")[0]


def provider_settings(form: Form) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the provider's settings."""
    for id, setting in setting_fields(form.provider).items():
        text = setting.normalize(form.settings.get(id, ""))
        if text or (setting.required and setting.option):
            yield setting.name, text


def setting_fields(provider: str) -> Mapping[str, Setting]:
    """Return the settings of a provider by the ids of their fields."""
    return _settings_by_id().get(provider, {})


def plan_launch(form: Form, pools: Collection[PoolView], *, launching: bool = False) -> LaunchPlan:
    """Compute the plan for the launch that a form describes.

    Args:
        form: The form.
        pools: All known pools.
        launching: As in :func:`~skyward_core.client.launch.launch_plan.make_plan`.

    Raises:
        FieldError: If a field is invalid; names the first such field.
    """
    try:
        return _check_plan(form, pools, launching=launching)
    except SkywardError as error:
        id = _field_id(error.field, form)
        message = error.reason if isinstance(error, SpecError) else str(error)
        text = _not_a_number(id, form) if id in _NUMBERS and not isinstance(error, TooFewHosts) else message
        raise FieldError(id, text, error.field.partition("arguments.")[2]) from error


def _check_plan(form: Form, pools: Collection[PoolView], *, launching: bool) -> LaunchPlan:
    from skyward_core.client.launch.launch_plan import make_plan, resolve_call

    form = _with_function(form)
    _check_words("arguments", shlex.split, form.arguments)
    request = build_request(form)
    resolve_call(request)  # called first, so that errors in the upper fields of the form are reported first
    if (used := selected_pool(form, pools)) is not None:
        return make_plan(request, launching=launching).on_pool(used).check_gangs()
    for id, setting in setting_fields(form.provider).items():
        if setting.required and not setting.normalize(form.settings.get(id, "")):
            look = setting.field() if setting.field else None
            raise FieldError(id, (look and look.missing) or f"{setting.name} is required: {setting.help}")
    _check_words("image_settings", shlex.split, form.image_settings)
    _check_words("outputs", split_patterns, form.outputs)
    taken = [pool.name for pool in pools if pool.is_live]
    plan = make_plan(request, launching=launching, name=free_name(path_of(form.script), taken))
    plan = plan.with_prompts().with_low_priority()
    _check_numbers(form, plan)
    return plan.check_gangs()


def _check_words(id: str, split: Callable[[str], object], text: str) -> None:
    try:
        split(text)
    except ValueError as error:
        raise FieldError(id, str(error)) from error


def _with_function(form: Form) -> Form:
    """Return the form with a function: if none is chosen, the script's first function, or the whole script if it has
    none.
    """
    if (form.function or form.whole) and form.script.strip():
        return form
    functions = functions_of(form.script)
    return replace(form, function=functions[0].name) if functions else replace(form, whole=True)


def _check_numbers(form: Form, plan: LaunchPlan) -> None:
    """Reject an empty number of nodes or ranks. Only the command line accepts a missing number, and uses a default."""
    for id in _NUMBERS:
        if not getattr(form, id).strip() and not (id == "nodes" and plan.hosts):
            raise FieldError(id, _not_a_number(id, form))


def _not_a_number(id: str, form: Form) -> str:
    label, most = _NUMBERS[id]
    text = getattr(form, id).strip()
    problem = f"{label}: {text} is not valid" if text else f"{label} is empty"
    return f"{problem}. Enter 1 to {most:,}{' or a range such as 2:8' if id == 'nodes' else ''}"


def _field_id(field: str, form: Form) -> str:
    """Return the ID of the form's field that corresponds to a field of a request."""
    own = setting_fields(form.provider)
    of_setting = {f"settings.{setting.name}": id for id, setting in own.items()}
    if field == "provider" or field.startswith("settings."):
        return of_setting.get(field, next(iter(own), "provider"))
    name = field.partition(".")[0]
    if name in WAYS:
        return "gang"
    if name in PACKAGES:
        return "packages"
    if name not in _SHOWN:
        return "name" if name == "pool" else "script"
    return "options" if name in OPTIONS and OPTIONS[name].is_flag else name


def free_name(script: Path, taken: Collection[str]) -> str:
    """Return a free pool name derived from the script's name: ``ddp``, ``ddp-2``."""
    letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in script.stem.lower())
    stem = letters.strip("-")[:40].strip("-") or "pool"
    names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def _job_options(form: Form) -> Iterator[str]:
    if pool := _name_of(form.pool) or form.name.strip():
        yield from ("-c", pool)
    if not form.pool and form.provider != DEFAULT_PROVIDER:
        yield from ("--provider", form.provider)
        for name, text in provider_settings(form):
            yield from ("--set", f"{name}={text}")
    for name in () if form.pool else JOB_LIMITS:
        if text := getattr(form, name).strip():
            yield from (OPTIONS[name].name, text)
    for word in _pairs(form.arguments):
        yield from ("--env", word)


def python_script(form: Form, pools: Collection[PoolView]) -> str:
    """Return the launch of a form as a Python script. If the form is invalid, return a comment with the error."""
    from skyward_core.client.launch.python_snippet import write_snippet

    if is_job(form.script):
        return f"import skyward_core as sky\n\ntask = sky.Task.from_yaml({str(path_of(form.script))!r})\n"
    try:
        return write_snippet(build_request(form), selected_pool(form, pools))
    except (SkywardError, FieldError) as error:
        return f"# {one_line(str(error))}"


def command_line(form: Form) -> str:
    """Return the launch of a form as a shell command. If the form is invalid, return a comment with the error."""
    if is_job(form.script):
        return shlex.join(["skyward-tui", "launch", form.script.strip(), *_job_options(form)])
    try:
        request = build_request(form)
        called = script_argument(request.script) if form.script.strip() else "SCRIPT"
        return request.command_line("skyward-tui", "run", called=called)
    except SkywardError as error:
        return f"# {one_line(str(error))}"


def parse_arguments(line: str) -> dict[str, str] | None:
    """Return the values in a line of NAME=value arguments, by name. The first of equal names counts. None if a
    quotation is unfinished.
    """
    words = _split_words(line)
    if words is None:
        return None
    found: dict[str, str] = {}
    for name, equals, text in (word.partition("=") for word in words):
        if equals:
            found.setdefault(name.strip(), text)
    return found


def fitting_arguments(line: str, asked: Sequence[ArgumentField], *, is_open: bool = False) -> str:
    """Return a line of NAME=value arguments without those that a function does not accept.

    Args:
        line: The line.
        asked: Fields of the function's arguments.
        is_open: Whether the function accepts other names, too.
    """
    known = {each.name: each for each in asked}
    words = _split_words(line) or []
    fitting = []
    for word in words:
        name, _, text = word.partition("=")
        each = known.get(name.strip())
        if is_open if each is None else not each.validation_error(text) or not value_list_error(each, text):
            fitting.append(word)
    return line if fitting == words else " ".join(map(_quoted, fitting))


def set_argument(line: str, name: str, text: str | None, order: Sequence[str]) -> str:
    """Return a line of arguments with one argument changed. If a quotation is unfinished, return the line unchanged.

    Args:
        line: The line.
        name: Name of the argument.
        text: New text; None to remove the argument.
        order: Names in the order of the function's parameters, for the position of a new argument.
    """
    words = _split_words(line)
    if words is None:
        return line
    places = [number for number, word in enumerate(words) if _name(word) == name]
    new = [] if text is None else [f"{name}={text}"]
    if places:
        place = places[0]
        words[place : place + 1] = new
    elif new:
        here = order.index(name)
        places = [number for number, word in enumerate(words) if _name(word) in order[:here]]
        behind = (number for number, word in enumerate(words) if _name(word) in order[here + 1 :])
        place = places[-1] + 1 if places else next(behind, len(words))
        words[place:place] = new
    else:
        return line
    return " ".join(map(_quoted, words))


def _split_words(line: str) -> list[str] | None:
    try:
        return shlex.split(line)
    except ValueError:
        return None


def _name(word: str) -> str:
    return word.partition("=")[0].strip()


def _quoted(word: str) -> str:
    name, equals, text = word.partition("=")
    if not (equals and name.isidentifier()):
        return shlex.quote(word)
    return f"{name}={shlex.quote(text)}" if text else word


def value_list_error(asked: ArgumentField, text: str) -> str:
    """Return why a text is not a list of valid values for an argument; "" if the text is such a list."""
    try:
        values = argument_values(asked.name, text)
    except UsageError as error:
        return str(error)
    return next((reason for value in values if (reason := asked.validation_error(value))), "")


def is_sweep(asked: Sequence[ArgumentField], line: str) -> bool:
    """Check whether any argument's text is a list of several valid values, and not itself a valid value.

    Args:
        asked: Fields of the arguments.
        line: The line of all arguments.
    """
    texts = parse_arguments(line) or {}
    return any(
        each.validation_error(text) and not value_list_error(each, text) and len(argument_values(each.name, text)) > 1
        for each in asked
        if (text := texts.get(each.name))
    )


def _written(value: object) -> str:
    return "" if value is None else str(value)


# Conversion from values of options to texts of the form, by the option's type.
_WRITERS: Mapping[str, Callable[[Any], Any]] = {"bool": bool, "Sequence[str]": shlex.join}
_OWN_WRITERS: Mapping[str, Callable[[Any], Any]] = {
    "provider": lambda name: name or DEFAULT_PROVIDER,
    "ranks_per_node": lambda ranks: _written(ranks or 1),
    "allocation": lambda market: "" if market == "on-demand" else _written(market),
    "selection": lambda order: "" if order == "cheapest" else _written(order),
    "plugins": tuple,
    "outputs": lambda patterns: " ".join("'" + each.replace("'", "'\"'\"'") + "'" for each in patterns),
}


def fieldless_options(request: LaunchRequest) -> list[str]:
    """Return the names of the given options and provider settings that have no field in the form."""
    provider = request.provider or DEFAULT_PROVIDER
    own = {"script", "function", "script_args", "detach", *_SEPARATE, *PACKAGES, *_asked_options(provider)}
    options = [name for name in DEFAULTS if name not in own and getattr(request, name)]
    shown = {setting.name for setting in setting_fields(provider).values()}
    parameters = [
        name for name, text in request.plugin_settings.items() if not text or _plugin_of(name) not in request.plugins
    ]
    return options + [name for name in request.settings if name not in shown] + parameters


def form_from_request(request: LaunchRequest) -> Form:
    """Convert a launch request to a form.

    Raises:
        UsageError: If the form has no field for a given option.
    """
    values = {
        name: _OWN_WRITERS.get(name, _WRITERS.get(OPTIONS[name].type, _written))(getattr(request, name))
        for name in _asked_options(request.provider or DEFAULT_PROVIDER)
    }
    values["gang"] = ALL_NODES if request.gang else _written(request.gang_nodes)
    chosen = ((name, getattr(request, name)) for name in PACKAGES)
    values["packages"] = next((format_choice(name, str(given)) for name, given in chosen if given), "")
    values |= {"function": _written(request.function), "name": _written(request.pool)}
    if request.script_args is not None:
        values |= {"whole": True, "arguments": shlex.join(request.script_args)}
    ids = {setting.name: id for id, setting in setting_fields(values["provider"]).items()}
    # A detached launch implies --keep, so both options switch the field "keep" on.
    values["keep"] = request.keep or request.detach
    missing = fieldless_options(request)
    if str(path_of(request.script)) != request.script:
        missing.append("script")
    if missing:
        raise UsageError(f"the form has no field for {', '.join(missing)}")
    settings = {ids[name]: text for name, text in request.settings.items()}
    parameters = dict(request.plugin_settings)
    script = "" if request.script == NO_SCRIPT else request.script
    form = Form(script=script, settings=settings, plugin_settings=parameters, **values)
    return form if request.shapes_pool else replace(form, pool=request.pool or "", name="")


def save_preset(name: str, form: Form) -> Path:
    """Save the form as a preset, without the selected existing pool, and return the preset's file.

    Raises:
        SkywardError: If the form cannot be saved as a preset.
        OSError: If the file cannot be written.
    """
    from skyward_core.client.launch import presets

    request = build_request(replace(form, pool=""))
    return presets.save(name, replace(request, script=script_argument(request.script)))


def form_from_preset(preset: Preset) -> tuple[Form, list[str]]:
    """Return the form for a preset, and notes about the preset's values that the form cannot hold."""
    from skyward_core.client.launch.presets import drop_unknown

    request, notes = preset.request()
    try:
        request = replace(request, script=str(path_of(request.script)))
    except SkywardError as error:  # the packaged example no longer exists in this release
        notes.append(str(error))
        request = replace(request, script=NO_SCRIPT)
    request, more = drop_unknown(request)
    notes += more
    missing = fieldless_options(request)
    notes += [f"the form has no field for {sanitize_line(name)}" for name in missing]
    named = (*request.settings, *request.plugin_settings)
    blank = {name: DEFAULTS[name] for name in missing if name in DEFAULTS and name not in named}
    settings = {name: text for name, text in request.settings.items() if name not in missing}
    given = {name: text for name, text in request.plugin_settings.items() if name not in missing}
    form = form_from_request(replace(request, settings=settings, plugin_settings=given, **blank))
    name = request.pool or ""
    return replace(form, pool="", name=name), notes
