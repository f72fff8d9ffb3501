"""What a request comes to: the call, the pool, and problems that are known before the launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.client.launch.image_options import LISTS, ImageOptions, option_error, parse_image_options
from skyward_core.client.launch.launch_request import OPTIONS, WAYS, LaunchRequest, format_setting, options_of
from skyward_core.client.launch.script_plugin_provider_discovery import (
    FunctionInfo,
    build_tasks,
    find_gang_frameworks,
    missing_frameworks,
    missing_imports,
    parse_parameters,
)
from skyward_core.model.errors import SpecError, UsageError, set_error_field
from skyward_core.model.offers import RentalPlan
from skyward_core.model.provider_capabilities import (
    Asks,
    HasHosts,
    Offers,
    Plans,
    Priced,
    Rents,
    RunsHere,
    TakesGpus,
    costs_money,
    declared_settings,
)
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.model.specs import Image, Options, PoolSpec, Worker
from skyward_core.plugins import by_name
from skyward_core.plugins.plugin import transform_image
from skyward_core.providers import DEFAULT_PROVIDER, pool_planning, provider_class
from skyward_core.providers.provider import make_provider
from skyward_core.store.state_folder import choose_workdir, require_current_folder
from skyward_core.tasks import script_interpreters
from skyward_core.tasks.argument_parsing import expand_combinations
from skyward_core.tasks.client_interpreter import is_own_environment, require_compatible
from skyward_core.tasks.packages.image_packages import image_python_version, read_image_packages
from skyward_core.tasks.packages.package_specs import find_local_packages, packages_to_send
from skyward_core.tasks.packages.requires_python import satisfies
from skyward_core.tasks.script_inspection import (
    check_script_folder,
    describe_script,
    find_function,
    list_commands,
    parse_arguments,
)
from skyward_core.tasks.script_interpreters import (
    QueryPython,
    choose_interpreter,
    find_base,
    make_interpreter,
    own_base_python,
)
from skyward_core.util.byte_sizes import format_size
from skyward_core.util.user_files import expand_user
from skyward_core.views.pool_view import TrialSheet

if TYPE_CHECKING:
    from skyward_core.tasks.bounded_subprocess import CancellationToken
    from skyward_core.tasks.packages.package_specs import LocalPackage, PackageSpecs
    from skyward_core.tasks.task_and_blob_values import Task
    from skyward_core.views.pool_view import PoolView

# Of ranks beside the app. Eight that print as fast as they can on two processors delay its loop by 5 ms then, and by
# 15 to 50 ms with 0 (95th percentile).
NICE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """A request, checked.

    Attributes:
        request: the request.
        interpreter: the one that it is loaded with.
        packages: what a file of the project says that ranks have; None where none is named.
        function: what is called; of a whole script, what stands for it.
        values: its arguments, as values by name; of a sweep those of the first combination.
        combinations: of a sweep, the arguments of each.
        sheet: of a sweep, what of it is run.
        pool: what is asked of the one that is made, or the one that is up and is used.
        plugins: those of the pool.
        plugin_values: what they were given, by the plugin's name and the parameter's.
    """

    request: LaunchRequest
    interpreter: Interpreter
    function: FunctionInfo
    values: Mapping[str, Any]
    pool: PoolSpec | PoolView
    plugins: Sequence[Any]
    plugin_values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    packages: PackageSpecs | None = None
    combinations: Sequence[Mapping[str, Any]] = ()
    sheet: TrialSheet | None = None

    @property
    def script(self) -> Path:
        """Path of the script."""
        return Path(self.request.script)

    @property
    def whole(self) -> bool:
        """Whether it is a whole script; then its ``args`` and its ``module`` are the values."""
        return self.request.script_args is not None

    @property
    def keep(self) -> bool:
        """Whether the pool stays up afterwards."""
        return self.request.keep or self.request.detach

    def on_pool(self, pool: PoolView) -> LaunchPlan:
        """The same on a pool that is up, which has the plugins and the Python that it was made with.

        Raises:
            SkywardError: one of them is not installed here, or the script is for another Python.
        """
        with set_error_field("plugins"):
            plugins = tuple(by_name(name) for name in plugin_names(pool))
        if (of_pool := pool_interpreter(pool.spec)) is not None:
            runs_here = isinstance(provider_class(pool.provider), RunsHere)
            with set_error_field("python"):  # before an environment is made that would be of no use
                require_compatible(self.function.name, pool.name, self.interpreter, of_pool, here=runs_here)
        return replace(self, pool=pool, plugins=plugins, plugin_values={})

    def describe_python_change(self, before: Interpreter | None) -> str:
        """How its Python differs from the one of an earlier launch, in words; "" where it does not, or nobody knows."""
        now = self.interpreter
        same = before is None or (
            now.minor in ("", before.minor)
            and before.chosen == now.chosen
            and (before.prefix == now.prefix or not now.chosen)
        )
        return "" if same else f"it had {before}, and this one has {now}"

    def with_prompts(self) -> LaunchPlan:
        """The same, with a provider that asks the person where it can, such as about a host's key."""
        if self.spec is None or not isinstance(self.spec.provider, Asks):
            return self
        return replace(self, pool=replace(self.spec, provider=self.spec.provider.asking()))

    def with_low_priority(self) -> LaunchPlan:
        """The same, with ranks that leave the terminal which shows them alive, where they use the same processors."""
        spec = self.spec
        if spec is None or not isinstance(spec.provider, RunsHere):
            return self
        return replace(self, pool=replace(spec, options=replace(spec.options, nice=NICE)))

    @property
    def max_nodes(self) -> int:
        """How many nodes the pool has, or may get."""
        return len(self.pool.nodes) if not isinstance(self.pool, PoolSpec) else self.pool.most_nodes

    def with_gangs(self) -> LaunchPlan:
        """The same, with gangs of nodes where it said how many ranks, once it is seen that the pool has room for them.

        Raises:
            UsageError: it has fewer nodes, or none of them has as many ranks as that takes.
        """
        if self.sheet is None:
            return self
        nodes, name = self.sheet.nodes, "gang_nodes"
        if (ranks := self.request.gang_ranks) is not None:
            from skyward_core.pool.runs.gang_sweep import gang_nodes

            name = "gang_ranks"
            with set_error_field(name):
                nodes = gang_nodes(ranks, self._ranks_per_node, self.pool.name)
        if nodes > self.max_nodes:
            with set_error_field(name):
                raise UsageError(
                    f"each combination is to run on {nodes} nodes, and pool {self.pool.name} has {self.max_nodes}"
                )
        return replace(self, sheet=replace(self.sheet, nodes=nodes))

    @property
    def _ranks_per_node(self) -> int:
        """How many ranks a node of the pool has; 0 where nobody knows before it is up."""
        if not isinstance(self.pool, PoolSpec):
            return self.pool.ranks_per_node
        return self.pool.ranks_per_node if isinstance(self.pool.worker.ranks_per_node, int) else 0

    @property
    def spec(self) -> PoolSpec | None:
        """What is asked of the pool that is made; None where one is used that is up."""
        return self.pool if isinstance(self.pool, PoolSpec) else None

    @property
    def hosts(self) -> Sequence[str]:
        """The machines that the pool is made of, where they have names already."""
        if self.spec is None or not isinstance(self.spec.provider, HasHosts):
            return ()
        hosts = self.spec.provider.hosts
        if self.uses_single_gpus:
            return hosts  # of which it has those that have enough free ones
        return hosts[: self.spec.nodes] if isinstance(self.spec.nodes, int) else hosts

    @property
    def uploaded_packages(self) -> list[LocalPackage]:
        """Packages of this machine's folders that go to other machines beside the working folder."""
        if self.spec is None or isinstance(self.spec.provider, RunsHere):
            return []
        image = self.packages.add_to_image({}) if self.packages is not None else {}
        found = find_local_packages(image, self.interpreter.prefix, self.interpreter.minor)
        return packages_to_send(found, str(self.spec.image.workdir or require_current_folder()))

    def rental_plan(self, *, may_remember: bool = False) -> RentalPlan:
        """What the launch rents, in the order in which it is tried; nothing is made. Asks the provider.

        Args:
            may_remember: whether what it said a minute ago will do.

        Raises:
            UsageError: nothing fits; says what comes nearest.
        """
        return (
            RentalPlan(nodes=0, attempts=())
            if self.spec is None
            else pool_planning.make_plan(self.spec, may_remember=may_remember)
        )

    @property
    def price_hourly(self) -> float:
        """Dollars an hour that the launch adds."""
        if self.spec is None or not isinstance(self.spec.provider, Priced):
            return 0.0
        return self.spec.provider.price_hourly * self.spec.most_nodes

    @property
    def has_unknown_price(self) -> bool:
        """Whether the launch costs money of which nobody says how much."""
        return self.spec is not None and isinstance(self.spec.provider, Rents)

    @property
    def has_rental_plan(self) -> bool:
        """Whether its provider looks for machines that are as they should be, and says which."""
        return self.spec is not None and isinstance(self.spec.provider, Plans)

    @property
    def uses_single_gpus(self) -> bool:
        """Whether it takes single GPUs of machines that others use, too."""
        provider = None if self.spec is None else self.spec.provider
        return isinstance(provider, TakesGpus) and provider.rank_per_gpu

    @property
    def file_loss_warning(self) -> str:
        """What becomes of files that ranks write, where the pool's machines end with it; "" where none is lost."""
        if self.spec is None or self.keep or isinstance(self.spec.provider, HasHosts | RunsHere):
            return ""
        most = format_size(float(self.spec.options.keep_outputs))
        named = " and ".join(self.spec.image.outputs)
        kept = f"{named}, and the newest {most} of the rest" if named else f"the newest {most}, as no outputs are named"
        return f"its machines end with the pool, and with them what ranks write there. Before that comes home: {kept}"

    @property
    def missing_frameworks(self) -> list[str]:
        """Frameworks that the script imports and that are not installed where it is loaded.

        Raises:
            ScriptError: The script cannot be read any more.
        """
        return missing_frameworks(self.script, self.interpreter)

    @property
    def missing_packages(self) -> list[str]:
        """Packages that the script imports, and that its ranks on this machine will not have: they have our own Python,
        and nobody says what is installed."""
        runs_here = self.spec is not None and isinstance(self.spec.provider, RunsHere)
        if not runs_here or self.packages is not None or not is_own_environment(self.interpreter.prefix):
            return []
        return missing_imports(self.script, whole=self.whole)

    @property
    def python_mismatch(self) -> tuple[str, str]:
        """Versions of Python that the script's project asks for, and its file, where nobody chose a Python and our own
        is none of these; else "" each."""
        if self.interpreter.chosen:
            return "", ""
        try:
            wanted, name = image_python_version(Image(project=True), str(self.script.absolute().parent))
        except SpecError:  # there is no such file, or who asks for it is told what is wrong with it
            return "", ""
        return ("", "") if satisfies(self.interpreter.version, wanted) else (wanted, name)

    @property
    def missing_plugins(self) -> list[str]:
        """Frameworks that the script imports and whose ranks will not meet, as the pool lacks their plugins."""
        has = {plugin.name for plugin in self.plugins}
        return [name for name in find_gang_frameworks(self.script, whole=self.whole) if name not in has]

    def load_tasks(
        self,
        *,
        echo: bool = False,
        said: Callable[[str], None] | None = None,
        stop: CancellationToken | None = None,
    ) -> list[Task]:
        """Load the script in a child process, and make its calls tasks: one, or of a sweep one for each combination
        that the sheet says is run.

        Args:
            echo: pass on what the script prints meanwhile.
            said: takes the lines of whoever makes the script's environment; None prints them with ``echo``.
            stop: ends it, from another thread.

        Raises:
            SkywardError: as ``discovery.build_tasks``.
        """
        sheet = self.sheet
        tasks = build_tasks(
            self.script,
            None if self.whole else self.function.name,
            [self.values] if sheet is None else [self.combinations[row] for row in sheet.tasks],
            plugins=self.plugins,
            echo=echo,
            interpreter=self.interpreter,
            said=said,
            stop=stop,
        )
        timeout = self.request.timeout
        return tasks if timeout is None else [replace(task, timeout=timeout) for task in tasks]


def pool_interpreter(spec: Mapping[str, Any]) -> Interpreter | None:
    """The one that a pool was made with, by its spec as it is kept; None where that is not known."""
    told = spec.get("interpreter")
    return Interpreter.from_json(told) if told else None


def plugin_names(pool: PoolView) -> list[str]:
    """The names of the plugins that a pool was made with."""
    names = pool.spec.get("plugins")
    return [str(name) for name in names] if isinstance(names, list) else []


def make_plan(request: LaunchRequest, *, launching: bool = False, name: str = "") -> LaunchPlan:
    """Return what a request will run, and on what; nothing of the script is executed.

    Args:
        launching: whether the launch has begun. Before, its interpreter is not run either.
        name: name of the pool if the request has none; "" to make one up.

    Raises:
        SkywardError: A value is invalid; its ``field`` names the field.
    """
    _check_gang_options(request)
    timeout = request.timeout
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < inf):
        with set_error_field("timeout"):
            raise UsageError(f"a rank may take a number of seconds, not {timeout!r:.40}")
    if request.sweep and request.one:
        with set_error_field("one"):
            raise UsageError("each combination of a sweep runs on one rank anyway: leave --one out")
    function, values = resolve_call(request)
    texts = expand_combinations(request.arguments) if request.sweep else []
    spec, interpreter, packages = make_spec(request, launching=launching, name=name)
    gang = any(map(request.is_given, WAYS))
    return LaunchPlan(
        request=request,
        interpreter=interpreter,
        packages=packages,
        function=function,
        values=values,
        pool=spec,
        plugins=spec.plugins,
        plugin_values=parse_parameters(request.plugins, request.plugin_settings),
        combinations=[parse_arguments(function, each) for each in texts],
        sheet=TrialSheet.from_texts(texts, gang=gang, nodes=request.gang_nodes or 0) if texts else None,
    )


def _check_gang_options(request: LaunchRequest) -> None:
    """Check that a request names one way to run a sweep by gangs, and one that is possible.

    Raises:
        UsageError: It does not; ``field`` says which option is wrong.
    """
    asked = [name for name in WAYS if request.is_given(name)]
    if not asked:
        return
    name, *others = reversed(asked)
    what = f"{OPTIONS[name].name} has each combination of a sweep run on {WAYS[name]}, and"
    with set_error_field(name):
        many, of = getattr(request, name), name.removeprefix("gang_")
        if name != "gang" and (not isinstance(many, int) or isinstance(many, bool) or many < 1):
            raise UsageError(f"each combination runs on a number of {of}, 1 at least, not on {many!r:.40}")
        if not request.sweep:
            raise UsageError(f"{what} goes with --sweep")
        if request.detach:
            raise UsageError(f"{what} needs its client to the end: leave --detach out")
        if others:
            raise UsageError(f"{what} {OPTIONS[others[0]].name} on {WAYS[others[0]]}: leave one of the two out")


def resolve_call(request: LaunchRequest) -> tuple[FunctionInfo, dict[str, Any]]:
    """Return the function of a request, and its arguments as values; of a whole script, what stands for them.

    Raises:
        UsageError: There is no such function, or it takes no such arguments; ``field`` says which.
    """
    if request.script_args is not None:
        more = {"torchrun": True} if request.torchrun else {}
        return _script_function(request), {"args": list(request.script_args), "module": request.module, **more}
    if request.torchrun:
        with set_error_field("torchrun"):
            raise UsageError(
                f"{OPTIONS['torchrun'].name} is for a script that is run as a whole, and a function of it is called"
            )
    with set_error_field("script"):
        function = find_function(Path(request.script), request.function)
    if request.sweep and function.is_generator:
        with set_error_field("sweep"):
            raise UsageError(f"{function.name} is a generator function, and a sweep wants one result of each call")
    with set_error_field("arguments"):
        every = expand_combinations(request.arguments) if request.sweep else [request.arguments]
        return function, next(parse_arguments(function, each) for each in every)


def _script_function(request: LaunchRequest) -> FunctionInfo:
    if request.sweep:
        with set_error_field("sweep"):
            raise UsageError("a sweep is of a function's arguments, and a whole script is run: leave one of them out")
    with set_error_field("script"):
        if not request.module and (commands := list_commands(Path(request.script))):
            raise UsageError(
                f"{commands[0].name} of {request.script} is a command of sky.app, which brings its own machines up: "
                f"`python -m skyward_core {request.script}` runs it, and the command `run`"
            )
        if request.function is not None:
            raise UsageError(
                f"{request.script}:{request.function} is a function, and what stands behind -- goes to a whole script: "
                "leave one of them out"
            )
        if request.arguments:
            raise UsageError(f"{request.script} is run as a whole, and takes no --arg: what is its own goes behind --")
        return describe_script(Path(request.script), request.module)


def make_spec(
    request: LaunchRequest, *, launching: bool = False, name: str = ""
) -> tuple[PoolSpec, Interpreter, PackageSpecs | None]:
    """Return the requested pool, the interpreter of the script, and the packages that a file of its project names.

    Args:
        launching, name: as of :func:`make_plan`.

    Raises:
        SkywardError: A value is invalid; its ``field`` says which: that of a setting is ``settings.NAME``.
    """
    script = Path(request.script)
    with set_error_field("provider"):
        provider = _make_provider(request)
    plugins = make_plugins(request)
    asked = parse_image_options(request.image_settings)
    secrets = asked.read_secrets()
    image = _make_image(request, asked, secrets)
    asked.check_files(Path(choose_workdir(script) or "."), travels=not isinstance(provider, RunsHere))
    said = make_options(request, provider) | ({"secrets": list(secrets.values())} if secrets else {})
    try:
        spec = pool_planning.make_pool_spec(
            request.script,
            name=request.pool or name or None,
            provider=provider,
            options=Options(**said) if said else None,
            image=image,
            plugins=plugins,
            worker=Worker(ranks_per_node=1 if request.ranks_per_node is None else request.ranks_per_node),
            **{each: getattr(request, each) for each in options_of("machines")},
        )
    except SpecError as error:
        raise SpecError(error.reason, "pool" if error.field == "name" else error.field) from error
    if not isinstance(spec.provider, RunsHere):
        with set_error_field("script"):
            check_script_folder(script)
    found, packages = script_python(script, request.python, spec, launching=launching)
    return replace(spec, interpreter=found if found.chosen else None), found, packages


def _make_provider(request: LaunchRequest) -> Any:
    found = provider_class(request.provider or DEFAULT_PROVIDER)
    for each in declared_settings(found):
        if each.required and each.name not in request.settings:
            how = " ".join(format_setting(each, each.name, each.example or "VALUE"))
            with set_error_field(f"settings.{each.name}"):
                raise UsageError(f"which {each.name}? {each.help}: {how}")
    return make_provider(found, request.settings)


def make_plugins(request: LaunchRequest) -> list[Any]:
    """Return the plugins of a request.

    Raises:
        SkywardError: There is no such plugin, or it does not take the given parameters.
    """
    with set_error_field("plugins"):
        given = parse_parameters(request.plugins, request.plugin_settings)
        return [by_name(name, **given.get(name, {})) for name in request.plugins]


def make_options(request: LaunchRequest, provider: Any) -> dict[str, Any]:
    """Return the given options of the pool by name.

    Raises:
        UsageError: The provider cannot honor one.
    """
    given = {name: getattr(request, name) for name in options_of("options") if getattr(request, name) is not None}
    for name in given:
        with set_error_field(name):
            if OPTIONS[name].needs == "price" and not costs_money(provider):
                raise UsageError(f"machines of provider {provider.name} cost nothing: leave the budget out")
            if OPTIONS[name].needs == "offers" and not isinstance(provider, Offers):
                raise UsageError(
                    f"provider {provider.name} takes machines as they are, and waits for none: leave the wait out"
                )
    return given


def _make_image(request: LaunchRequest, asked: ImageOptions, secrets: Mapping[str, str]) -> Image:
    given: dict[str, Any] = {name: getattr(request, name) for name in options_of("image") if request.is_given(name)}
    for name in given:
        if OPTIONS[name].metavar == "FILE":  # as the shell has it; an image's own begins in the ranks' working folder
            given[name] = str(expand_user(given[name]).absolute())
    given |= {name: asked.list_values(name) for name in LISTS}
    try:
        return Image(env={**asked.env, **secrets}, workdir=choose_workdir(Path(request.script)), **given)
    except SpecError as error:
        raise option_error(error) from error


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
    return script_interpreters.query_python if launching else script_interpreters.read_python


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
