"""Launch plan of a request: the call, the pool, and the problems that are known before the launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.client.launch.image_option_parsing import LISTS, ImageOptions, option_error, parse_image_options
from skyward_core.client.launch.launch_option_declarations import (
    OPTIONS,
    RESTART_OPTIONS,
    WAYS,
    LaunchRequest,
    format_setting,
    options_of,
)
from skyward_core.client.launch.plugin_and_provider_catalog import (
    FunctionInfo,
    find_gang_frameworks,
    missing_frameworks,
    parse_parameters,
)
from skyward_core.model import provider_capability_protocols as capabilities
from skyward_core.model.errors import SpecError, UsageError, set_error_field
from skyward_core.model.offers_and_rental_plans import RentalPlan
from skyward_core.model.provider_settings_schema import declared_settings, make_provider
from skyward_core.model.specs import Image, Interpreter, Options, PoolSpec, Worker
from skyward_core.plugins import by_name
from skyward_core.plugins.plugin import transform_image
from skyward_core.providers import DEFAULT_PROVIDER, pool_spec_and_provider_choice, provider_class
from skyward_core.store.default_and_forbidden_working_folders import choose_workdir, require_current_folder
from skyward_core.tasks.argument_parsing_and_sweeps import expand_combinations
from skyward_core.tasks.missing_packages import missing_imports
from skyward_core.tasks.packages.image_packages_from_file import image_python_version, read_image_packages
from skyward_core.tasks.packages.package_specs_and_local_packages import find_local_packages, packages_to_send
from skyward_core.tasks.python_compatibility import (
    is_own_environment,
    require_compatible,
    satisfies,
)
from skyward_core.tasks.script_functions import (
    check_script_folder,
    describe_script,
    find_function,
    list_commands,
    parse_arguments,
)
from skyward_core.tasks.script_interpreter_and_environment import (
    QueryPython,
    choose_interpreter,
    find_base,
    make_interpreter,
    own_base_python,
    query_python,
    read_python,
)
from skyward_core.tasks.script_loader_parent import build_tasks
from skyward_core.util.number_size_and_time_format import format_size
from skyward_core.util.safe_file_access import expand_user
from skyward_core.views.sweep_argument_combinations import TrialSheet

if TYPE_CHECKING:
    from skyward_core.tasks.bounded_subprocess import CancellationToken
    from skyward_core.tasks.packages.package_specs_and_local_packages import LocalPackage, PackageSpecs
    from skyward_core.tasks.pickled_calls_and_blobs import Task
    from skyward_core.views.pool_view import PoolView

# Niceness of ranks on this machine. Eight ranks that print as fast as possible on two processors delay the app's event
# loop by 5 ms with this value, and by 15 to 50 ms without it (95th percentile).
NICE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Validated launch request, with everything that is known before the launch.

    Attributes:
        request: The request.
        interpreter: Interpreter that loads the script.
        packages: Packages that a file of the project lists for the ranks; None if no file is named.
        function: The function to call; for a whole script, a stand-in.
        values: Arguments of the function by name; for a sweep, those of the first combination.
        combinations: Arguments of each combination of a sweep.
        sheet: Trials of a sweep that this launch runs; None without a sweep.
        pool: Specification of a new pool, or an existing pool.
        plugins: Plugins of the pool.
        plugin_values: Parameters of the plugins, by the names of plugin and parameter.
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
        return Path(self.request.script)

    @property
    def whole(self) -> bool:
        """Whether the request runs a whole script; ``values`` then contains the script's ``args`` and ``module``."""
        return self.request.script_args is not None

    @property
    def keep(self) -> bool:
        """Whether the pool stays up after the run."""
        return self.request.keep or self.request.detach

    def on_pool(self, pool: PoolView) -> LaunchPlan:
        """Return the plan for an existing pool, with the plugins and the Python of that pool.

        Raises:
            SkywardError: If a plugin is not installed here, or the script needs another Python.
        """
        with set_error_field("plugins"):
            plugins = tuple(by_name(name) for name in plugin_names(pool))
        if (of_pool := pool_interpreter(pool.spec)) is not None:
            runs_here = isinstance(provider_class(pool.provider), capabilities.RunsHere)
            with set_error_field("python"):  # check the Python version before the slow creation of an environment
                require_compatible(self.function.name, pool.name, self.interpreter, of_pool, here=runs_here)
        return replace(self, pool=pool, plugins=plugins, plugin_values={})

    def describe_python_change(self, before: Interpreter | None) -> str:
        """Describe how the interpreter differs from that of an earlier launch; "" if both are equal or the earlier one
        is unknown.
        """
        now = self.interpreter
        same = before is None or (
            now.minor in ("", before.minor)
            and before.chosen == now.chosen
            and (before.prefix == now.prefix or not now.chosen)
        )
        return "" if same else f"Python was {before}, is now {now}"

    def with_prompts(self) -> LaunchPlan:
        """Return the plan with a provider that may ask the user questions, for example about a host key."""
        if self.spec is None or not isinstance(self.spec.provider, capabilities.Asks):
            return self
        return replace(self, pool=replace(self.spec, provider=self.spec.provider.asking()))

    def with_low_priority(self) -> LaunchPlan:
        """Return the plan with ranks of low priority, so that the terminal of this machine stays responsive."""
        spec = self.spec
        if spec is None or not isinstance(spec.provider, capabilities.RunsHere):
            return self
        return replace(self, pool=replace(spec, options=replace(spec.options, nice=NICE)))

    @property
    def max_nodes(self) -> int:
        """Maximum number of nodes of the pool."""
        return len(self.pool.nodes) if not isinstance(self.pool, PoolSpec) else self.pool.most_nodes

    def check_gangs(self) -> LaunchPlan:
        """Return the plan, after checking that the pool has enough nodes for each gang of a sweep.

        Raises:
            UsageError: If the pool has too few nodes.
        """
        if self.sheet is not None:
            from skyward_core.pool.runs.gang_sweep import check_node_count

            with set_error_field("gang_nodes"):
                check_node_count(self.sheet.nodes, self.max_nodes, self.pool.name)
        return self

    @property
    def spec(self) -> PoolSpec | None:
        """Specification of the new pool; None for an existing pool."""
        return self.pool if isinstance(self.pool, PoolSpec) else None

    @property
    def hosts(self) -> Sequence[str]:
        """Machines of the new pool, if their names are already known."""
        if self.spec is None or not isinstance(self.spec.provider, capabilities.HasHosts):
            return ()
        hosts = self.spec.provider.hosts
        if self.uses_single_gpus:
            return hosts  # return all hosts, because any of them may have free GPUs for the pool
        return hosts[: self.spec.nodes] if isinstance(self.spec.nodes, int) else hosts

    @property
    def uploaded_packages(self) -> list[LocalPackage]:
        """Packages in local folders that are sent to other machines in addition to the working folder."""
        if self.spec is None or isinstance(self.spec.provider, capabilities.RunsHere):
            return []
        image = self.packages.add_to_image({}) if self.packages is not None else {}
        found = find_local_packages(image, self.interpreter.prefix, self.interpreter.minor)
        return packages_to_send(found, str(self.spec.image.workdir or require_current_folder()))

    def rental_plan(self, *, may_remember: bool = False) -> RentalPlan:
        """Return the offers that the launch tries to rent, in order. Queries the provider, but rents nothing.

        Args:
            may_remember: Whether a cached answer of the provider, up to a minute old, is acceptable.

        Raises:
            UsageError: If no offer matches. The message names the nearest offer.
        """
        if self.spec is None:
            return RentalPlan(nodes=0, attempts=())
        return pool_spec_and_provider_choice.make_plan(self.spec, may_remember=may_remember)

    @property
    def price_hourly(self) -> float:
        """Additional cost of the launch in dollars per hour."""
        if self.spec is None or not isinstance(self.spec.provider, capabilities.Priced):
            return 0.0
        return self.spec.provider.price_hourly * self.spec.most_nodes

    @property
    def has_unknown_price(self) -> bool:
        """Whether a part of the launch's cost is unknown."""
        return self.spec is not None and isinstance(self.spec.provider, capabilities.Rents)

    @property
    def has_rental_plan(self) -> bool:
        """Whether the provider selects machines by their properties, so that a rental plan can list the candidates."""
        return self.spec is not None and isinstance(self.spec.provider, capabilities.Plans)

    @property
    def uses_single_gpus(self) -> bool:
        """Whether the pool uses single GPUs of machines that it shares with others."""
        provider = None if self.spec is None else self.spec.provider
        return isinstance(provider, capabilities.TakesGpus) and provider.rank_per_gpu

    @property
    def file_loss_warning(self) -> str:
        """Warning about output files that are lost when the pool's machines end; "" if none are lost."""
        if (
            self.spec is None
            or self.keep
            or isinstance(self.spec.provider, capabilities.HasHosts | capabilities.RunsHere)
        ):
            return ""
        most = format_size(float(self.spec.options.keep_outputs))
        named = " and ".join(self.spec.image.outputs)
        part = f"{named}, and the newest {most} of the rest" if named else f"the newest {most}, as no outputs are named"
        return f"files of the ranks are lost when the pool ends, except those downloaded before: {part}"

    @property
    def missing_frameworks(self) -> list[str]:
        """Frameworks that the script imports and its interpreter lacks.

        Raises:
            ScriptError: If the script can no longer be read.
        """
        return missing_frameworks(self.script, self.interpreter)

    @property
    def missing_packages(self) -> list[str]:
        """Packages that the script imports and that the ranks on this machine would lack, because they run with
        skyward-tui's Python.
        """
        runs_here = self.spec is not None and isinstance(self.spec.provider, capabilities.RunsHere)
        if not runs_here or self.packages is not None or not is_own_environment(self.interpreter.prefix):
            return []
        return missing_imports(self.script, whole=self.whole)

    @property
    def python_mismatch(self) -> tuple[str, str]:
        """Python versions that the script's project requires, and the file that states them; both are empty unless
        ranks use skyward-tui's Python and it does not match.
        """
        if self.interpreter.chosen:
            return "", ""
        try:
            version, name = image_python_version(Image(project=True), str(self.script.absolute().parent))
        except SpecError:
            # Ignore a missing project file. An invalid project file is reported when its packages are read.
            return "", ""
        return ("", "") if satisfies(self.interpreter.version, version) else (version, name)

    @property
    def missing_plugins(self) -> list[str]:
        """Imported frameworks whose plugins the pool lacks. Without these plugins, the ranks train separately."""
        has = {plugin.name for plugin in self.plugins}
        return [name for name in find_gang_frameworks(self.script, whole=self.whole) if name not in has]

    def load_tasks(
        self,
        *,
        echo: bool = False,
        report: Callable[[str], None] | None = None,
        stop: CancellationToken | None = None,
    ) -> list[Task]:
        """Load the script in a child process and pickle its call, or each selected combination of a sweep.

        Args:
            echo: Whether to forward the output of the loading script.
            report: Receives progress lines while the script's environment is created. If None, the lines are printed if
            ``echo`` is true.
            stop: Cancels the loading from another thread.

        Raises:
            SkywardError: In the same cases as in :func:`build_tasks`.
        """
        sheet = self.sheet
        tasks = build_tasks(
            self.script,
            None if self.whole else self.function.name,
            [self.values] if sheet is None else [self.combinations[row] for row in sheet.tasks],
            plugins=self.plugins,
            echo=echo,
            interpreter=self.interpreter,
            report=report,
            stop=stop,
        )
        timeout = self.request.timeout
        return tasks if timeout is None else [replace(task, timeout=timeout) for task in tasks]


def pool_interpreter(spec: Mapping[str, Any]) -> Interpreter | None:
    """Return the interpreter of a pool from its saved specification; None if unknown."""
    saved = spec.get("interpreter")
    return Interpreter.from_json(saved) if saved else None


def plugin_names(pool: PoolView) -> list[str]:
    """Return the names of the plugins of a pool."""
    names = pool.spec.get("plugins")
    return [str(name) for name in names] if isinstance(names, list) else []


def make_plan(request: LaunchRequest, *, launching: bool = False, name: str = "") -> LaunchPlan:
    """Return the plan of a request, without executing any of the script.

    Args:
        launching: Whether the launch has begun. If not, the interpreter of the script is not run, because it may belong
            to an untrusted project.
        name: Name of the pool if the request has none; "" to generate one.

    Raises:
        SkywardError: If a value is invalid. The error's ``field`` names the field of the request.
    """
    _check_gang_options(request)
    timeout = request.timeout
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < inf):
        with set_error_field("timeout"):
            raise UsageError(f"--timeout must be a positive number of seconds, not {timeout!r:.40}")
    if request.sweep and request.one:
        with set_error_field("one"):
            raise UsageError("each combination of a sweep already runs on one rank. Remove --one")
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
    """Check that a request uses at most one option to run a sweep as gangs, with a valid value.

    Raises:
        UsageError: If the request is invalid. The error's ``field`` names the wrong option.
    """
    given = [name for name in WAYS if request.is_given(name)]
    if not given:
        return
    name, *others = reversed(given)
    option = OPTIONS[name].name
    with set_error_field(name):
        count, unit = getattr(request, name), name.removeprefix("gang_")
        if name != "gang" and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise UsageError(f"{option} must be a number of {unit}, at least 1, not {count!r:.40}")
        if not request.sweep:
            raise UsageError(f"{option} needs --sweep")
        if request.detach:
            raise UsageError(f"{option} cannot be combined with --detach: the client starts the trials")
        if others:
            raise UsageError(f"{option} and {OPTIONS[others[0]].name} cannot be combined. Remove one of the two")


def resolve_call(request: LaunchRequest) -> tuple[FunctionInfo, dict[str, Any]]:
    """Return the function of a request and its arguments by name. For a whole script, return a stand-in function and
    the script's arguments.

    Raises:
        UsageError: If the function does not exist or does not accept the arguments. The error's ``field`` names the
        option.
    """
    if request.script_args is not None:
        more = {"torchrun": True} if request.torchrun else {}
        return _script_function(request), {"args": list(request.script_args), "module": request.module, **more}
    if request.torchrun:
        with set_error_field("torchrun"):
            raise UsageError(f"{OPTIONS['torchrun'].name} is for whole scripts, but a function is called")
    with set_error_field("script"):
        function = find_function(Path(request.script), request.function)
    if request.sweep and function.is_generator:
        with set_error_field("sweep"):
            raise UsageError(f"{function.name} is a generator function, but a sweep needs one result per call")
    with set_error_field("arguments"):
        every = expand_combinations(request.arguments) if request.sweep else [request.arguments]
        hint = "" if request.sweep else "; several values need --sweep"
        return function, next(parse_arguments(function, each, list_hint=hint) for each in every)


def _script_function(request: LaunchRequest) -> FunctionInfo:
    if request.sweep:
        with set_error_field("sweep"):
            raise UsageError(
                "a whole script cannot be swept, only a function's arguments. Name a function, or remove --sweep"
            )
    with set_error_field("script"):
        if not request.module and (commands := list_commands(Path(request.script))):
            raise UsageError(
                f"{commands[0].name} of {request.script} is a command of sky.app, which starts its own pools. Run "
                f"`python -m skyward_core {request.script}`, or the command `run`"
            )
        if request.function is not None:
            raise UsageError(
                f"Arguments after -- are for whole scripts, but {request.script}:{request.function} names a function. "
                "Remove one of the two"
            )
        if request.arguments:
            raise UsageError(f"{request.script} runs as a whole and takes no --arg. Give its arguments after --")
        return describe_script(Path(request.script), request.module)


def make_spec(
    request: LaunchRequest, *, launching: bool = False, name: str = ""
) -> tuple[PoolSpec, Interpreter, PackageSpecs | None]:
    """Return the specification of the requested pool, the interpreter of the script, and the packages that a file of
    its project lists.

    Args:
        launching, name: As in :func:`make_plan`.

    Raises:
        SkywardError: If a value is invalid. The error's ``field`` names the option, or ``settings.NAME`` for a setting.
    """
    script = Path(request.script)
    with set_error_field("provider"):
        provider = _make_provider(request)
    plugins = make_plugins(request)
    image_options = parse_image_options(request.image_settings)
    secrets = image_options.read_secrets()
    image = _make_image(request, image_options, secrets)
    image_options.check_files(
        Path(choose_workdir(script) or "."), travels=not isinstance(provider, capabilities.RunsHere)
    )
    options = make_options(request, provider) | ({"secrets": list(secrets.values())} if secrets else {})
    try:
        spec = pool_spec_and_provider_choice.make_pool_spec(
            request.script,
            name=request.pool or name or None,
            provider=provider,
            options=Options(**options) if options else None,
            image=image,
            plugins=plugins,
            worker=Worker(ranks_per_node=1 if request.ranks_per_node is None else request.ranks_per_node),
            **{each: getattr(request, each) for each in options_of("machines")},
        )
    except SpecError as error:
        raise SpecError(error.reason, "pool" if error.field == "name" else error.field) from error
    with set_error_field("nodes"):
        capabilities.check_host_count(spec.provider, spec.least_nodes)
    if not isinstance(spec.provider, capabilities.RunsHere):
        with set_error_field("script"):
            check_script_folder(script)
    found, packages = script_python(script, request.python, spec, launching=launching)
    return replace(spec, interpreter=found if found.chosen else None), found, packages


def _make_provider(request: LaunchRequest) -> Any:
    found = provider_class(request.provider or DEFAULT_PROVIDER)
    for each in declared_settings(found):
        if each.required and each.name not in request.settings:
            example = " ".join(format_setting(each, each.name, each.example or "VALUE"))
            with set_error_field(f"settings.{each.name}"):
                raise UsageError(f"setting {each.name} is required ({each.help}). Set it with {example}")
    return make_provider(found, request.settings)


def make_plugins(request: LaunchRequest) -> list[Any]:
    """Return the plugins of a request.

    Raises:
        SkywardError: If a plugin does not exist, or does not accept the given parameters.
    """
    with set_error_field("plugins"):
        given = parse_parameters(request.plugins, request.plugin_settings)
        return [by_name(name, **given.get(name, {})) for name in request.plugins]


def make_options(request: LaunchRequest, provider: Any) -> dict[str, Any]:
    """Return the pool options that the request sets, by name.

    Raises:
        UsageError: If the provider cannot honor an option.
    """
    given = {name: getattr(request, name) for name in options_of("options") if request.is_given(name)}
    for name in given:
        with set_error_field(name):
            if OPTIONS[name].needs == "price" and not capabilities.costs_money(provider):
                raise UsageError(f"machines of provider {provider.name} are free of charge. Remove --budget")
            if OPTIONS[name].needs == "offers" and not isinstance(provider, capabilities.Offers):
                raise UsageError(f"provider {provider.name} cannot wait for machines. Remove --wait-for-capacity")
    return given | ({"on_loss": "restart"} if given.keys() & {*RESTART_OPTIONS, "restart_smaller"} else {})


def _make_image(request: LaunchRequest, options: ImageOptions, secrets: Mapping[str, str]) -> Image:
    given: dict[str, Any] = {name: getattr(request, name) for name in options_of("image") if request.is_given(name)}
    for name in given:
        # Make paths absolute: users give them relative to the current folder, images expect them relative to the ranks'
        # working folder.
        if OPTIONS[name].metavar == "FILE":
            given[name] = str(expand_user(given[name]).absolute())
    given |= {name: options.lists.get(name, ()) for name in LISTS}
    try:
        return Image(env={**options.env, **secrets}, workdir=choose_workdir(Path(request.script)), **given)
    except SpecError as error:
        raise option_error(error) from error


def script_python(
    script: Path, python: str | None, spec: PoolSpec, *, launching: bool = False
) -> tuple[Interpreter, PackageSpecs | None]:
    """Return the interpreter of a launch's script, and the packages of the project file that its image names.

    Creates nothing. The returned interpreter may belong to an environment that is created later:

    - If the image names a project file: with the packages of this file, unless the user chose an interpreter that has
      the required Python version.
    - Otherwise, if the user chose no interpreter and the found one lacks frameworks that the script imports at module
      level: with the packages of the plugins.

    Args:
        python: Interpreter that the user chose, which takes precedence.
        spec: The requested pool.
        launching: Whether the launch has begun. Otherwise no interpreter is run, because it may belong to an untrusted
            project.

    Raises:
        SkywardError: If the interpreter cannot be used. The error's ``field`` names the option that selected it.
    """
    ask = query_python if launching else read_python
    with set_error_field("script" if python is None else "python"):
        found = choose_interpreter(script, python, ask=ask)
    if spec.image.packages_by:
        return _project_python(found, spec.image, is_explicit=python is not None, ask=ask)
    elsewhere = found.chosen and not is_own_environment(found.prefix)
    if elsewhere or not spec.plugins or not missing_frameworks(script, found):
        return found, None
    described = transform_image(spec.plugins, Image(), spec).describe()
    if not described["pip"]:
        return found, None
    names = ", ".join(plugin.name for plugin in spec.plugins)
    environment = {name: list(described[name]) for name in ("pip", "pip_indexes") if described[name]}
    return make_interpreter(own_base_python(), environment, f"plugins of the pool: {names}"), None


def _project_python(
    found: Interpreter, image: Image, *, is_explicit: bool, ask: QueryPython
) -> tuple[Interpreter, PackageSpecs | None]:
    folder = str(image.workdir or "")
    version, source = image_python_version(image, folder)
    fits = satisfies(found.version, version)
    if found.chosen and (fits or is_explicit or found.base):
        return found, read_image_packages(image, folder, found.version)
    with set_error_field(image.packages_by):
        base = find_base(version, source, ask=ask)
    packages = read_image_packages(image, folder, base.version)
    if packages is None:
        return found, None
    skipped = found.source if found.chosen else "this program's own Python"
    notes = () if fits else (f"{skipped} was skipped: it is {found.version}, but {source} requires Python {version}",)
    name = Path(packages.source).name
    return make_interpreter(base, packages.add_to_image({}), name, (*found.notes, *notes)), packages
