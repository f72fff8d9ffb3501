"""The launch form in texts, and the request that it makes: of a pool to create and a call to make."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import count as count_from
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward_core.front.providers import DEFAULT, available
from skyward_core.front.user_files import expanded
from skyward_core.model.errors import ScriptError, SkywardError, SpecError, UsageError
from skyward_core.views.views import PoolView

from .launch_packages import PROJECT, named_by
from .packaged import located, meant, named
from .words import count, one_line

if TYPE_CHECKING:
    from skyward_core.front.launch_plan import LaunchPlan
    from skyward_core.front.launch_request import LaunchRequest
    from skyward_core.front.scripts import FunctionInfo
    from skyward_core.model.setting import Setting

# Ids on the form's screen beside those of its fields, inside them, too; a provider's field has another.
OTHER_IDS = frozenset(
    [
        "label",
        "sides",
        "form",
        "argument-fields",
        "call",
        "check",
        "code",
        "fields",
        "starts",
        "hint",
        "options",
        "last",
        "launch",
        "message",
        "plan",
        "where",
        "why",
        "market",
        "money",
        "wait-label",
        "gangs",
        "plugin-fields",
        "image-fields",
        "image-arguments",
        "plugin-arguments",
    ]
)
_BOXES = ("keep", "one", "sweep")  # fields that are boxes of one
ALL_NODES = "all"
RANKS = "ranks"
_NUMBERS = {
    "nodes": ("nodes", 1024),
    "ranks": ("ranks per node", 64),
}  # by field: what it counts, and the most


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """A provider that the form offers, as it declares itself.

    Attributes:
        fields: its settings that have a field in the form, by the field's id.
        chooses: whether it has offers to choose from.
        costs: whether its machines may cost money.
    """

    name: str
    label: str
    fields: Mapping[str, Setting]
    chooses: bool = False
    costs: bool = False

    @property
    def names_machines(self) -> bool:
        """Whether its settings say which machines, and so how many."""
        return any(setting.names_machines for setting in self.fields.values())


@cache
def provider_choices() -> Mapping[str, ProviderChoice]:
    """The providers that there are; of a declared one that cannot be loaded, too: the form says why when it is used."""
    taken = {field.name for field in fields(Form)} | OTHER_IDS
    choices = {}
    for each in available():
        shown = {_free_id(own.name, taken): own for own in each.settings if own.field is not None}
        label = f"{each.name}: {each.about}" if each.about else each.name
        choices[each.name] = ProviderChoice(each.name, label, shown, each.chooses, each.costs)
        taken |= set(shown)
    return choices


def _free_id(name: str, taken: Collection[str]) -> str:
    """An id for a setting's field: its name, unless that is another field's."""
    return (
        name
        if name not in taken
        else next(f"{name}-{n}" for n in count_from(2) if f"{name}-{n}" not in taken)
    )


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
    """The form as it stands, in texts.

    Attributes:
        whole: whether the script is run as it stands; ``arguments`` are words of its own then.
        pool: key of a live pool to use, or empty for a new one.
        settings: of providers, by their fields' ids.
        allocation, max_hourly, selection, budget, wait: heeded where the provider has offers, or costs something.
        nodes: a number, or a range such as "2:8"; empty for all hosts, where the provider has hosts.
        sweep: whether arguments' values are lists, of which each combination is run.
        gang: of a sweep, on how many nodes each; "all", or empty for one rank each.
        parameters: of plugins, by names such as "torch.backend"; heeded of those that are on.
        packages: as :func:`.launch_packages.choice_of` writes it.
        image: of the ranks' environment, texts such as "pip=einops".
        timeout, debug_wait, torchrun: of a launch that the form was filled with; no field of the screen shows them,
            its plan does.
    """

    script: str = ""
    function: str = ""
    whole: bool = False
    arguments: str = ""
    python: str = ""
    pool: str = ""
    name: str = ""
    provider: str = DEFAULT
    settings: Mapping[str, str] = field(default_factory=dict)
    accelerator: str = ""
    allocation: str = ""
    max_hourly: str = ""
    selection: str = ""
    budget: str = ""
    wait: str = ""
    nodes: str = "4"
    ranks: str = "1"
    plugins: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    packages: str = ""
    outputs: str = ""
    keep: bool = True
    one: bool = False
    sweep: bool = False
    gang: str = ""
    timeout: str = ""
    debug_wait: str = ""
    torchrun: bool = False
    image: str = ""


def path_of(script: str) -> Path:
    """The file that the form's text names.

    Raises:
        UsageError: it names an example that there is not.
    """
    return expanded(located(script.strip()))


def is_job(script: str) -> bool:
    """Whether the form's text names a job file, not a script."""
    return script.strip().lower().endswith((".yaml", ".yml"))


def functions_of(script: str) -> list[FunctionInfo]:
    """The functions of a script; none where it can only be run as a whole.

    Raises:
        FieldError: there is no script, or it cannot be read.
    """
    from skyward_core.front.scripts import has_functions, list_functions

    if not script.strip():
        raise FieldError("script", "name a script, or press {launch.files} to pick one or an example")
    try:
        return list_functions(path) if has_functions(path := path_of(script)) else []
    except ScriptError as error:
        example = f"; there is an example of that name: {found}" if (found := meant(path)) else ""
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


def patterns_of(text: str) -> list[str]:
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
        return patterns_of(text)
    except ValueError:  # somebody is typing a quotation
        return [text]


def _number(text: str) -> Any:
    """A number; what is none stays as it is, and is refused with the other values that make no sense."""
    try:
        return int(text)
    except ValueError:
        return _text(text)


def _amount(text: str) -> Any:
    """As :func:`_number`, with cents."""
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return _text(text)


def _ranks(text: str) -> Any:
    return None if text.strip() == "1" else _number(text)


def _seconds(text: str) -> float | None:
    """A time-out.

    Raises:
        UsageError: it is none.
    """
    if not text.strip():
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise UsageError(f"a rank may take a number of seconds, not {text!r:.40}")
    return seconds


def _gang_nodes(text: str) -> Any:
    words = text.strip().lower()
    return None if words == ALL_NODES or words.endswith(RANKS) else _number(text)


def _gang_ranks(text: str) -> Any:
    words = text.strip().lower()
    return _number(words.removesuffix(RANKS)) if words.endswith(RANKS) else None


class _Row(NamedTuple):
    """How a field of a request stands in the form."""

    field: str
    read: Callable[[Any], Any] = _text


_ROWS: dict[str, _Row] = {
    "function": _Row("function"),
    "arguments": _Row("arguments", _pairs),
    "python": _Row("python"),
    "one": _Row("one", bool),
    "sweep": _Row("sweep", bool),
    "gang": _Row("gang", lambda text: text.strip().lower() == ALL_NODES),
    "gang_nodes": _Row("gang", _gang_nodes),
    "gang_ranks": _Row("gang", _gang_ranks),
    "keep": _Row("keep", bool),
    "timeout": _Row("timeout", _seconds),
    "torchrun": _Row("torchrun", bool),
}
_POOL_ROWS: dict[str, _Row] = {  # those that have no say where a pool is used that is up
    "pool": _Row("name"),
    "provider": _Row("provider", str),
    "nodes": _Row("nodes", _number),  # a range stays text
    "ranks_per_node": _Row("ranks", _ranks),
    "accelerator": _Row("accelerator"),
    "plugins": _Row("plugins", tuple),
    "lock": _Row("packages", named_by("lock")),
    "requirements": _Row("packages", named_by("requirements")),
    PROJECT: _Row("packages", lambda text: text == PROJECT),
    "outputs": _Row("outputs", _patterns),
    "debug_wait": _Row("debug_wait"),
    "image_settings": _Row("image", _pairs),
}
_MARKET_ROWS: dict[str, _Row] = {  # of providers that have offers
    "allocation": _Row("allocation"),
    "max_hourly_cost": _Row("max_hourly", _amount),
    "selection": _Row("selection"),
    "wait_for_capacity": _Row("wait"),
}
_MONEY_ROWS: dict[str, _Row] = {"budget": _Row("budget", _amount)}  # of those whose machines cost something


def rows_of(provider: str) -> dict[str, _Row]:
    """What is asked of a pool that is made with a provider."""
    choice = provider_choices().get(provider)
    market = _MARKET_ROWS if choice and choice.chooses else {}
    return _ROWS | _POOL_ROWS | market | (_MONEY_ROWS if choice and choice.costs else {})


def request_of(form: Form) -> LaunchRequest:
    """What the form asks for.

    Raises:
        UsageError: there is no such example.
    """
    from skyward_core.front.launch_request import LaunchRequest

    rows = _ROWS if form.pool else rows_of(form.provider)
    said = {name: row.read(getattr(form, row.field)) for name, row in rows.items()}
    of_new = {"settings": dict(settings_of(form)), "plugin_settings": dict(_parameters_of(form))}
    pool = {"pool": _name_of(form.pool)} if form.pool else of_new
    whole = {"function": None, "arguments": (), "script_args": said["arguments"]}
    # A function that is chosen in a whole script's place has no use for torchrun's variables.
    call = whole if form.whole else {"torchrun": False}
    return LaunchRequest(script=str(path_of(form.script)), **said | pool | call)


def _used(form: Form, pools: Collection[PoolView]) -> PoolView | None:
    """The live pool that the form names."""
    return next((pool for pool in pools if pool.key == form.pool and pool.is_live), None)


def _name_of(pool: str) -> str:
    """A pool's name, from its key."""
    return pool.partition(".")[0]


def settings_of(form: Form) -> Iterator[tuple[str, str]]:
    """What the provider's fields say, by the settings' names."""
    for id, setting in fields_of(form.provider).items():
        text = setting.written(form.settings.get(id, ""))
        if text or (setting.required and setting.option):
            yield setting.name, text


def _parameters_of(form: Form) -> Iterator[tuple[str, str]]:
    """What is given to the plugins that are on."""
    for name, text in form.parameters.items():
        if text and name.rpartition(".")[0] in form.plugins:
            yield name, text


def fields_of(provider: str) -> Mapping[str, Setting]:
    """The settings of a provider, by their fields' ids."""
    choice = provider_choices().get(provider)
    return choice.fields if choice else {}


def check(form: Form, pools: Collection[PoolView], *, launching: bool = False) -> LaunchPlan:
    """Turn the form into a launch.

    Args:
        launching: as of :meth:`~skyward_core.front.launch_request.LaunchRequest.plan`.

    Raises:
        FieldError: names the first field that is wrong.
    """
    try:
        return _checked(form, {pool.name: pool for pool in pools if pool.is_live}, launching=launching)
    except SkywardError as error:
        id = _id_of(error.field, form)
        message = error.reason if isinstance(error, SpecError) else str(error)
        said = _not_a_number(id, form) if id in _NUMBERS else message
        raise FieldError(id, said, error.field.partition("arguments.")[2]) from error


def _checked(form: Form, live: Mapping[str, PoolView], *, launching: bool) -> LaunchPlan:
    form = _with_what_runs(form)
    _check_words("arguments", shlex.split, form.arguments)
    request_of(form).call()  # first what stands above the pool
    if form.pool:
        used = _used(form, live.values())
        if used is None:
            name = _name_of(form.pool)
            raise FieldError("pool", f"pool {name} is not up any more; choose another or a new one")
        return request_of(form).plan(launching=launching).on(used).with_gangs()
    if not form.name.strip():
        form = replace(form, name=free_name(path_of(form.script), live))
    elif form.name.strip() in live:
        raise FieldError(
            "name", f"a pool named {form.name.strip()} is already up: use it, or give another name"
        )
    for id, setting in fields_of(form.provider).items():
        if setting.required and not setting.written(form.settings.get(id, "")):
            look = setting.field() if setting.field else None
            raise FieldError(id, (look and look.missing) or f"{setting.name} is needed: {setting.help}")
    _check_words("image-fields", shlex.split, form.image)
    _check_words("outputs", patterns_of, form.outputs)
    plan = request_of(form).plan(launching=launching).asking().giving_way()
    _check_numbers(form, plan)
    return plan.with_gangs()


def _check_words(id: str, split: Callable[[str], object], text: str) -> None:
    try:
        split(text)
    except ValueError as error:
        raise FieldError(id, str(error)) from error


def _with_what_runs(form: Form) -> Form:
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
        raise FieldError(
            "nodes", f"{nodes} nodes, and {there}: name more hosts, or leave nodes empty for all"
        )


def _not_a_number(id: str, form: Form) -> str:
    what, most = _NUMBERS[id]
    range_of = " or a range such as 2:8," if id == "nodes" else ""
    return (
        f"{what}: a whole number from 1 to {most:,},{range_of} not {getattr(form, id).strip() or 'nothing'}"
    )


def _id_of(field: str, form: Form) -> str:
    """The form's field that stands for one of a request."""
    own = fields_of(form.provider)
    of_setting = {f"settings.{setting.name}": id for id, setting in own.items()}
    if field == "provider" or field.startswith("settings."):
        return of_setting.get(field, next(iter(own), "provider"))
    if field == "image_settings":
        return "image-fields"
    if field == "plugin_settings":
        return "plugin-fields"
    row = rows_of(form.provider).get(field.partition(".")[0])
    if row is not None and row.field in _BOXES:
        return "options"
    return row.field if row else "script"


def free_name(script: Path, taken: Collection[str]) -> str:
    """A pool name made of the script's, that no live pool has: ``ddp``, ``ddp-2``."""
    letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in script.stem.lower())
    stem = letters.strip("-")[:40].strip("-") or "pool"
    names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def _job_options(form: Form) -> Iterator[str]:
    if pool := _name_of(form.pool) or form.name.strip():
        yield from ("-c", pool)
    if not form.pool and form.provider != DEFAULT:
        yield from ("--provider", form.provider)
        for name, text in settings_of(form):
            yield from ("--set", f"{name}={text}")
    for word in _pairs(form.arguments):
        yield from ("--env", word)


def python_script(form: Form, pools: Collection[PoolView]) -> str:
    """The same launch as a Python script; a comment where there is none."""
    if is_job(form.script):
        return f"import skyward_core as sky\n\ntask = sky.Task.from_yaml({str(path_of(form.script))!r})\n"
    try:
        return request_of(form).snippet(_used(form, pools))
    except SkywardError as error:
        return f"# {one_line(str(error))}"


def command_line(form: Form) -> str:
    """The same launch as a command to type; a comment where there is none."""
    if is_job(form.script):
        return shlex.join(["skyward-tui", "launch", form.script.strip(), *_job_options(form)])
    try:
        request = request_of(form)
        called = named(request.script) if form.script.strip() else "SCRIPT"
        return request.command_line("skyward-tui", "run", called=called)
    except SkywardError as error:
        return f"# {one_line(str(error))}"
