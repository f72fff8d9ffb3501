"""What a launch comes to: the call, the pool that it makes or uses, and what is known to be amiss before it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.client.launch.discovery import (
    FunctionInfo,
    build_tasks,
    find_gang_frameworks,
    missing_frameworks,
    missing_imports,
)
from skyward_core.model.errors import SpecError, UsageError, set_error_field
from skyward_core.model.offers import RentalPlan
from skyward_core.model.provider_capabilities import Asks, HasHosts, Plans, Priced, Rents, RunsHere, TakesGpus
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.model.specs import Image, PoolSpec
from skyward_core.plugins import by_name
from skyward_core.providers import provider_class as provider_of
from skyward_core.providers.pool_planning import make_plan
from skyward_core.store.state_folder import require_current_folder
from skyward_core.tasks.client_interpreter import is_own_environment, require_compatible
from skyward_core.tasks.packages.image_packages import image_python_version
from skyward_core.tasks.packages.package_specs import find_local_packages, packages_to_send
from skyward_core.tasks.packages.project_root import satisfies
from skyward_core.util.byte_sizes import format_size
from skyward_core.views.pool_view import TrialSheet

if TYPE_CHECKING:
    from skyward_core.tasks.bounded_subprocess import CancellationToken
    from skyward_core.tasks.packages.package_specs import LocalPackage, PackageSpecs
    from skyward_core.tasks.pickled_call import Task
    from skyward_core.views.pool_view import PoolView

# Of ranks beside the app. Eight that print as fast as they can on two processors delay its loop by 5 ms then, and by
# 15 to 50 ms with 0 (95th percentile).
NICE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """A request, checked.

    Attributes:
        script: path of the script.
        interpreter: the one that it is loaded with.
        packages: what a file of the project says that ranks have; None where none is named.
        function: what is called; of a whole script, what stands for it.
        values: its arguments, as values by name; of a sweep those of the first combination.
        combinations: of a sweep, the arguments of each.
        sheet: of a sweep, what of it is run.
        gang_ranks: of a sweep, how many ranks run each combination, where that was said: see :meth:`with_gangs`.
        whole: whether it is a whole script; then its ``args`` and its ``module`` are the values.
        pool: what is asked of the one that is made, or the one that is up and is used.
        plugins: those of the pool.
        plugin_values: what they were given, by the plugin's name and the parameter's.
        one: whether it runs on one node only.
        keep: whether the pool stays up afterwards.
        timeout: seconds that a rank may take; None for what the function says.
        detach: whether nobody waits for what comes of it.
    """

    script: Path
    interpreter: Interpreter
    function: FunctionInfo
    values: Mapping[str, Any]
    pool: PoolSpec | PoolView
    plugins: Sequence[Any]
    plugin_values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    whole: bool = False
    one: bool = False
    keep: bool = False
    timeout: float | None = None
    packages: PackageSpecs | None = None
    combinations: Sequence[Mapping[str, Any]] = ()
    sheet: TrialSheet | None = None
    gang_ranks: int | None = None
    detach: bool = False

    def on_pool(self, pool: PoolView) -> LaunchPlan:
        """The same on a pool that is up, which has the plugins and the Python that it was made with.

        Raises:
            SkywardError: one of them is not installed here, or the script is for another Python.
        """
        with set_error_field("plugins"):
            plugins = tuple(by_name(name) for name in plugin_names(pool))
        if (of_pool := pool_interpreter(pool.spec)) is not None:
            runs_here = isinstance(provider_of(pool.provider), RunsHere)
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
        if self.gang_ranks is not None:
            from skyward_core.pool.runs.gang_sweep import gang_nodes

            name = "gang_ranks"
            with set_error_field(name):
                nodes = gang_nodes(self.gang_ranks, self._ranks_per_node, self.pool.name)
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
            RentalPlan(nodes=0, attempts=()) if self.spec is None else make_plan(self.spec, may_remember=may_remember)
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
        return tasks if self.timeout is None else [replace(task, timeout=self.timeout) for task in tasks]


def pool_interpreter(spec: Mapping[str, Any]) -> Interpreter | None:
    """The one that a pool was made with, by its spec as it is kept; None where that is not known."""
    told = spec.get("interpreter")
    return Interpreter.from_json(told) if told else None


def plugin_names(pool: PoolView) -> list[str]:
    """The names of the plugins that a pool was made with."""
    names = pool.spec.get("plugins")
    return [str(name) for name in names] if isinstance(names, list) else []
