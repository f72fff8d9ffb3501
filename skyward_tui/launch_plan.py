"""What the launch form says, checked: a pool to create and a call to make; and the same as a command line."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from itertools import count as count_from
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.front import providers
from skyward_core.front.providers import Asks, HasHosts, Priced, make, settings_of
from skyward_core.model.errors import SkywardError
from skyward_core.views.views import PoolView

from .packaged import located, named
from .words import count, money

if TYPE_CHECKING:
    from skyward_core.front.providers import Setting
    from skyward_core.front.scripts import FunctionInfo
    from skyward_core.model.accelerators import Accelerator
    from skyward_core.model.spec import PoolSpec

HOSTS_SHOWN = 6
# Ids on the form's screen beside those of its fields, inside them, too; a provider's field has another.
OTHER_IDS = frozenset(
    {"label", "sides", "form", "hint", "options", "last", "launch", "message", "plan", "why"}
)
GANG_PLUGINS = ("torch", "jax")


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """A provider that the form offers, as it declares itself; ``make`` may raise :class:`FieldError`.

    Attributes:
        fields: its settings that have a field in the form, by the field's id.
    """

    name: str
    label: str
    node: str
    make: Callable[[Form], Any]
    fields: Mapping[str, Setting]
    price_hourly: float = 0.0

    @property
    def names_machines(self) -> bool:
        """Whether its settings say which machines, and so how many."""
        return any(setting.names_machines for setting in self.fields.values())


@cache
def provider_choices() -> Mapping[str, ProviderChoice]:
    """The providers that there are; of a declared one that cannot be loaded, too: the form says why when it is used."""
    taken = {field.name for field in fields(Form)} | OTHER_IDS
    choices = {}
    for name in providers.names():
        choices[name] = choice = _choice(name, taken)
        taken |= set(choice.fields)
    return choices


def _choice(name: str, taken: Collection[str]) -> ProviderChoice:
    try:
        found = providers.by_name(name)
    except SkywardError as error:
        return ProviderChoice(name, name, "node", partial(_refused, str(error)), {})
    shown = {
        _free_id(setting.name, taken): setting for setting in settings_of(found) if setting.field is not None
    }
    price = found.price_hourly if isinstance(found, Priced) else 0.0
    make = partial(_made, found, shown)
    return ProviderChoice(name, f"{name}: {found.about}", found.machine, make, shown, price)


def _free_id(name: str, taken: Collection[str]) -> str:
    """An id for a setting's field: its name, unless that is another field's."""
    return (
        name
        if name not in taken
        else next(f"{name}-{n}" for n in count_from(2) if f"{name}-{n}" not in taken)
    )


def _refused(why: str, form: Form) -> Any:
    raise FieldError("provider", why)


def _made(found: Any, shown: Mapping[str, Setting], form: Form) -> Any:
    """A provider of what the form's fields say of it."""
    texts = {}
    for id, setting in shown.items():
        text = form.settings.get(id, "")
        try:
            value = setting.read(text) if text.strip() else ""
        except SkywardError as error:
            raise FieldError(id, str(error)) from error
        if value not in ("", [], ()):
            texts[setting.name] = text
        elif setting.required:
            look = setting.field() if setting.field else None
            raise FieldError(id, (look and look.missing) or f"{setting.name} is needed: {setting.help}")
    try:
        made = make(found, texts)
    except SkywardError as error:
        raise FieldError(next(iter(shown), "provider"), str(error)) from error
    return made.asking() if isinstance(made, Asks) else made


class FieldError(Exception):
    """A field of the form is wrong: which one, and what to do."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Form:
    """The form as it stands, in texts. ``pool``: name of a live pool to use, or empty for a new one; ``nodes``:
    empty for all hosts, where the provider has hosts; ``settings``: of providers, by their fields' ids."""

    script: str = ""
    function: str = ""
    arguments: str = ""
    pool: str = ""
    name: str = ""
    provider: str = providers.DEFAULT
    settings: Mapping[str, str] = field(default_factory=dict)
    accelerator: str = ""
    nodes: str = "4"
    ranks: str = "1"
    plugins: tuple[str, ...] = ()
    keep: bool = True
    one: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A checked form. ``spec`` is None where a live pool is used."""

    script: Path
    info: FunctionInfo
    kwargs: dict[str, Any]
    pool: str
    spec: PoolSpec | None
    plugins: tuple[Any, ...]
    keep: bool
    one: bool


def path_of(script: str) -> Path:
    """The file that the form's text names.

    Raises:
        UsageError: it names an example that there is not.
    """
    return Path(located(script.strip())).expanduser()


def functions_of(script: str) -> list[FunctionInfo]:
    """The functions of a script.

    Raises:
        FieldError: there is no script, or nothing in it to run.
    """
    from skyward_core.front.scripts import list_functions

    if not script.strip():
        raise FieldError("script", "name a script, or press ctrl+o to pick one or an example")
    try:
        return list_functions(path_of(script))
    except SkywardError as error:
        raise FieldError("script", str(error)) from error


def check(form: Form, pools: Collection[PoolView]) -> Launch:
    """Turn the form into a launch.

    Raises:
        FieldError: names the first field that is wrong.
    """
    from skyward_core.front.plugins import by_name

    functions = {info.name: info for info in functions_of(form.script)}
    info = functions.get(form.function) or next(iter(functions.values()))
    kwargs = arguments(info, form.arguments)
    script = path_of(form.script)
    live = {pool.name: pool for pool in pools if pool.is_live}
    try:
        if form.pool:
            if form.pool not in live:
                raise FieldError("pool", f"pool {form.pool} is not up any more; choose another or a new one")
            names = live[form.pool].spec.get("plugins", [])
            plugins = tuple(by_name(name) for name in names)
            return Launch(script, info, kwargs, form.pool, None, plugins, form.keep, form.one)
        plugins = tuple(by_name(name) for name in form.plugins)
    except SkywardError as error:
        raise FieldError("plugins", str(error)) from error
    spec = _spec(form, script, plugins, live)
    return Launch(script, info, kwargs, spec.name, spec, plugins, form.keep, form.one)


def arguments(info: FunctionInfo, text: str) -> dict[str, Any]:
    """``epochs=3 note="a b"`` as typed values.

    Raises:
        FieldError: says what is wrong with which argument.
    """
    from skyward_core.front.scripts import parse_arguments

    try:
        return parse_arguments(info, shlex.split(text))
    except (SkywardError, ValueError) as error:
        raise FieldError("arguments", str(error)) from error


def _spec(form: Form, script: Path, plugins: tuple[Any, ...], live: Collection[str]) -> PoolSpec:
    from skyward_core.front.launch_request import pool_spec
    from skyward_core.model.errors import SpecError

    name = form.name.strip() or free_name(script, live)
    if name in live:
        raise FieldError("name", f"a pool named {name} is already up: use it, or give another name")
    provider = provider_choices()[form.provider].make(form)
    nodes = _nodes(form, provider)
    ranks = _whole(form.ranks, "ranks", 64)
    accelerator = _accelerator(form.accelerator)
    try:
        return pool_spec(
            script,
            name=name,
            provider=provider,
            nodes=nodes,
            ranks_per_node=ranks,
            accelerator=accelerator,
            plugins=plugins,
        )
    except SpecError as error:
        raise FieldError(error.field, error.reason) from error


def _accelerator(text: str) -> Accelerator | None:
    from skyward_core import accelerators

    try:
        return accelerators.parse(text) if text.strip() else None
    except SkywardError as error:
        raise FieldError("accelerator", str(error)) from error


def _nodes(form: Form, provider: Any) -> int:
    if not isinstance(provider, HasHosts):
        return _whole(form.nodes, "nodes", 1024)
    there = len(provider.hosts)
    nodes = _whole(form.nodes, "nodes", 1024) if form.nodes.strip() else there
    if nodes > there:
        raise FieldError(
            "nodes",
            f"{nodes} nodes, and {count(there, 'host')}: name more hosts, or leave nodes empty for all",
        )
    return nodes


def _whole(text: str, field: str, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= most:
        what = "nodes" if field == "nodes" else "ranks per node"
        raise FieldError(field, f"{what}: a whole number from 1 to {most:,}, not {text.strip() or 'nothing'}")
    return value


def free_name(script: Path, taken: Collection[str]) -> str:
    """A pool name made of the script's, that no live pool has: ``ddp``, ``ddp-2``."""
    letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in script.stem.lower())
    stem = letters.strip("-")[:40].strip("-") or "pool"
    names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def command_line(form: Form) -> str:
    """The same launch as a command to type."""
    script = named(form.script.strip()) or "SCRIPT"
    words = ["skyward-tui", "run", f"{script}:{form.function}" if form.function else script]
    try:
        pairs = shlex.split(form.arguments)
    except ValueError:
        pairs = [form.arguments]
    for pair in pairs:
        words += ["--arg", pair]
    if form.pool:
        words += ["--pool", form.pool]
    else:
        words += ["--provider", form.provider]
        words += _settings(form)
        if form.nodes.strip():
            words += ["--nodes", form.nodes.strip()]
        if form.ranks.strip() not in ("", "1"):
            words += ["--ranks-per-node", form.ranks.strip()]
        if form.accelerator.strip():
            words += ["--accelerator", form.accelerator.strip()]
        for plugin in form.plugins:
            words += ["--plugin", plugin]
        if form.name.strip():
            words += ["--pool", form.name.strip()]
    if form.one:
        words.append("--one")
    if form.keep:
        words.append("--keep")
    return shlex.join(words)


def _settings(form: Form) -> Iterator[str]:
    """The words for what the provider's fields say."""
    choice = provider_choices().get(form.provider)
    for id, setting in choice.fields.items() if choice else ():
        text = setting.written(form.settings.get(id, ""))
        if setting.option and (text or setting.required):
            yield from (setting.option, text)
        elif text:
            yield from ("--set", f"{setting.name}={text}")


def plan(launch: Launch, form: Form, pools: Collection[PoolView]) -> list[tuple[str, str]]:
    """What will happen, as (heading, text)."""
    from skyward_core.front.scripts import advice, missing_of

    price = 0.0
    if launch.spec is not None:
        choice = provider_choices()[form.provider]
        spec = launch.spec
        world = spec.world_size
        what = f"pool {spec.name}: {count(spec.nodes, choice.node)} × {count(spec.ranks_per_node, 'rank')}"
        price = choice.price_hourly * spec.nodes
        rows = [("creates", f"{what}, world size {world:,}")]
        if isinstance(spec.provider, HasHosts):
            rows.append(("hosts", _listed(spec.provider.hosts[: spec.nodes])))
        if spec.accelerator is not None:
            rows.append(("needs", _needs(spec.accelerator)))
        rows.append(("cost", f"{money(price)}/h"))
        plugins = [plugin.name for plugin in launch.plugins]
        lack = "{0} is imported, and its plugin is off: the ranks will not meet"
    else:
        view = next(pool for pool in pools if pool.name == launch.pool and pool.is_live)
        plugins = plugins_of(view)
        lack = f"{{0}} is imported, and pool {view.name} has no plugin {{0}}: the ranks will not meet there"
        world = view.world_size
        what = f"pool {view.name}: {count(len(view.nodes), 'node')}, world size {world:,}"
        rows = [("uses", what), ("cost", "nothing new")]
    given = ", ".join(f"{name}={_shown(value)}" for name, value in launch.kwargs.items())
    where = "one rank" if launch.one else count(world, "rank") if world == 1 else f"all {world:,} ranks"
    streams = ", streaming what it yields" if launch.info.is_generator else ""
    rows.append(("runs", f"{launch.info.name}({given}) on {where}{streams}"))
    if plugins:
        rows.append(("plugins", ", ".join(plugins)))
    rows += [("note", advice(name)) for name in missing_of(launch.script)]
    if off := [name for name in frameworks_of(launch.script) if name not in plugins]:
        rows.append(("note", lack.format(off[0])))
    if launch.spec is not None and launch.spec.accelerator is not None and not price:
        # Machines that cost nothing are there already, and are taken as they are.
        rows.append(("note", f"nothing is rented: that there is {launch.spec.accelerator} is yours to know"))
    end = "the pool stays up; X tears it down" if launch.keep else "the pool is torn down when the run ends"
    rows.append(("then", end))
    return rows


def _shown(value: object) -> str:
    """A value as in source, or the text of one that is still to be made of it."""
    from skyward_core.front.scripts import Text

    return str(value) if isinstance(value, Text) else repr(value)


def _needs(accelerator: Accelerator) -> str:
    power = f", bf16 {accelerator.bf16_tflops:,.0f} TFLOP/s" if accelerator.bf16_tflops else ""
    each = f"{accelerator.min_memory_gb:g} GB{power}"
    return f"{accelerator.count} × {accelerator.maker} {accelerator.name} per node, each {each}"


def _listed(hosts: Sequence[str]) -> str:
    """Hosts as the plan has room for them."""
    more = len(hosts) - HOSTS_SHOWN
    return ", ".join(hosts[:HOSTS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def frameworks_of(script: Path) -> list[str]:
    """Frameworks that a script imports and whose ranks meet only through the plugin of that name."""
    from skyward_core.front.scripts import imports_of

    imported = imports_of(script)
    return [name for name in GANG_PLUGINS if name in imported]


def plugins_of(pool: PoolView) -> list[str]:
    """The names of the plugins that a pool was made with."""
    names = pool.spec.get("plugins")
    return [str(name) for name in names] if isinstance(names, list) else []
