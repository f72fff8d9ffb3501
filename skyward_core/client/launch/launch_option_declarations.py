"""LaunchRequest: everything that a user can request for a launch, with one declaration per option.

Command line, launch form, presets, saved launches, Python snippets and plans derive from these declarations. The module
imports little, because the command line loads it for the help of its commands. ``launch_plan`` validates requests.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.model.provider_settings_schema import Setting


@value
class Option(Value):
    """Declaration of a launch option.

    Attributes:
        name: Option of the command line.
        metavar: Placeholder of the value in the help.
        help: Help text of the command line.
        short: Short option.
        opposite: Option that turns a flag off, after a slash.
        part: Part of the pool that the option shapes, or "" if it shapes none: "provider", "machines", "plugins",
            "worker", "environment", "image" or "options".
        needs: Capability of the provider that the option requires: "offers" or "price".
        row: Row of the launch form that contains the option's field; "" if the form has no field for the option.
        label: Label of a field that is not the first in its row.
        placeholder: Text of the empty field; names of keys in braces are filled in.
        choices: Values of a field with a list of choices, as (label, value); "" stands for the default.
        plan: Heading and text of the option's row in the plan; braces in the text stand for the value.
        type: Annotation of the field.
    """

    name: str
    metavar: str = ""
    help: str = ""
    short: str = ""
    opposite: str = ""
    part: str = ""
    needs: str = ""
    row: str = ""
    label: str = ""
    placeholder: str = ""
    choices: Sequence[tuple[str, str]] = ()
    plan: tuple[str, str] = ("", "")
    type: str = ""

    @property
    def is_flag(self) -> bool:
        return self.type == "bool"

    @property
    def is_repeatable(self) -> bool:
        return self.type.startswith(("Sequence", "Mapping"))


def _option(name: str, metavar: str = "", help: str = "", default: Any = None, **more: Any) -> Any:
    """Return a dataclass field with the declaration of an option."""
    metadata = {"option": Option(name, metavar, help, **more)}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def _flag(name: str, help: str, **more: Any) -> Any:
    return _option(name, "", help, default=False, **more)


@value(kw_only=True, frozen=True)
class LaunchRequest(Value):
    """A function of a script, its arguments, and the pool; None for values that the user did not give.

    Values are not validated here: ``launch_plan.make_plan`` and ``make_spec`` reject invalid ones.

    Attributes:
        script: Path of the script.
        function: Name of the function; None for the script's only one.
        arguments: Texts ``name=value``.
        sweep: Whether values in ``arguments`` are lists (``lr=0.1,0.01``, ``seed=1..5``), each combination of which
            is a task on one rank.
        gang: Whether each combination of a sweep runs on all ranks instead, one combination at a time.
        gang_nodes: Number of nodes for each combination; as many combinations run at a time as the pool has nodes for.
        script_args: Arguments of the script if it runs as a whole; None to call one of its functions.
        module: Name of a module to run as with ``python -m``; ``script`` is then the module's file.
        python: Interpreter that loads the script, as a path or a name in PATH; None for automatic selection.
        pool: Name of the pool; an existing pool of that name is used unchanged. None for a new pool with a generated
            name.
        provider: Name of the provider.
        settings: Texts of the provider's settings by name.
        nodes: Number of machines, or a range such as "2:8" for as many as available within it; None for the provider's
            default.
        ranks_per_node: Ranks on each machine; "gpu" for one per GPU.
        accelerator: Accelerator of each machine, such as "A100-80GB:8".
        allocation: "on-demand", "spot", "spot-if-available" or "cheapest" of both.
        max_hourly_cost: Limit in dollars per hour and machine, including disk and address.
        selection: "cheapest" tries the cheapest offer first; "first" tries the first region first.
        budget: Limit in dollars for the pool.
        wait_for_capacity: Duration of retries if no machines are available, as a text ("2h").
        grace: Seconds between SIGTERM and SIGKILL of a rank.
        restarts: Maximum restarts of the run after lost ranks, lost nodes or killed processes; None for no restarts.
        error_restarts: Maximum restarts of the run after errors of its code; None for no restarts.
        restart_smaller: Whether a restart may use fewer nodes if a lost machine cannot be replaced.
        checkpoint_store: URL to which complete checkpoints are copied; None for no copies.
        resume: Id of an earlier run whose checkpoints to continue; None to begin without checkpoints.
        debug_wait: Duration for which a rank waits at a breakpoint for a debugger, as a text ("10m").
        plugins: Names of plugins, in the order in which they are set up.
        plugin_settings: Texts of the plugins' parameters, by names such as "torch.backend".
        image_settings: Environment of the ranks as texts such as "pip=einops"; see ``launch.image_option_parsing``.
        lock, requirements: Package files for the ranks, relative to the current folder.
        project: Whether to install the dependencies of the project's ``pyproject.toml``.
        outputs: Patterns of the output files to download, such as "out/**".
        checkpoints: Patterns of files that are checkpoints.
        one: Whether the function runs on one node only.
        torchrun: Whether a whole script has torchrun's variables even on a single rank.
        keep: Whether the pool stays up afterwards.
        detach: Whether the client leaves as soon as the function runs.
        timeout: Time limit of a rank in seconds.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  for saved requests

    script: str
    function: str | None = None
    arguments: Sequence[str] = _option(
        "--arg", "NAME=VALUE", "Pass an argument to the function. Repeatable.", default=(), short="-a"
    )
    script_args: Sequence[str] | None = None
    module: str = ""
    sweep: bool = _flag(
        "--sweep", "Run every combination of list arguments: -a lr=0.1,0.01 -a seed=1..5.",
        row="Options", label="sweep",
    )  # fmt: skip
    gang: bool = _flag("--gang", "Run each trial of a sweep on all ranks, one trial at a time.")
    gang_nodes: int | None = _option(
        "--gang-nodes", "N", "Run each trial of a sweep on all ranks of N nodes, as many trials at a time as fit."
    )
    python: str | None = _option(
        "--python", "PATH", "Load the script with this Python.  [default: the project's]",
        row="Function", label="python", placeholder="project's Python ({launch.python})",
    )  # fmt: skip
    provider: str | None = _option(
        "--provider", "NAME", "Get machines from this provider, such as ssh.  [default: local]", part="provider"
    )
    settings: Mapping[str, str] = _option(
        "--set", "KEY=VALUE", "Set an option of the provider. Repeatable.", default={}, part="provider"
    )
    nodes: int | str | None = _option(
        "--nodes", "N|MIN:MAX", "Number of machines. A range takes as many as it can get.  [default: 1, or all hosts]",
        short="-n", part="machines", row="Nodes",
    )  # fmt: skip
    ranks_per_node: int | Literal["gpu"] | None = _option(
        "--ranks-per-node", "N|gpu", "Number of ranks on each machine.  [default: 1]",
        part="worker", row="Nodes", label="ranks per node",
    )  # fmt: skip
    accelerator: str | None = _option(
        "--accelerator", "NAME[:N]", "GPUs of each machine, such as A100-80GB:8.",
        part="machines", row="Nodes", label="accelerator", placeholder="any ({launch.accelerators})",
    )  # fmt: skip
    allocation: str | None = _option(
        "--allocation", "MARKET", "Market: on-demand, spot, spot-if-available or cheapest.",
        part="machines", needs="offers", row="Market",
        choices=(
            ("on demand", ""), ("spot", "spot"), ("spot, else on demand", "spot-if-available"),
            ("cheapest of both", "cheapest"),
        ),
    )  # fmt: skip
    max_hourly_cost: float | None = _option(
        "--max-hourly", "$", "Limit the hourly price of one machine, including its disk and address.",
        part="machines", needs="offers", row="Market", label="at most $/h", placeholder="any",
    )  # fmt: skip
    selection: str | None = _option(
        "--selection", "WHICH", "Region to try first: cheapest, or first (the region listed first).",
        part="machines", needs="offers", row="Market", label="tries",
        choices=(("cheapest first", ""), ("first region first", "first")),
    )  # fmt: skip
    budget: float | None = _option(
        "--budget", "$", "Limit the total cost of the pool.",
        part="options", needs="price", row="Budget $", placeholder="none",
        plan=("budget", "${:,.2f} in total; when spent, {then}"),
    )  # fmt: skip
    wait_for_capacity: str | None = _option(
        "--wait-for-capacity", "TIME", "Keep retrying for TIME if no machines are available, such as 2h.",
        part="options", needs="offers", row="Budget $", label="wait for machines", placeholder="not; or 2h",
        plan=("waits", "up to {} if no machines are available"),
    )  # fmt: skip
    grace: float | None = _option(
        "--grace", "TIME",
        "Time between SIGTERM and SIGKILL of a rank.  [default: 30 s if the rank handles SIGTERM, otherwise 5 s]",
        part="options", plan=("grace", "{:g} s between SIGTERM and SIGKILL"),
    )  # fmt: skip
    restarts: int | None = _option(
        "--restarts", "N", "Start the run again after lost ranks or machines, up to N times; always after preemptions.",
        part="options", row="Restarts", placeholder="none; after lost ranks",
        plan=("restarts", "up to {} after lost ranks or machines; always after preemptions"),
    )  # fmt: skip
    error_restarts: int | None = _option(
        "--error-restarts", "N", "Start the run again after errors of its code, up to N times.",
        part="options", row="Restarts", label="after errors", placeholder="none",
        plan=("restarts", "up to {} after errors of the code"),
    )  # fmt: skip
    restart_smaller: bool = _flag(
        "--restart-smaller", "Restart on fewer nodes, within --nodes MIN:MAX, if a lost machine cannot be replaced.",
        part="options", row="Options", label="restart on fewer nodes",
        plan=("restarts", "on fewer nodes if a lost machine cannot be replaced"),
    )  # fmt: skip
    checkpoint_store: str | None = _option(
        "--checkpoint-store", "URL", "Copy complete checkpoints to this folder, such as s3://bucket/runs.",
        part="options", plan=("checkpoints", "complete ones are copied to {}"),
    )  # fmt: skip
    resume: str | None = _option(
        "--resume", "RUN", "Continue from the checkpoints of an earlier run.",
        part="options", plan=("checkpoints", "the run continues those of run {}"),
    )  # fmt: skip
    debug_wait: str | None = _option(
        "--debug-wait", "TIME", "Let a rank wait TIME at a breakpoint for a debugger, such as 10m.",
        part="options", plan=("debugger", "a rank waits {} for a debugger at a breakpoint"),
    )  # fmt: skip
    plugins: Sequence[str] = _option(
        "--plugin", "NAME", "Use this plugin, such as torch. Repeatable.", default=(), part="plugins"
    )
    plugin_settings: Mapping[str, str] = _option(
        "--plugin-set", "PLUGIN.NAME=VALUE", "Set a parameter of a plugin, such as torch.backend=gloo. Repeatable.",
        default={}, part="plugins",
    )  # fmt: skip
    image_settings: Sequence[str] = _option(
        "--image-set", "FIELD=VALUE",
        "Configure the environment of the ranks: pip=einops, setup=..., env.NAME=..., secret=NAME. Repeatable.",
        default=(), part="environment",
    )  # fmt: skip
    lock: str | None = _option(
        "--lock", "FILE", "Install from this lock file: uv.lock, pylock.toml, or NAME==VERSION lines.", part="image"
    )
    requirements: str | None = _option("--requirements", "FILE", "Install from this requirements file.", part="image")
    project: bool = _flag("--project", "Install the dependencies of the project's pyproject.toml.", part="image")
    outputs: Sequence[str] = _option(
        "--outputs", "PATTERN", 'Download files that ranks write, such as "out/**". Repeatable.',
        default=(), part="image", row="Packages", label="outputs", placeholder="such as out/** *.pt",
    )  # fmt: skip
    checkpoints: Sequence[str] = _option(
        "--checkpoints", "PATTERN", 'Treat files that ranks write, such as "out/**", as checkpoints. Repeatable.',
        default=(), part="image",
    )  # fmt: skip
    pool: str | None = _option("--pool", "NAME", "Name of the pool. A running pool of this name is used, and stays up.")
    one: bool = _flag("--one", "Run on one node only.", row="Options", label="one rank")
    torchrun: bool = _flag(
        "--torchrun", "Set torchrun's environment variables for a whole script, even with one rank.",
        plan=("torchrun", "sets torchrun's environment variables, even with one rank"),
    )  # fmt: skip
    keep: bool = _flag(
        "--keep", "Keep the pool up afterwards.", opposite="/--down", row="Options", label="keep the pool afterwards"
    )
    detach: bool = _flag("--detach", "Exit as soon as the function runs. Implies --keep.")
    timeout: float | None = _option(
        "--timeout", "TIME", "Stop ranks after TIME, such as 2h.", plan=("limit", "{:g} s per rank")
    )

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"script": str(Path(self.script)), "function": self.function or None}
        for each in fields(self):
            made = getattr(self, each.name)
            if made is not None and str(each.type).startswith(("Sequence", "Mapping")):
                given[each.name] = tuple(made) if str(each.type).startswith("Sequence") else dict(made)
        for name, made in given.items():
            object.__setattr__(self, name, made)

    @classmethod
    def from_options(
        cls,
        target: str,
        *,
        hosts: str | None = None,
        settings: Sequence[str] = (),
        plugin_settings: Sequence[str] = (),
        **values: Any,
    ) -> LaunchRequest:
        """Return the launch request that the arguments of a command line describe.

        Args:
            target: The script, or ``script:function``.
            hosts: Value of ``--hosts``, for a built-in provider unless another one is named.
            settings: Texts ``name=value`` of ``--set``.
            plugin_settings: Texts ``plugin.name=value`` of ``--plugin-set``.
            values: The other fields by name.

        Raises:
            UsageError: If a text does not have the stated form, or the provider accepts no hosts.
        """
        from skyward_core.tasks.script_functions import split_target

        script, function = split_target(target)
        values["provider"], texts = parse_provider_settings(values.get("provider"), hosts, settings)
        of_plugins = dict(map(_parse_plugin_setting, plugin_settings))
        return cls(script=str(script), function=function, settings=texts, plugin_settings=of_plugins, **values)

    @property
    def shapes_pool(self) -> list[str]:
        """Names of the given options that shape a pool, which an existing pool cannot honor."""
        return [each.name for name, each in OPTIONS.items() if each.part and self.is_given(name)]

    def is_given(self, name: str) -> bool:
        """Check whether the user gave the option a value."""
        given = getattr(self, name)
        return given is not False and given not in (None, (), {})

    def on_pool(self, name: str) -> LaunchRequest:
        """Return the same request without the options that shape a pool, for an existing pool that stays up."""
        return replace(self, pool=name, keep=False, **{name: DEFAULTS[name] for name in options_of()})

    # -- as a command line ---------------------------------------------------------------------------------

    def to_argv(self, *, called: str | None = None) -> list[str]:
        """Return the words of a command line, after the names of the program and the command.

        Args:
            called: Name of the script in the command line, if different from the script's path.

        Raises:
            UsageError: If the command line would be parsed to a different request.
        """
        from skyward_core.client.launch.image_option_parsing import parse_image_options

        # Raises an error for texts with secrets, because a command line must not contain them.
        parse_image_options(self.image_settings)
        words = [word for name, option in OPTIONS.items() for word in self._option_words(name, option.name)]
        target = self._target_word(called)
        behind = ["--", *self.script_args] if self.script_args is not None else []
        if target.startswith("-"):
            target = f"./{target}"  # without "./", the command line would parse the script's name as an option
        return [*(("-m", self.module) if self.module else (target,)), *words, *behind]

    def command_line(self, *program: str, called: str | None = None) -> str:
        """Return the command line as text for a shell.

        Args:
            program: Name of the program, and name of its command.
            called: As in :meth:`to_argv`.

        Raises:
            UsageError: In the same cases as in :meth:`to_argv`.
        """
        return shlex.join([*program, *self.to_argv(called=called)])

    def _target_word(self, called: str | None) -> str:
        from skyward_core.tasks.script_functions import split_target

        behind = f":{self.function}" if self.function else ""
        understood = split_target(self.script + behind)
        if understood != (Path(self.script), self.function):
            meant = " and its function ".join(map(str, filter(None, understood)))
            raise UsageError(f"on a command line {self.script}{behind} means {meant}. Rename the file")
        return (called or self.script) + behind

    def _option_words(self, name: str, option: str) -> Iterator[str]:
        given = getattr(self, name)
        if name == "settings":
            yield from self._provider_words()
        elif name == "plugin_settings":
            yield from self._plugin_words(option)
        elif given is True:
            yield option
        elif isinstance(given, tuple):
            for each in given:
                yield from (option, each)
        elif given is not None and given is not False:
            yield from (option, str(given))

    def _provider_words(self) -> Iterator[str]:
        if not self.settings:
            return
        try:
            declared = {each.name: each for each in _provider_settings(self.provider)}
        except SkywardError:  # ignore an unavailable provider here, because the plan of the launch reports it
            declared = {}
        for name, text in self.settings.items():
            if not name.isidentifier():
                raise UsageError(f"{name!r} is not a valid name of a provider setting")
            yield from format_setting(declared.get(name), name, text)

    def _plugin_words(self, option: str) -> Iterator[str]:
        for name, text in self.plugin_settings.items():
            found, _, parameter = name.rpartition(".")
            if not (found.strip() and parameter.isidentifier()) or "=" in found or found != found.strip():
                raise UsageError(f"{name!r} is not a valid name of a plugin parameter")
            yield from (option, f"{name}={text}")


# Options by the names of their fields, in their order on a command line.
OPTIONS: Mapping[str, Option] = {
    each.name: replace(each.metadata["option"], type=str(each.type))
    for each in fields(LaunchRequest)
    if "option" in each.metadata
}

# Default values of all fields.
DEFAULTS: Mapping[str, Any] = {
    each.name: getattr(LaunchRequest(script=""), each.name) for each in fields(LaunchRequest)
}

# Fields of a request that run each combination of a sweep as a gang, with a description of the gang.
WAYS: Mapping[str, str] = {"gang": "every rank", "gang_nodes": "some nodes"}

# Script of a request that names none.
NO_SCRIPT = str(Path())

# Fields of an image that name a package file of the project.
PACKAGES = ("lock", "requirements", "project")

# Provider setting with its own command-line option.
HOSTS = "--hosts"


# Options that start a failed run again.
RESTART_OPTIONS = ("restarts", "error_restarts")

# Limits of a pool that the launch form also offers for a job file.
JOB_LIMITS = ("budget", "wait_for_capacity", *RESTART_OPTIONS)

# Options that also apply to a job file, whose shell commands have no breakpoints.
JOB_OPTIONS = tuple(
    name
    for name, each in OPTIONS.items()
    if name == "checkpoints" or (each.part in ("provider", "options", "plugins") and name != "debug_wait")
)

_RUN_ONLY = ("arguments", "sweep", *WAYS, "nodes", "ranks_per_node", "one", "torchrun", "timeout")
# Options of each command.
COMMANDS: Mapping[str, Sequence[str]] = {
    "run": tuple(OPTIONS),
    "torchrun": tuple(name for name in OPTIONS if name not in _RUN_ONLY),
    "launch": JOB_OPTIONS,
}


def options_of(*parts: str) -> list[str]:
    """Return the names of the options that shape the given parts of a pool, such as "image"; by default any part."""
    return [name for name, each in OPTIONS.items() if (each.part in parts if parts else each.part)]


def format_setting(setting: Setting | None, name: str, text: str) -> tuple[str, str]:
    """Return a provider's setting as two words of a command line: ``--set NAME=VALUE`` or ``--hosts VALUE``."""
    if setting is not None and setting.option == HOSTS:
        return HOSTS, text
    return OPTIONS["settings"].name, f"{name}={text}"


def parse_provider_settings(
    provider: str | None, hosts: str | None, settings: Sequence[str]
) -> tuple[str | None, dict[str, str]]:
    """Return the provider that a command line selects, and its settings.

    Args:
        provider: Name of the provider; None if the user gave none.
        hosts: Value of ``--hosts``, for a built-in provider unless another one is named.
        settings: Texts ``name=value``.

    Raises:
        UsageError: If a setting does not have the stated form, or the provider accepts no hosts.
    """
    texts = dict(map(parse_setting, settings))
    if hosts is not None:
        provider = provider or _default_hosts_provider()
        own = [each.name for each in _provider_settings(provider) if each.option == HOSTS]
        if not own:
            raise UsageError(f"--hosts cannot be combined with provider {provider}. Remove one of them")
        texts[own[0]] = hosts
    return provider, texts


def _provider_settings(provider: str | None) -> Sequence[Setting]:
    from skyward_core.model.provider_settings_schema import declared_settings
    from skyward_core.providers import DEFAULT_PROVIDER, provider_class

    return declared_settings(provider_class(provider or DEFAULT_PROVIDER))


def parse_setting(text: str) -> tuple[str, str]:
    """Return the name and the value of a provider's setting, ``KEY=VALUE``.

    Raises:
        UsageError: If the text does not have this form.
    """
    name, equals, given = text.partition("=")
    if not (name.strip() and equals):
        raise UsageError(f"--set {text}: invalid setting. Write KEY=VALUE")
    return name.strip(), given


def _parse_plugin_setting(text: str) -> tuple[str, str]:
    name, equals, given = text.partition("=")
    plugin, _, parameter = name.strip().rpartition(".")
    if not (equals and plugin and parameter):
        raise UsageError(f"{OPTIONS['plugin_settings'].name} {text}: invalid plugin parameter. Write PLUGIN.NAME=VALUE")
    return name.strip(), given


def _default_hosts_provider() -> str:
    """Return the name of the built-in provider that accepts hosts."""
    from skyward_core.providers import built_in_names

    for name in built_in_names():
        if any(each.option == HOSTS for each in _provider_settings(name)):
            return name
    raise UsageError(f"{HOSTS} needs a provider. Name it with --provider")
