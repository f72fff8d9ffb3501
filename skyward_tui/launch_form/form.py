"""Fields of the launch form, to and from a LaunchRequest."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from itertools import count as count_from
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.client.launch.launch_request import DEFAULTS, OPTIONS, PACKAGES, WAYS, LaunchRequest
from skyward_core.client.launch.script_plugin_provider_discovery import (
    DEFAULT_PROVIDER,
    argument_values,
    available,
    parse_source,
)
from skyward_core.model.errors import ScriptError, SkywardError, SpecError, UsageError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.util.user_files import exists, expand_user
from skyward_core.views.pool_view import PoolView
from skyward_tui.terminal_info import current_folder
from skyward_tui.text.number_and_time_format import count, one_line

if TYPE_CHECKING:
    from skyward_core.client.launch.launch_plan import LaunchPlan
    from skyward_core.client.launch.presets import Preset
    from skyward_core.client.launch.script_plugin_provider_discovery import ArgumentField, FunctionInfo, ProviderInfo
    from skyward_core.model.setting_descriptors import Setting


PROJECT = "project"
"""The choice of ``pyproject.toml``, which is looked for and not named."""


def format_choice(field: str, path: str = "") -> str:
    """A choice as a text: which field of a request names the packages, and by which file; "" for none."""
    return field if field in ("", PROJECT) else f"{field} {path}"


def package_choices(script: Path | None, chosen: str) -> list[tuple[str, str]]:
    """What can be chosen for a script, as (label, choice): nothing first, then what its project has.

    Args:
        script: None where there is none to look at.
        chosen: what stays in the list, though it may not be there any more.
    """
    from skyward_core.client.launch.script_plugin_provider_discovery import has_own_block, packages_for

    if script is None:
        return [("none named", ""), *_chosen_option(chosen, ())]
    found = [
        (Path(each.path).name, format_choice(each.field, relative_path(each.path))) for each in packages_for(script)
    ]
    nothing = "its own block" if has_own_block(script) else "none named" if found else "none found"
    return [(nothing, ""), *found, *_chosen_option(chosen, [choice for _, choice in found])]


def _chosen_option(chosen: str, listed: list[str] | tuple[()]) -> list[tuple[str, str]]:
    if not chosen or chosen in listed:
        return []
    return [(Path(chosen.partition(" ")[2]).name or "pyproject.toml", chosen)]


def relative_path(path: str) -> str:
    """The path from here where it is below."""
    folder = current_folder()
    return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path


FOLDER = Path(__file__).parents[1] / "examples"
PREFIX = "example:"


def example_paths() -> list[Path]:
    """Their paths, by name."""
    return sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("_"))


@lru_cache
def script_summary(path: Path) -> str:
    """The first line of a script's docstring, without its markup."""
    try:
        return (ast.get_docstring(parse_source(path.read_bytes())) or "").partition("\n")[0].replace("``", "")
    except (OSError, SyntaxError, ValueError):
        return ""


def example_path(name: str) -> Path:
    """The path of an example.

    Raises:
        UsageError: there is none of that name; says which there are.
    """
    known = {path.stem: path for path in example_paths()}
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
        raise UsageError(f"no example is named {name!r}; {hint}")
    return known[name]


def expand_example(target: str) -> str:
    """``example:ddp`` and ``example:ddp:train`` with the example's path in its place; anything else as it is.

    Raises:
        UsageError: there is no such example.
    """
    if not target.startswith(PREFIX) or exists(target):
        return target
    name, colon, function = target.removeprefix(PREFIX).partition(":")
    return f"{example_path(name)}{colon}{function}"


def suggest_example(script: Path) -> str:
    """The example that a script which is not there was perhaps meant to be; "" where there is none."""
    there = exists(script) or script.stem not in {path.stem for path in example_paths()}
    return "" if there else f"{PREFIX}{script.stem}"


def script_argument(script: str) -> str:
    """A script as it is written on the command line: an example by its name."""
    path = Path(script)
    return f"{PREFIX}{path.stem}" if path.parent == FOLDER else script


OTHER_IDS = frozenset(
    (
        *("call", "check", "code", "fields", "form", "gangs", "hint", "label", "last", "launch", "market", "message"),
        *("money", "options", "plan", "sides", "starts", "where", "why"),
    )
)
"""Ids on the form's screen beside those of its fields; ids with a hyphen are no names of settings."""
ALL_NODES = "all"
RANKS = "ranks"
_NUMBERS = {
    "nodes": ("nodes", 1024),
    "ranks_per_node": ("ranks per node", 64),
}  # by field: what it counts, and the most


@cache
def provider_choices() -> Mapping[str, ProviderInfo]:
    """The providers that there are; of a declared one that cannot be loaded, too: the form says why when it is used."""
    return {each.name: each for each in available()}


@cache
def _settings_by_id() -> Mapping[str, Mapping[str, Setting]]:
    """Settings with a field in the form, by the provider's name and the field's id."""
    taken = {field.name for field in fields(Form)} | OTHER_IDS
    found: dict[str, Mapping[str, Setting]] = {}
    for name, each in provider_choices().items():
        found[name] = {_free_id(own.name, taken): own for own in each.settings if own.field is not None}
        taken |= set(found[name])
    return found


def _free_id(name: str, taken: Collection[str]) -> str:
    """An id for a setting's field: its name, unless that is another field's."""
    return name if name not in taken else next(f"{name}-{n}" for n in count_from(2) if f"{name}-{n}" not in taken)


class FieldError(Exception):
    """A field of the form is wrong: which one, and what to do.

    Attributes:
        argument: the name of the argument that is, where it is one of them; "" where it is none.
    """

    def __init__(self, field: str, message: str, argument: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.argument = argument


@dataclass(frozen=True, slots=True)
class Form:
    """Texts of the launch form. Fields that are options of a launch have their names.

    Attributes:
        whole: whether the script is run as a whole; ``arguments`` are its own words then.
        pool: key of an existing pool to use, or "" for a new one.
        name: name of a new pool.
        settings: texts of providers' settings by their fields' ids.
        gang: of a sweep, on how many nodes each combination runs; "all", or "" for one rank each.
        plugin_settings: texts of plugins' parameters, by names such as "torch.backend"; those of chosen plugins count.
        packages: as :func:`format_choice` writes it.
        timeout, debug_wait, torchrun: of a launch that the form was filled with; its plan shows them.
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
    debug_wait: str = ""
    torchrun: bool = False
    image_settings: str = ""


def path_of(script: str) -> Path:
    """The file that the form's text names.

    Raises:
        UsageError: it names an example that there is not.
    """
    return expand_user(expand_example(script.strip()))


def is_job(script: str) -> bool:
    """Whether the form's text names a job file, not a script."""
    return script.strip().lower().endswith((".yaml", ".yml"))


def functions_of(script: str) -> list[FunctionInfo]:
    """The functions of a script; none where it can only be run as a whole.

    Raises:
        FieldError: there is no script, or it cannot be read.
    """
    from skyward_core.client.launch.script_plugin_provider_discovery import has_functions, list_functions

    if not script.strip():
        raise FieldError("script", "name a script, or press {launch.files} to pick one or an example")
    try:
        return list_functions(path) if has_functions(path := path_of(script)) else []
    except ScriptError as error:
        example = f"; there is an example of that name: {found}" if (found := suggest_example(path)) else ""
        raise FieldError("script", f"{error}{example}") from error
    except SkywardError as error:
        raise FieldError("script", str(error)) from error


def _text(text: str) -> str | None:
    return text.strip() or None


def _pairs(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # somebody is typing a quotation
        return [text]


def split_patterns(text: str) -> list[str]:
    """Patterns as they are typed: apart by spaces or commas, unless these stand in quotation marks.

    Raises:
        ValueError: a quotation has no end.
    """
    words = shlex.shlex(text, posix=True, punctuation_chars=False)
    words.whitespace += ","
    words.whitespace_split, words.commenters = True, ""
    return list(words)


def _patterns(text: str) -> list[str]:
    try:
        return split_patterns(text)
    except ValueError:  # somebody is typing a quotation
        return [text]


def _number(text: str) -> Any:
    """A number; what is none stays as it is, and is refused with the other values that make no sense."""
    with suppress(ValueError):
        return int(text)
    return _text(text)


def parse_amount(text: str) -> Any:
    """As :func:`_number`, with cents."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return _text(text)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "bool": bool,
    "str | None": _text,
    "float | None": parse_amount,
    "int | str | None": _number,  # a range stays text
    "int | Literal['gpu'] | None": lambda text: None if text.strip() == "1" else _number(text),
    "Sequence[str]": _pairs,
}
"""How texts of the form become values of an option, by its type."""
_OWN_READERS: Mapping[str, Callable[[Any], Any]] = {"provider": str, "plugins": tuple, "outputs": _patterns}
_SEPARATE = ("pool", "settings", "plugin_settings", *WAYS)  # options that the form says otherwise than by one field
_SHOWN = {"function", "arguments", "plugins", "plugin_settings", "image_settings"}
_SHOWN |= {name for name, each in OPTIONS.items() if each.row}
_TEXTS = [each.name for each in fields(Form) if each.name in OPTIONS and each.name not in _SEPARATE]


def _asked_options(provider: str, pool: str = "") -> list[str]:
    """Return the options with a field of their own that are asked for a provider, or for an existing pool."""
    choice = provider_choices().get(provider)
    has = {"": True, "offers": bool(choice and choice.chooses), "price": bool(choice and choice.costs)}
    return [name for name in _TEXTS if not OPTIONS[name].part or (not pool and has[OPTIONS[name].needs])]


def build_request(form: Form) -> LaunchRequest:
    """Return the request of a form.

    Raises:
        UsageError: There is no such example.
    """
    said: dict[str, Any] = {
        name: _OWN_READERS.get(name, _READERS.get(OPTIONS[name].type, str))(getattr(form, name))
        for name in _asked_options(form.provider, form.pool)
    }
    said |= {"function": _text(form.function), **_parse_gang(form.gang)}
    if form.pool:
        said["pool"] = _name_of(form.pool)
    else:
        said |= {"pool": _text(form.name), **_parse_choice(form.packages)}
        given = {name: text for name, text in form.plugin_settings.items() if text and _plugin_of(name) in form.plugins}
        said |= {"settings": dict(provider_settings(form)), "plugin_settings": given}
    if form.whole:
        said |= {"function": None, "arguments": (), "script_args": said["arguments"]}
    else:  # a function that is chosen in a whole script's place has no use for torchrun's variables
        said["torchrun"] = False
    return LaunchRequest(script=str(path_of(form.script)), **said)


def _plugin_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _parse_choice(choice: str) -> dict[str, Any]:
    """Return the field of a request that names the chosen packages."""
    name, _, path = choice.partition(" ")
    if choice == PROJECT:
        return {PROJECT: True}
    return {name: path} if name in PACKAGES and path else {}


def _parse_gang(text: str) -> dict[str, Any]:
    """Return the field of a request that says on what each combination of a sweep runs."""
    words = text.strip().lower()
    if words == ALL_NODES:
        return {"gang": True}
    if words.endswith(RANKS):
        return {"gang_ranks": _number(words.removesuffix(RANKS))}
    return {"gang_nodes": _number(words)}


def _live_pool(form: Form, pools: Collection[PoolView]) -> PoolView | None:
    """The live pool that the form names."""
    return next((pool for pool in pools if pool.key == form.pool and pool.is_live), None)


def _name_of(pool: str) -> str:
    """A pool's name, from its key."""
    return pool.partition(".")[0]


def provider_settings(form: Form) -> Iterator[tuple[str, str]]:
    """What the provider's fields say, by the settings' names."""
    for id, setting in setting_fields(form.provider).items():
        text = setting.normalize(form.settings.get(id, ""))
        if text or (setting.required and setting.option):
            yield setting.name, text


def setting_fields(provider: str) -> Mapping[str, Setting]:
    """The settings of a provider, by their fields' ids."""
    return _settings_by_id().get(provider, {})


def plan_launch(form: Form, pools: Collection[PoolView], *, launching: bool = False) -> LaunchPlan:
    """Turn the form into a launch.

    Args:
        launching: as of :func:`~skyward_core.client.launch.launch_plan.make_plan`.

    Raises:
        FieldError: names the first field that is wrong.
    """
    try:
        return _check_plan(form, {pool.name: pool for pool in pools if pool.is_live}, launching=launching)
    except SkywardError as error:
        id = _field_id(error.field, form)
        message = error.reason if isinstance(error, SpecError) else str(error)
        said = _not_a_number(id, form) if id in _NUMBERS else message
        raise FieldError(id, said, error.field.partition("arguments.")[2]) from error


def _check_plan(form: Form, live: Mapping[str, PoolView], *, launching: bool) -> LaunchPlan:
    from skyward_core.client.launch.launch_plan import make_plan, resolve_call

    form = _with_function(form)
    _check_words("arguments", shlex.split, form.arguments)
    request = build_request(form)
    resolve_call(request)  # first what stands above the pool
    if form.pool:
        used = _live_pool(form, live.values())
        if used is None:
            raise FieldError("pool", f"pool {request.pool} is not up any more; choose another or a new one")
        return make_plan(request, launching=launching).on_pool(used).with_gangs()
    if request.pool in live:
        raise FieldError("name", f"a pool named {request.pool} is already up: use it, or give another name")
    for id, setting in setting_fields(form.provider).items():
        if setting.required and not setting.normalize(form.settings.get(id, "")):
            look = setting.field() if setting.field else None
            raise FieldError(id, (look and look.missing) or f"{setting.name} is needed: {setting.help}")
    _check_words("image_settings", shlex.split, form.image_settings)
    _check_words("outputs", split_patterns, form.outputs)
    plan = make_plan(request, launching=launching, name=free_name(path_of(form.script), live))
    plan = plan.with_prompts().with_low_priority()
    _check_numbers(form, plan)
    return plan.with_gangs()


def _check_words(id: str, split: Callable[[str], object], text: str) -> None:
    try:
        split(text)
    except ValueError as error:
        raise FieldError(id, str(error)) from error


def _with_function(form: Form) -> Form:
    """A form that names no function means the script's first, or all of a script that has none."""
    if (form.function or form.whole) and form.script.strip():
        return form
    functions = functions_of(form.script)
    return replace(form, function=functions[0].name) if functions else replace(form, whole=True)


def _check_numbers(form: Form, plan: LaunchPlan) -> None:
    """What is no fault where it is said otherwise, and one here."""
    for id in _NUMBERS:
        if not getattr(form, id).strip() and not (id == "nodes" and plan.hosts):
            raise FieldError(id, _not_a_number(id, form))
    if plan.hosts and plan.spec is not None and plan.spec.least_nodes > len(plan.hosts):
        nodes, there = plan.spec.least_nodes, count(len(plan.hosts), "host")
        raise FieldError("nodes", f"{nodes} nodes, and {there}: name more hosts, or leave nodes empty for all")


def _not_a_number(id: str, form: Form) -> str:
    what, most = _NUMBERS[id]
    range_of = " or a range such as 2:8," if id == "nodes" else ""
    return f"{what}: a whole number from 1 to {most:,},{range_of} not {getattr(form, id).strip() or 'nothing'}"


def _field_id(field: str, form: Form) -> str:
    """The form's field that stands for one of a request."""
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
    """A pool name made of the script's, that no live pool has: ``ddp``, ``ddp-2``."""
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
    for word in _pairs(form.arguments):
        yield from ("--env", word)


def python_script(form: Form, pools: Collection[PoolView]) -> str:
    """The same launch as a Python script; a comment where there is none."""
    from skyward_core.client.launch.python_snippet import write_snippet

    if is_job(form.script):
        return f"import skyward_core as sky\n\ntask = sky.Task.from_yaml({str(path_of(form.script))!r})\n"
    try:
        return write_snippet(build_request(form), _live_pool(form, pools))
    except SkywardError as error:
        return f"# {one_line(str(error))}"


def command_line(form: Form) -> str:
    """The same launch as a command to type; a comment where there is none."""
    if is_job(form.script):
        return shlex.join(["skyward-tui", "launch", form.script.strip(), *_job_options(form)])
    try:
        request = build_request(form)
        called = script_argument(request.script) if form.script.strip() else "SCRIPT"
        return request.command_line("skyward-tui", "run", called=called)
    except SkywardError as error:
        return f"# {one_line(str(error))}"


def parse_arguments(line: str) -> dict[str, str] | None:
    """Texts by name, of two of one name the first; None where somebody is still typing a quotation."""
    words = _split_words(line)
    if words is None:
        return None
    found: dict[str, str] = {}
    for name, equals, text in (word.partition("=") for word in words):
        if equals:
            found.setdefault(name.strip(), text)
    return found


def set_argument(line: str, name: str, text: str | None, order: Sequence[str]) -> str:
    """The line where one of them is otherwise; the same where a quotation in it has no end.

    Args:
        text: what it is; None where it is not given any more.
        order: names as the function has them, by which a new one finds its place.
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
    """Why a text is no list of values of an argument, in words; "" where it is one."""
    try:
        values = argument_values(asked.name, text)
    except UsageError as error:
        return str(error)
    return next((reason for value in values if (reason := asked.validation_error(value))), "")


def is_sweep(asked: Sequence[ArgumentField], line: str) -> bool:
    """Whether an argument is given what is no value of it, and several that are.

    Args:
        line: of all arguments, as it is typed.
    """
    texts = parse_arguments(line) or {}
    for each in asked:
        text = texts.get(each.name)
        if (
            text
            and each.validation_error(text)
            and not value_list_error(each, text)
            and len(argument_values(each.name, text)) > 1
        ):
            return True
    return False


def _written(value: object) -> str:
    return "" if value is None else str(value)


def _pattern_text(patterns: Sequence[str]) -> str:
    return " ".join("'" + each.replace("'", "'\"'\"'") + "'" for each in patterns)


_WRITERS: Mapping[str, Callable[[Any], Any]] = {"bool": bool, "Sequence[str]": shlex.join}
"""How values of an option become texts of the form, by its type."""
_OWN_WRITERS: Mapping[str, Callable[[Any], Any]] = {
    "provider": lambda name: name or DEFAULT_PROVIDER,
    "ranks_per_node": lambda ranks: _written(ranks or 1),
    "allocation": lambda market: "" if market == "on-demand" else _written(market),
    "selection": lambda order: "" if order == "cheapest" else _written(order),
    "plugins": tuple,
    "outputs": _pattern_text,
}


def fieldless_options(request: LaunchRequest) -> list[str]:
    """Return the names of the given options, and of settings of the provider, that the form has no field for."""
    provider = request.provider or DEFAULT_PROVIDER
    own = {"script", "function", "script_args", "detach", *_SEPARATE, *PACKAGES, *_asked_options(provider)}
    said = [name for name in DEFAULTS if name not in own and getattr(request, name)]
    shown = {setting.name for setting in setting_fields(provider).values()}
    no_field = [
        name for name, text in request.plugin_settings.items() if not text or _plugin_of(name) not in request.plugins
    ]
    return said + [name for name in request.settings if name not in shown] + no_field


def form_from_request(request: LaunchRequest) -> Form:
    """Return the form that asks for the same.

    Raises:
        UsageError: The form has no field for a given option.
    """
    values = {
        name: _OWN_WRITERS.get(name, _WRITERS.get(OPTIONS[name].type, _written))(getattr(request, name))
        for name in _asked_options(request.provider or DEFAULT_PROVIDER)
    }
    values["gang"] = ALL_NODES if request.gang else _written(request.gang_nodes)
    if request.gang_ranks is not None:
        values["gang"] = f"{request.gang_ranks} {RANKS}"
    chosen = ((name, getattr(request, name)) for name in PACKAGES)
    values["packages"] = next((format_choice(name, str(given)) for name, given in chosen if given), "")
    values |= {"function": _written(request.function), "name": _written(request.pool)}
    if request.script_args is not None:
        values |= {"whole": True, "arguments": shlex.join(request.script_args)}
    ids = {setting.name: id for id, setting in setting_fields(values["provider"]).items()}
    # What is left as soon as it runs: nobody waits for the app.
    values["keep"] = request.keep or request.detach
    missing = fieldless_options(request)
    if str(path_of(request.script)) != request.script:
        missing.append("script")
    if missing:
        raise UsageError(f"the form has no field that could say this: {', '.join(missing)}")
    settings = {ids[name]: text for name, text in request.settings.items()}
    parameters = dict(request.plugin_settings)
    form = Form(script=request.script, settings=settings, plugin_settings=parameters, **values)
    return form if request.shapes_pool else replace(form, pool=request.pool or "", name="")


def save_preset(name: str, form: Form) -> Path:
    """Keep what the form says of a new pool; gives the file.

    Raises:
        SkywardError: it cannot be kept.
        OSError: the file cannot be written.
    """
    from skyward_core.client.launch import presets

    request = build_request(replace(form, pool=""))
    return presets.save(name, replace(request, script=script_argument(request.script)))


def form_from_preset(preset: Preset) -> tuple[Form, list[str]]:
    """The form filled in, and what could not be, in words."""
    from skyward_core.client.launch.presets import NO_SCRIPT, drop_unknown

    request, said = preset.request()
    try:
        request = replace(request, script=str(path_of(request.script)))
    except SkywardError as error:  # an example that there is not any more
        said.append(str(error))
        request = replace(request, script=NO_SCRIPT)
    request, more = drop_unknown(request)
    said += more
    strange = fieldless_options(request)
    said += [f"the form has no field for {sanitize_line(name)}" for name in strange]
    named = (*request.settings, *request.plugin_settings)
    blank = {name: DEFAULTS[name] for name in strange if name in DEFAULTS and name not in named}
    settings = {name: text for name, text in request.settings.items() if name not in strange}
    given = {name: text for name, text in request.plugin_settings.items() if name not in strange}
    form = form_from_request(replace(request, settings=settings, plugin_settings=given, **blank))
    name = request.pool or ""
    return replace(form, script="" if request.script == NO_SCRIPT else form.script, pool="", name=name), said
