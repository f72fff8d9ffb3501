"""LaunchRequest: everything a user asks for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skyward_core.client.launch.discovery import by_name as plugin
from skyward_core.client.launch.discovery import missing_frameworks
from skyward_core.client.launch.discovery import parse_parameters as values_of_plugins
from skyward_core.client.launch.image_options import ImageOptions, option_error, parse_image_options
from skyward_core.client.launch.launch_plan import LaunchPlan
from skyward_core.model.errors import SkywardError, SpecError, UsageError, set_error_field
from skyward_core.model.provider_capabilities import Offers, RunsHere, costs_money, declared_settings
from skyward_core.model.specs import Image, Options, PoolSpec, Worker
from skyward_core.plugins.plugin import transform_image
from skyward_core.providers import DEFAULT_PROVIDER, built_in_names, provider_class
from skyward_core.providers.pool_planning import make_pool_spec
from skyward_core.providers.provider import make_provider, parse_settings
from skyward_core.store.state_folder import choose_workdir
from skyward_core.tasks import script_interpreter_selection
from skyward_core.tasks.argument_parsing import expand_combinations
from skyward_core.tasks.client_interpreter import is_own_environment
from skyward_core.tasks.packages.image_packages import image_python_version, read_image_packages
from skyward_core.tasks.packages.project_root import satisfies
from skyward_core.tasks.script_inspection import (
    FunctionInfo,
    check_script_folder,
    describe_script,
    find_function,
    list_commands,
    parse_arguments,
    split_target,
)
from skyward_core.tasks.script_interpreter_selection import (
    QueryPython,
    choose_interpreter,
    find_base,
    make_interpreter,
    own_base_python,
)
from skyward_core.util.user_files import expand_user
from skyward_core.views.pool_view import TrialSheet

if TYPE_CHECKING:
    from skyward_core.model.provider_settings import Setting
    from skyward_core.model.script_interpreter import Interpreter
    from skyward_core.tasks.packages.package_specs import PackageSpecs
    from skyward_core.views.pool_view import PoolView


WAYS: Mapping[str, str] = {"gang": "every rank", "gang_nodes": "some nodes", "gang_ranks": "some ranks"}
"""Fields of a request that have each combination run by a gang, and on what."""


def check_gang_options(said: Mapping[str, object], options: Mapping[str, str], *, sweep: bool, detach: bool) -> None:
    """See whether it does.

    Args:
        said: what these fields say.
        options: what fields are called on a command line.
        sweep, detach: what the request says of these.

    Raises:
        UsageError: it does not; ``field`` says which.
    """
    asked = [name for name in WAYS if said[name] is not None and said[name] is not False]
    if not asked:
        return
    name, *others = reversed(asked)
    what = f"{options[name]} has each combination of a sweep run on {WAYS[name]}, and"
    with set_error_field(name):
        many, of = said[name], name.removeprefix("gang_")
        if name != "gang" and (not isinstance(many, int) or isinstance(many, bool) or many < 1):
            raise UsageError(f"each combination runs on a number of {of}, 1 at least, not on {many!r:.40}")
        if not sweep:
            raise UsageError(f"{what} goes with --sweep")
        if detach:
            raise UsageError(f"{what} needs its client to the end: leave --detach out")
        if others:
            raise UsageError(f"{what} {options[others[0]]} on {WAYS[others[0]]}: leave one of the two out")


HOSTS = "--hosts"
"""The one setting of providers that has an option of its own on a command line."""

# What each field is called on a command line, in the order in which they are written there.
OPTIONS: Mapping[str, str] = {
    "arguments": "--arg",
    "sweep": "--sweep",
    "gang": "--gang",
    "gang_nodes": "--gang-nodes",
    "gang_ranks": "--gang-ranks",
    "python": "--python",
    "provider": "--provider",
    "settings": "--set",
    "nodes": "--nodes",
    "ranks_per_node": "--ranks-per-node",
    "accelerator": "--accelerator",
    "allocation": "--allocation",
    "max_hourly_cost": "--max-hourly",
    "selection": "--selection",
    "budget": "--budget",
    "wait_for_capacity": "--wait-for-capacity",
    "debug_wait": "--debug-wait",
    "plugins": "--plugin",
    "plugin_settings": "--plugin-set",
    "image_settings": "--image-set",
    "lock": "--lock",
    "requirements": "--requirements",
    "project": "--project",
    "outputs": "--output",
    "pool": "--pool",
    "one": "--one",
    "torchrun": "--torchrun",
    "keep": "--keep",
    "detach": "--detach",
    "timeout": "--timeout",
}


def format_setting(setting: Setting | None, name: str, text: str) -> tuple[str, str]:
    """How a setting is given on a command line."""
    if setting is not None and setting.option == HOSTS:
        return HOSTS, text
    return OPTIONS["settings"], f"{name}={text}"


def parse_provider_settings(
    provider: str | None, hosts: str | None, settings: Sequence[str]
) -> tuple[str | None, dict[str, str]]:
    """The provider that is meant, and its settings, of what a command line says.

    Args:
        provider: its name; None where none was said.
        hosts: what ``--hosts`` was given: of a provider of ours, unless another one is named.
        settings: texts ``name=value``.

    Raises:
        UsageError: a setting is no such text, or the provider takes no hosts.
    """
    texts = dict(map(_parse_setting, settings))
    if hosts is not None:
        provider = provider or _default_hosts_provider()
        own = [each.name for each in declared_settings(provider_class(provider)) if each.option == HOSTS]
        if not own:
            raise UsageError(f"--hosts are reached over SSH, not by provider {provider}: leave one of them out")
        texts[own[0]] = hosts
    return provider, texts


def _parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: write a setting of the provider as KEY=VALUE")
    return name.strip(), value


def parse_plugin_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    plugin, _, parameter = name.strip().rpartition(".")
    if not (equals and plugin and parameter):
        raise UsageError(f"{OPTIONS['plugin_settings']} {text}: write a parameter of a plugin as PLUGIN.NAME=VALUE")
    return name.strip(), value


def _default_hosts_provider() -> str:
    """The provider of ours that is meant where hosts are given and no name."""
    for name in built_in_names():
        if any(each.option == HOSTS for each in declared_settings(provider_class(name))):
            return name
    raise UsageError(f"{HOSTS} goes with a provider: name it with --provider")


def script_python(
    script: Path, python: str | None, spec: PoolSpec, *, launching: bool = False
) -> tuple[Interpreter, PackageSpecs | None]:
    """The interpreter of a launch's script, and what a file of the project says that its image names; nothing is made.

    Where nobody chose one, or the one that was found is of another version than that file is for, it is that of an
    environment of the file's packages; and of what plugins bring, where nobody chose one and it lacks what the script
    imports as it is loaded.

    Args:
        python: what the person says; then it is that one.
        spec: the pool that is asked for.
        launching: whether the launch has begun. Before, nothing is run to learn a version: it may be a project's.

    Raises:
        SkywardError: it cannot be used; ``field`` says who chose it.
    """
    with set_error_field("script" if python is None else "python"):
        found = choose_interpreter(script, python, ask=_version_probe(launching))
    if spec.image.packages_by:
        return _project_python(found, spec.image, is_said=python is not None, ask=_version_probe(launching))
    elsewhere = found.chosen and not is_own_environment(found.prefix)
    if elsewhere or not spec.plugins or not missing_frameworks(script, found):
        return found, None
    brought = transform_image(spec.plugins, Image(), spec).describe()
    if not brought["pip"]:
        return found, None
    names = ", ".join(plugin.name for plugin in spec.plugins)
    environment = {name: list(brought[name]) for name in ("pip", "pip_indexes") if brought[name]}
    return make_interpreter(own_base_python(), environment, f"plugins of the pool: {names}"), None


def _version_probe(launching: bool) -> QueryPython:
    return script_interpreter_selection.query_python if launching else script_interpreter_selection.read_python


def _project_python(
    found: Interpreter, image: Image, *, is_said: bool, ask: QueryPython
) -> tuple[Interpreter, PackageSpecs | None]:
    folder = str(image.workdir or "")
    wanted, source = image_python_version(image, folder)
    fits = satisfies(found.version, wanted)
    if found.chosen and (fits or is_said or found.base):
        return found, read_image_packages(image, folder, found.version)
    with set_error_field(image.packages_by):
        base = find_base(wanted, source, ask=ask)
    packages = read_image_packages(image, folder, base.version)
    if packages is None:
        return found, None
    was = found.source if found.chosen else "this program's own Python"
    notes = () if fits else (f"{was} was passed over: it is {found.version}, and {source} asks for Python {wanted}",)
    name = Path(packages.source).name
    return make_interpreter(base, packages.add_to_image({}), name, (*found.notes, *notes)), packages


PACKAGES = ("lock", "requirements", "project")
"""Fields that are an image's; each names a file of the project with its packages."""
_MACHINES = ("accelerator", "allocation", "max_hourly_cost", "selection", "budget", "wait_for_capacity")
_SHAPE = (
    "provider",
    "settings",
    "nodes",
    "ranks_per_node",
    *_MACHINES,
    "debug_wait",
    "plugins",
    "plugin_settings",
    "image_settings",
    *PACKAGES,
    "outputs",
)
_OF_SPEC = {"name": "pool"}  # fields of a PoolSpec that are called otherwise here


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """A function of a script, what it is called with, and the pool; None where nothing was said.

    Nothing is looked up, loaded or checked before it is asked for: what makes no sense is refused by :meth:`plan` and
    :meth:`spec`.

    Attributes:
        script: path of the script.
        function: its name; None for the script's only one.
        arguments: texts ``name=value``.
        sweep: whether values there are lists (``lr=0.1,0.01``, ``seed=1..5``), of which each combination is a task of
            its own on one rank.
        gang: whether each combination of a sweep runs on every rank instead, one after the other.
        gang_nodes: on so many nodes each instead, as many at a time as the pool has room for.
        gang_ranks: the same, said in ranks: the nodes that have so many.
        script_args: the script's own arguments, where it is run as a whole; None to call a function of it.
        module: the module's name, where it is run as ``python -m`` does; the script is its file then.
        python: path of the interpreter that the script is loaded with, or its name in PATH; None for the one that is
            chosen for it.
        pool: the pool's name: one that is up is used as it is; None for a new one with a name made up.
        provider: its name.
        settings: of the provider, by the names that it declares, as texts.
        nodes: how many machines, or text such as "2:8" for as many as can be had; None for as many as the provider
            gives where nobody says.
        ranks_per_node: ranks on each of them; "gpu" for one per GPU.
        accelerator: what each of them carries, such as "A100-80GB:8".
        allocation: "on-demand", "spot", "spot-if-available" or "cheapest" of both.
        max_hourly_cost: dollars that an hour of one of them may cost, with disk and address.
        selection: "cheapest" first, or the region that was named "first".
        budget: dollars that the pool may cost.
        wait_for_capacity: how long a start tries again where there are no machines to be had, as a text ("2h").
        debug_wait: how long a rank waits at a breakpoint for somebody who debugs it, as a text ("10m").
        plugins: names, in order of entry.
        plugin_settings: parameters of theirs, by names such as "torch.backend", as texts.
        image_settings: of the ranks' environment, texts such as "pip=einops": see ``launch.image_options``.
        lock, requirements: paths, seen from the current folder, of what the ranks' packages are installed by.
        project: whether they are what the project's ``pyproject.toml`` depends on.
        outputs: patterns of files that ranks write and that are brought here, such as "out/**".
        one: whether it runs on one node only.
        torchrun: whether a whole script finds torchrun's variables where there is one rank, too.
        keep: whether the pool stays up afterwards.
        detach: whether to leave as soon as the function runs.
        timeout: seconds that a rank may take.
    """

    script: str
    function: str | None = None
    arguments: Sequence[str] = ()
    sweep: bool = False
    gang: bool = False
    gang_nodes: int | None = None
    gang_ranks: int | None = None
    script_args: Sequence[str] | None = None
    module: str = ""
    python: str | None = None
    pool: str | None = None
    provider: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    nodes: int | str | None = None
    ranks_per_node: int | Literal["gpu"] | None = None
    accelerator: str | None = None
    allocation: str | None = None
    max_hourly_cost: float | None = None
    selection: str | None = None
    budget: float | None = None
    wait_for_capacity: str | None = None
    debug_wait: str | None = None
    plugins: Sequence[str] = ()
    plugin_settings: Mapping[str, str] = field(default_factory=dict)
    image_settings: Sequence[str] = ()
    lock: str | None = None
    requirements: str | None = None
    project: bool = False
    outputs: Sequence[str] = ()
    one: bool = False
    torchrun: bool = False
    keep: bool = False
    detach: bool = False
    timeout: float | None = None

    def __post_init__(self) -> None:
        kept = {
            "script": str(Path(self.script)),
            "function": self.function or None,
            "arguments": tuple(self.arguments),
            "script_args": None if self.script_args is None else tuple(self.script_args),
            "plugins": tuple(self.plugins),
            "outputs": tuple(self.outputs),
            "image_settings": tuple(self.image_settings),
            "settings": dict(self.settings),
            "plugin_settings": dict(self.plugin_settings),
        }
        for name, value in kept.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_options(
        cls,
        target: str,
        *,
        hosts: str | None = None,
        settings: Sequence[str] = (),
        plugin_settings: Sequence[str] = (),
        **said: Any,
    ) -> LaunchRequest:
        """What a command line asks for.

        Args:
            target: the script, or ``script:function``.
            hosts: what ``--hosts`` was given: of a provider of ours, unless another one is named.
            settings: texts ``name=value``, of ``--set``.
            plugin_settings: texts ``plugin.name=value``, of ``--plugin-set``.
            said: the other fields, by their names.

        Raises:
            UsageError: one of these is no such text, or the provider takes no hosts.
        """
        script, function = split_target(target)
        said["provider"], texts = parse_provider_settings(said.get("provider"), hosts, settings)
        of_plugins = dict(map(parse_plugin_setting, plugin_settings))
        return cls(script=str(script), function=function, settings=texts, plugin_settings=of_plugins, **said)

    @property
    def shapes_pool(self) -> bool:
        """Whether it says what the pool is like, so that one that is up already will not do."""
        return any(value is not False and value not in (None, (), {}) for value in self._shape_values())

    def on_pool(self, name: str) -> LaunchRequest:
        """The same on a pool that is up, which is used as it is and stays."""
        return replace(self, pool=name, keep=False, **{each: _DEFAULTS[each] for each in _SHAPE})

    def _shape_values(self) -> Iterator[Any]:
        return (getattr(self, name) for name in _SHAPE)

    # -- what it comes to ----------------------------------------------------------------------------------

    def plan(self, *, launching: bool = False) -> LaunchPlan:
        """What will be run, and on what; nothing of the script is executed.

        Args:
            launching: whether the launch has begun. Before, its interpreter is not run either.

        Raises:
            SkywardError: something makes no sense; its ``field`` says what of this.
        """
        gangs = {name: getattr(self, name) for name in WAYS}
        check_gang_options(gangs, OPTIONS, sweep=self.sweep, detach=self.detach)
        if self.sweep and self.one:
            with set_error_field("one"):
                raise UsageError("each combination of a sweep runs on one rank anyway: leave --one out")
        function, values = self.call()
        texts = expand_combinations(self.arguments) if self.sweep else []
        spec, interpreter, packages = self._spec(launching)
        return LaunchPlan(
            script=Path(self.script),
            interpreter=interpreter,
            packages=packages,
            function=function,
            values=values,
            whole=self.script_args is not None,
            pool=spec,
            plugins=spec.plugins,
            plugin_values=values_of_plugins(self.plugins, self.plugin_settings),
            one=self.one,
            keep=self.keep or self.detach,
            timeout=self.timeout,
            combinations=[parse_arguments(function, each) for each in texts],
            sheet=self._make_sheet(texts) if texts else None,
            gang_ranks=self.gang_ranks,
            detach=self.detach,
        )

    def _make_sheet(self, texts: Sequence[Sequence[str]]) -> TrialSheet:
        gang = self.gang or self.gang_nodes is not None or self.gang_ranks is not None
        return TrialSheet.from_texts(texts, gang=gang, nodes=self.gang_nodes or 0)

    def call(self) -> tuple[FunctionInfo, dict[str, Any]]:
        """The function, and its arguments as values; of a whole script, what stands for them.

        Raises:
            UsageError: there is no such function, or it takes no such arguments; ``field`` says which.
        """
        if self.script_args is not None:
            more = {"torchrun": True} if self.torchrun else {}
            return self._script_function(), {"args": list(self.script_args), "module": self.module, **more}
        if self.torchrun:
            with set_error_field("torchrun"):
                raise UsageError(
                    f"{OPTIONS['torchrun']} is for a script that is run as a whole, and a function of it is called"
                )
        with set_error_field("script"):
            function = find_function(Path(self.script), self.function)
        if self.sweep and function.is_generator:
            with set_error_field("sweep"):
                raise UsageError(f"{function.name} is a generator function, and a sweep wants one result of each call")
        with set_error_field("arguments"):
            every = expand_combinations(self.arguments) if self.sweep else [self.arguments]
            return function, next(parse_arguments(function, each) for each in every)

    def _script_function(self) -> FunctionInfo:
        if self.sweep:
            with set_error_field("sweep"):
                raise UsageError(
                    "a sweep is of a function's arguments, and a whole script is run: leave one of them out"
                )
        with set_error_field("script"):
            if not self.module and (commands := list_commands(Path(self.script))):
                raise UsageError(
                    f"{commands[0].name} of {self.script} is a command of sky.app, which brings its own machines up: "
                    f"`python -m skyward_core {self.script}` runs it, and the command `run`"
                )
            if self.function is not None:
                raise UsageError(
                    f"{self.script}:{self.function} is a function, and what stands behind -- goes to a whole script: "
                    "leave one of them out"
                )
            if self.arguments:
                raise UsageError(f"{self.script} is run as a whole, and takes no --arg: what is its own goes behind --")
            return describe_script(Path(self.script), self.module)

    def spec(self) -> PoolSpec:
        """The pool that is asked for; ranks find in it what lies beside the script.

        Raises:
            SkywardError: a value makes no sense; its ``field`` says which: that of a setting is ``settings.NAME``.
        """
        return self._spec(launching=False)[0]

    def _spec(self, launching: bool) -> tuple[PoolSpec, Interpreter, PackageSpecs | None]:
        """The same, with the interpreter of the script, which is chosen once, and what a file says of its packages."""
        with set_error_field("provider"):
            provider = self._make_provider()
        with set_error_field("plugins"):
            given = values_of_plugins(self.plugins, self.plugin_settings)
            plugins = [plugin(name, **given.get(name, {})) for name in self.plugins]
        asked = parse_image_options(self.image_settings)
        secrets = asked.read_secrets()
        image = self._image(asked, secrets)
        asked.check_files(Path(choose_workdir(Path(self.script)) or "."), travels=not isinstance(provider, RunsHere))
        try:
            spec = make_pool_spec(
                self.script,
                name=self.pool,
                provider=provider,
                nodes=self.nodes,
                accelerator=self.accelerator,
                allocation=self.allocation,
                max_hourly_cost=self.max_hourly_cost,
                selection=self.selection,
                options=self._build_options(provider, list(secrets.values())),
                image=image,
                plugins=plugins,
                worker=Worker(ranks_per_node=1 if self.ranks_per_node is None else self.ranks_per_node),
            )
        except SpecError as error:
            raise SpecError(error.reason, _OF_SPEC.get(error.field, error.field)) from error
        if not isinstance(spec.provider, RunsHere):
            with set_error_field("script"):
                check_script_folder(Path(self.script))
        found, packages = script_python(Path(self.script), self.python, spec, launching=launching)
        return replace(spec, interpreter=found if found.chosen else None), found, packages

    def _build_options(self, provider: Any, secrets: Sequence[str]) -> Options | None:
        """How the pool behaves, where that is said.

        Raises:
            UsageError: it cannot behave so with that provider.
        """
        said: dict[str, Any] = {"secrets": secrets} if secrets else {}
        if self.budget is not None:
            if not costs_money(provider):
                with set_error_field("budget"):
                    raise UsageError(f"machines of provider {provider.name} cost nothing: leave the budget out")
            said["budget"] = self.budget
        if self.wait_for_capacity is not None:
            if not isinstance(provider, Offers):
                with set_error_field("wait_for_capacity"):
                    raise UsageError(
                        f"provider {provider.name} takes machines as they are, and waits for none: leave the wait out"
                    )
            said["wait_for_capacity"] = _parse_time(self.wait_for_capacity)
        if self.debug_wait is not None:
            said["debug_wait"] = _parse_time(self.debug_wait)
        return Options(**said) if said else None

    def _image(self, asked: ImageOptions, secrets: Mapping[str, str]) -> Image:
        try:
            return self._build_image(asked, secrets)
        except SpecError as error:
            raise option_error(error) from error

    def _build_image(self, asked: ImageOptions, secrets: Mapping[str, str]) -> Image:
        return Image(
            pip=asked.list_values("pip"),
            apt=asked.list_values("apt"),
            setup=asked.list_values("setup"),
            includes=asked.list_values("includes"),
            excludes=asked.list_values("excludes"),
            env={**asked.env, **secrets},
            workdir=choose_workdir(Path(self.script)),
            lock=None if self.lock is None else _absolute_path(self.lock),
            requirements=None if self.requirements is None else _absolute_path(self.requirements),
            project=self.project,
            outputs=self.outputs,
        )

    def _make_provider(self) -> Any:
        found = provider_class(self.provider or DEFAULT_PROVIDER)
        for each in declared_settings(found):
            if each.required and each.name not in self.settings:
                how = " ".join(format_setting(each, each.name, each.example or "VALUE"))
                with set_error_field(f"settings.{each.name}"):
                    raise UsageError(f"which {each.name}? {each.help}: {how}")
        return make_provider(found, self.settings)

    # -- how else it is said -------------------------------------------------------------------------------

    def to_argv(self, *, called: str | None = None) -> list[str]:
        """The same for a command line: what stands behind the program's name and its command.

        Args:
            called: what the script is called there, where that is not its path.

        Raises:
            UsageError: that cannot be said there so that it is understood as it is meant.
        """
        parse_image_options(self.image_settings)  # no secret is written out
        words = [word for name, option in OPTIONS.items() for word in self._option_words(name, option)]
        target = self._target_word(called)
        behind = ["--", *self.script_args] if self.script_args is not None else []
        if target.startswith("-"):
            target = f"./{target}"  # no option, and no word behind --
        return [*(("-m", self.module) if self.module else (target,)), *words, *behind]

    def command_line(self, *program: str, called: str | None = None) -> str:
        """The same as a line for a shell.

        Args:
            program: its name, and its command.
            called: as of :meth:`words`.

        Raises:
            UsageError: as :meth:`words`.
        """
        return shlex.join([*program, *self.to_argv(called=called)])

    def snippet(self, live: PoolView | None = None) -> str:
        """The same as a Python script, to be run in this folder.

        Args:
            live: the pool that is up and is used.

        Raises:
            SkywardError: something makes no sense, or cannot be written so; its ``field`` says what of this.
        """
        from skyward_core.client.launch.python_snippet import write_snippet

        plan = self.plan()
        if self.sweep:
            with set_error_field("sweep"):
                how = " >> pool"
                if self.gang:
                    how = " @ pool"
                elif (many := self.gang_nodes or self.gang_ranks) is not None:
                    how = f".with_{'nodes' if self.gang_nodes else 'ranks'}({many}) @ pool"
                raise UsageError(f"as Python a sweep is written sky.sweep(FUNCTION, NAME=[...]){how}")
        provider = provider_class(self.provider or DEFAULT_PROVIDER)
        settings = parse_settings(provider, self.settings)
        plan = plan if live is None else plan.on_pool(live)
        script = write_snippet(
            plan,
            name=self.pool,
            provider=provider,
            settings=settings,
            secrets=parse_image_options(self.image_settings).secrets,
        )
        # Nothing in a script says by which Python it is started.
        return script if self.python is None else f"# To be run with {plan.interpreter.path}\n{script}"

    def _target_word(self, called: str | None) -> str:
        behind = f":{self.function}" if self.function else ""
        understood = split_target(self.script + behind)
        if understood != (Path(self.script), self.function):
            meant = " and its function ".join(map(str, filter(None, understood)))
            raise UsageError(f"on a command line {self.script}{behind} means {meant}; give the file another name")
        return (called or self.script) + behind

    def _option_words(self, name: str, option: str) -> Iterator[str]:
        value = getattr(self, name)
        if name == "settings":
            yield from self._provider_words()
        elif name == "plugin_settings":
            yield from self._plugin_words(option)
        elif value is True:
            yield option
        elif isinstance(value, tuple):
            for each in value:
                yield from (option, each)
        elif value is not None and value is not False:
            yield from (option, str(value))

    def _provider_words(self) -> Iterator[str]:
        if not self.settings:
            return
        try:
            declared = {
                each.name: each for each in declared_settings(provider_class(self.provider or DEFAULT_PROVIDER))
            }
        except SkywardError:  # who asks for the pool is told
            declared = {}
        for name, text in self.settings.items():
            if not name.isidentifier():
                raise UsageError(f"no setting of a provider is called {name!r}")
            yield from format_setting(declared.get(name), name, text)

    def _plugin_words(self, option: str) -> Iterator[str]:
        for name, text in self.plugin_settings.items():
            found, _, parameter = name.rpartition(".")
            if not (found.strip() and parameter.isidentifier()) or "=" in found or found != found.strip():
                raise UsageError(f"no parameter of a plugin is called {name!r}")
            yield from (option, f"{name}={text}")


_DEFAULTS: Mapping[str, Any] = {
    each.name: {} if each.default is MISSING else each.default for each in fields(LaunchRequest)
}


def _parse_time(text: str) -> float | str:
    """Seconds, or words for them."""
    try:
        return float(text)
    except ValueError:
        return text


def _absolute_path(path: str) -> str:
    """A path as the shell has it: an image's own begins in the working folder of its ranks."""
    return str(expand_user(path).absolute())
