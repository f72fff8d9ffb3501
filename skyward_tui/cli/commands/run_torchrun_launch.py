"""Commands ``run``, ``torchrun`` and ``launch``: their options, help and arguments of scripts.

The modules that do the work are imported only when a command runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from skyward_core.client.launch.launch_option_declarations import (
    COMMANDS,
    HOSTS,
    OPTIONS,
    RESTART_OPTIONS,
    LaunchRequest,
)
from skyward_core.model.errors import ScriptError, SpecError
from skyward_core.util.safe_file_access import exists, is_file
from skyward_tui.cli.shared_options_and_command_class import (
    SCRIPT_ARGUMENTS,
    SHORTEST,
    ConsoleCommand,
    Decorated,
    Duration,
    combine_options,
    command,
    variable_options,
    watch_option,
)

if TYPE_CHECKING:
    from skyward_core.client.launch.plugin_and_provider_catalog import FunctionInfo
    from skyward_tui.cli.console_and_log_printer import Console


class NodesOption(click.ParamType[int | str]):
    """Option value: a number of machines as an integer, or a range such as "2:8" in its canonical form."""

    name = "N|MIN:MAX"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        from skyward_core.model.specs import Spec

        text = str(value)
        try:
            number = Spec(nodes=int(text) if text.isdecimal() else text).nodes
        except SpecError as error:
            self.fail(error.reason, param, ctx)
        return number if isinstance(number, int) else str(number)


class RanksOption(click.ParamType[int | str]):
    """Option value: a number of ranks, or "gpu"."""

    name = "N|gpu"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        if value == "gpu":
            return "gpu"
        if isinstance(value, str) and value.isdecimal() and 1 <= int(value) <= 64:
            return int(value)
        self.fail(f"{value!r} is neither a number from 1 to 64 nor gpu", param, ctx)


def launch_options(command: str) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds those launch options that the given command supports."""
    types: Mapping[str, click.ParamType[Any]] = {
        "float | None": click.FloatRange(0, min_open=True),
        "grace": Duration(),
        "timeout": Duration(SHORTEST),
        "int | None": click.IntRange(1),
        **dict.fromkeys(RESTART_OPTIONS, click.IntRange(0, 1000)),
        "int | str | None": NodesOption(),
        "int | Literal['gpu'] | None": RanksOption(),
    }
    made = []
    for name in COMMANDS[command]:
        each = OPTIONS[name]
        words = [word for word in (each.short, each.name + each.opposite, name) if word]
        more: dict[str, Any] = {"is_flag": True}
        if not each.is_flag:
            checked = types.get(name, types.get(each.type))
            more = {"metavar": each.metavar, "type": checked, "multiple": each.is_repeatable}
        made.append(click.option(*words, help=each.help, **more))
        if name == "provider":
            about = "Use these SSH hosts, or a group of skyward.toml."
            made.append(click.option(HOSTS, metavar="HOST,...", help=about))
    return combine_options(*made)


RENDEZVOUS_NOTE = "the ranks connect to a free port of node 0"
LOGS_NOTE = (
    "the logs of all ranks are shown with the rank in front, and saved. Read them with: skyward-tui logs RUN:RANK"
)
WATCHED_NOTE = "the agent of each node detects the end of a rank at once"
ONE_POOL_NOTE = "one command starts all nodes. Run it once without this option"


@dataclass(frozen=True)
class TorchrunOption:
    """An option of torchrun that has no effect here or is rejected. ``reason`` states why."""

    reason: str
    refused: bool = False
    is_flag: bool = False
    short: str = ""
    # value of the option that equals skyward's behavior, so that no note about an ignored option is printed
    neutral: str = ""


TORCHRUN_OPTIONS: Mapping[str, TorchrunOption] = {
    "standalone": TorchrunOption("", is_flag=True),
    "run-path": TorchrunOption("", is_flag=True),
    "rdzv-backend": TorchrunOption(RENDEZVOUS_NOTE, neutral="c10d"),
    "rdzv-endpoint": TorchrunOption(RENDEZVOUS_NOTE),
    "rdzv-id": TorchrunOption("TORCHELASTIC_RUN_ID is the pool's name"),
    "rdzv-conf": TorchrunOption(RENDEZVOUS_NOTE),
    "master-addr": TorchrunOption(RENDEZVOUS_NOTE, neutral="127.0.0.1"),
    "master-port": TorchrunOption(RENDEZVOUS_NOTE),
    "local-addr": TorchrunOption("the provider knows each node's address"),
    "node-rank": TorchrunOption(ONE_POOL_NOTE, refused=True, neutral="0"),
    "monitor-interval": TorchrunOption(WATCHED_NOTE),
    "start-method": TorchrunOption("every rank is a fresh interpreter", neutral="spawn"),
    "event-log-handler": TorchrunOption(WATCHED_NOTE, neutral="null"),
    "role": TorchrunOption("ROLE_NAME is default", neutral="default"),
    "no-python": TorchrunOption("ranks run only Python scripts", refused=True, is_flag=True),
    "log-dir": TorchrunOption(LOGS_NOTE),
    "redirects": TorchrunOption(LOGS_NOTE, short="-r", neutral="0"),
    "tee": TorchrunOption(LOGS_NOTE, short="-t", neutral="0"),
    "local-ranks-filter": TorchrunOption(LOGS_NOTE),
    "duplicate-stdout-filters": TorchrunOption(LOGS_NOTE),
    "duplicate-stderr-filters": TorchrunOption(LOGS_NOTE),
    "logs-specs": TorchrunOption("the format of the logs cannot be changed", refused=True),
    "numa-binding": TorchrunOption("binding ranks to processors is not supported", refused=True),
    "signals-to-handle": TorchrunOption("ranks get SIGTERM when their run is cancelled"),
    "shutdown-timeout": TorchrunOption("a rank has 5 s from SIGTERM to SIGKILL"),
    "virtual-local-rank": TorchrunOption(
        "--nproc-per-node gpu shows each rank only its own GPU, and LOCAL_RANK still counts from 0",
        refused=True,
        is_flag=True,
    ),
}


def torchrun_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add those options of torchrun that have no effect to a command; its help hides them."""
    for name, other in TORCHRUN_OPTIONS.items():
        variable = name.replace("-", "_")
        spelled = dict.fromkeys(filter(None, (f"--{name}", f"--{variable}", other.short)))
        how: dict[str, Any] = {"is_flag": True} if other.is_flag else {"envvar": f"PET_{variable.upper()}"}
        command = click.option(*spelled, variable, hidden=True, default=None, **how)(command)
    return command


def ignored_option_notes(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note about each given option of torchrun that has no effect.

    Args:
        values: Values of the command's options by name; options that are not torchrun's are skipped.

    Raises:
        click.UsageError: If a given option is not supported.
    """
    for name, other in TORCHRUN_OPTIONS.items():
        value = values.get(name.replace("-", "_"))
        if value in (None, False, "", other.neutral) or not other.reason:
            continue
        if other.refused:
            _refuse(name, other.reason)
        yield f"--{name} is ignored: {other.reason}"


def _refuse(name: str, reason: str) -> NoReturn:
    raise click.UsageError(f"--{name}: {reason}")


def parse_nproc(text: str, *, is_here: bool) -> int | Literal["gpu"]:
    """Return the ranks per node for a value of ``--nproc-per-node``.

    Args:
        text: The value.
        is_here: Whether all nodes run on this machine.

    Raises:
        click.UsageError: If the value is not a number of ranks, or can only be determined on a remote machine.
    """
    if text == "auto":
        text = "cpu" if is_here and not Path("/dev/nvidia0").exists() else "gpu"
    if text == "cpu" and is_here:
        text = str(min(os.cpu_count() or 1, 64))
    if text == "gpu":
        return "gpu"
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        _refuse("nproc-per-node", f"{text!r} is not a number from 1 to 64, gpu or auto (on this machine also cpu)")
    return int(text)


def module_file(module: str) -> Path:
    """Return the file that ``-m`` runs for a module below the current folder.

    Raises:
        click.UsageError: If there is no such file.
    """
    here = Path(*module.split("."))
    for path in (here.with_suffix(".py"), here / "__main__.py"):
        if is_file(path):
            return path
    raise click.UsageError(f"-m {module}: there is neither {here}.py nor {here}/__main__.py in the current folder")


# minimum similarity, from 0 to 1, of an option to be suggested: --detach must not be suggested for --epochs
SIMILARITY_CUTOFF = 0.75


class ScriptCommand(ConsoleCommand):
    """Class of commands whose first argument is a script. Options that the command does not know are left in
    ``context.args``, as arguments of the script.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {"ignore_unknown_options": True, "allow_extra_args": True}
        super().__init__(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own: list[str] | None = None
        if "--" in args:
            at = args.index("--")
            args, own = args[:at], args[at + 1 :]
            if own and not self._names_script(ctx, args) and _is_script(own[0]):
                args, own = [*args, f"./{own[0]}" if own[0].startswith("-") else own[0]], own[1:] or None
        ctx.meta[SCRIPT_ARGUMENTS] = own
        ctx.meta["script"] = next(filter(_is_script, args), None)
        rest = super().parse_args(ctx, args)
        self._reject_unknown_option(ctx)
        return rest

    def _reject_unknown_option(self, ctx: click.Context) -> None:
        """Reject an unknown option, which the parser has taken for the script.

        Raises:
            click.NoSuchOption: If the argument for the script begins with a dash.
        """
        target = ctx.params.get("target")
        if not isinstance(target, str) or not target.startswith("-") or ctx.resilient_parsing:
            return
        flag, script = target.partition("=")[0], ctx.meta["script"]
        hint = f" Arguments of a script must follow its name: {script} {flag}." if script else ""
        close = _close_options(flag, command_options(self))
        raise click.NoSuchOption(flag, f"No such option {flag!r}.{hint}", close, ctx)

    def _names_script(self, ctx: click.Context, args: list[str]) -> bool:
        """Check whether the words of a command line include a script, in addition to options and their values."""
        target = self.make_parser(ctx).parse_args(list(args))[0].get("target")
        return isinstance(target, str) and not target.startswith("-")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        target = ctx.meta.get("script")
        for function in _functions(target) if target else ():
            with formatter.section(f"Arguments of {function.name}"):
                rows = list(_function_signature(function))
                formatter.write_dl(rows) if rows else formatter.write_text("none")


def script_commands(target: str) -> list[str]:
    """Return the ``sky.app`` commands of a script; empty if the target names a function that is not a command.

    Raises:
        ScriptError: If the script cannot be read.
    """
    from skyward_core.client.launch.plugin_and_provider_catalog import list_commands, split_target

    path, function = split_target(target)
    names = [each.name for each in list_commands(path)] if is_file(path) else []
    return names if function is None or function in names else []


def script_arguments(context: click.Context, target: str) -> list[str] | None:
    """Return the command-line arguments of a script that runs as a whole; None if only one of the script's functions is
    called.

    Raises:
        click.UsageError: If the script runs as a whole, but its arguments are not after ``--``.
    """
    from skyward_core.client.launch.plugin_and_provider_catalog import has_functions, split_target

    own: list[str] | None = context.meta[SCRIPT_ARGUMENTS]
    path, function = split_target(target)
    if own is None and function is None and is_file(path) and not has_functions(path):
        own = []
    if own is not None and context.args:
        close = _close_options(context.args[0].partition("=")[0], command_options(context.command))
        raise click.UsageError(
            f"{path} runs as a whole, so its arguments must follow --. Write: {path} -- {' '.join(context.args)}"
            + (f". Did you mean {close[0]}?" if close else "")
        )
    return own


def function_arguments(target: str, unparsed: Sequence[str], own: Sequence[str]) -> list[str]:
    """Convert flags of a function (``--epochs 5``, ``--epochs=5``, ``--fast``, ``--no-fast``) to ``name=value``.

    Args:
        target: The script, or ``script:function``.
        unparsed: Words of the command line that are not options of the command.
        own: The command's own options, which errors may suggest.

    Raises:
        click.UsageError: If a word is not a flag of the function.
    """
    from skyward_core.client.launch.plugin_and_provider_catalog import find_function, split_target

    if not unparsed:
        return []
    function = find_function(*split_target(target))
    params = {each.name: each for each in function.params if each.kind not in ("var_keyword", "var_positional")}
    takes_all = any(each.kind == "var_keyword" for each in function.params)
    texts, words = [], list(unparsed)
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        known = params.get(name)
        if not flag.startswith("--"):
            raise click.UsageError(f"{word!r} is not a flag of {function}. Write: --{word if known else 'NAME VALUE'}")
        if known is None and name.startswith("no_") and _is_flag(params.get(name[3:])) and not equals:
            texts.append(f"{name[3:]}=false")
        elif known is None and not takes_all:
            raise click.UsageError(_unknown_flag_error(flag, function, list(params), own))
        elif equals:
            texts.append(f"{name}={value}")
        elif _is_flag(known) and (not words or words[0].startswith("--")):
            texts.append(f"{name}=true")
        elif not words:
            raise click.UsageError(f"{flag} of {function.name} needs a value: {flag} VALUE")
        else:
            texts.append(f"{name}={words.pop(0)}")
    return texts


# option names of similar tools, and the options of ``run`` with the same meaning
_MEANT_OPTIONS = {"--name": "--pool", "--cluster": "--pool", "--gpus": "--accelerator"}


def _unknown_flag_error(flag: str, function: FunctionInfo, params: Sequence[str], own: Sequence[str]) -> str:
    flags = [_flag(name) for name in params]
    close = [each for each in own if each == _MEANT_OPTIONS.get(flag)] or _close_options(flag, [*flags, *own])
    text = f"unknown option {flag}. Arguments of {function.name}: {', '.join(flags) or 'none'}"
    return text + (f". Did you mean {close[0]}?" if close else "")


def _close_options(flag: str, known: Sequence[str]) -> list[str]:
    return get_close_matches(flag, known, n=1, cutoff=SIMILARITY_CUTOFF)


def command_options(command: click.Command) -> list[str]:
    """Return the long options of a command, without hidden ones."""
    shown = (each for each in command.params if not getattr(each, "hidden", False))
    return [name for each in shown for name in each.opts if name.startswith("--")]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _is_flag(param: Any) -> bool:
    return param is not None and (param.annotation == "bool" or param.default in ("True", "False"))


def _function_signature(function: FunctionInfo) -> Iterator[tuple[str, str]]:
    from skyward_core.client.launch.plugin_and_provider_catalog import argument_fields

    fields = {each.name: each for each in argument_fields(function)}
    for param in function.params:
        if param.kind.startswith("var"):
            yield f"-a NAME=VALUE ({param})", ""
            continue
        field = fields[param.name]
        wants = "|".join(field.choices) or (param.annotation or "VALUE").upper()
        kind = "" if _is_flag(param) else f" {wants}"
        both = f" / --no-{param.name.replace('_', '-')}" if _is_flag(param) else ""
        default = "[required]" if param.required else f"[default: {param.default}]"
        yield f"{_flag(param.name)}{both}{kind}", f"{field.help}  {default}" if field.help else default


def _functions(target: str) -> list[FunctionInfo]:
    from skyward_core.client.launch.plugin_and_provider_catalog import (
        find_function,
        list_commands,
        list_functions,
        split_target,
    )

    path, name = split_target(target)
    try:
        if commands := [each for each in list_commands(path) if name in (None, each.name)]:
            return commands
        return list_functions(path) if name is None else [find_function(path, name)]
    except ScriptError:  # no error here, because running the script reports the same error
        return []


def _is_script(word: str) -> bool:
    path = word.rpartition(":")[0] if not exists(word) and ":" in word else word
    return word.startswith("example:") or path.endswith(".py") or is_file(path)


@command(cls=ScriptCommand, options_metavar="[OPTIONS]")
@click.argument("target", metavar="SCRIPT[:FUNCTION]")
@launch_options("run")
@click.option(
    "-m", "--module", "as_module", is_flag=True, help="Treat SCRIPT as a module name, and run it like python -m."
)
@click.option("--dry-run", is_flag=True, help="Show the plan and its cost without creating or running anything.")
@watch_option
@click.option("--on-change", is_flag=True, help="Run again on the same pool whenever the script or its modules change.")
@click.pass_context
def run(
    context: click.Context,
    console: Console,
    /,
    target: str,
    as_module: bool,
    dry_run: bool,
    watch: bool,
    on_change: bool,
    **given: Any,
) -> int:
    """Run a script's function on every rank, and show the results.

    Pass arguments of the function after the script: run train.py --epochs 5. A script without a function, or with --
    after its name, runs as a whole, as with python: run train.py -- --epochs 5. A script with commands of sky.app runs
    as with python -m skyward_core, on the machines that it names.

    The pool is created for the run and torn down afterwards. ctrl-c asks whether to detach, cancel or tear down.
    Without a terminal, ctrl-c and SIGTERM cancel the run. A second signal tears the pool down.

    Run the script again on the same pool after each edit: run train.py --on-change. ctrl-c ends this.
    """
    from skyward_tui.cli.commands import launched_and_attached_runs as work
    from skyward_tui.launch_form.form import expand_example

    if as_module:
        given["module"], target = target, str(module_file(target))
        context.meta[SCRIPT_ARGUMENTS] = context.meta[SCRIPT_ARGUMENTS] or []
    target = expand_example(target)
    if not as_module and (commands := script_commands(target)):
        return work.run_command(context, target, commands, console)
    given["script_args"] = own = script_arguments(context, target)
    if own is None:
        options = command_options(context.command)
        given["arguments"] = [*given["arguments"], *function_arguments(target, context.args, options)]
    request = LaunchRequest.from_options(target, **given)
    return work.run(request, console, dry_run=dry_run, watch=watch, on_change=on_change)


@command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--nnodes",
    metavar="N",
    type=NodesOption(),
    envvar="PET_NNODES",
    help="Number of machines.  [default: 1, or all hosts]",
)
@click.option(
    "--nproc-per-node", "--nproc_per_node", metavar="N|gpu", default="1", envvar="PET_NPROC_PER_NODE",
    help="Number of ranks on each machine.  [default: 1]",
)  # fmt: skip
@click.option("-m", "--module", "as_module", is_flag=True, help="Treat TRAIN.PY as a module name, like python -m.")
@click.option(
    "--max-restarts", "--max_restarts", metavar="N", type=click.IntRange(0, 1000), envvar="PET_MAX_RESTARTS",
    help="Same as --restarts N --error-restarts N, because torchrun restarts after any failure.",
)  # fmt: skip
@torchrun_options
@launch_options("torchrun")
@watch_option
@click.argument("training_script", metavar="TRAIN.PY")
@click.argument("script_args", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def torchrun(
    console: Console,
    training_script: str,
    nnodes: int | str | None,
    nproc_per_node: str,
    as_module: bool,
    max_restarts: int | None,
    watch: bool,
    **given: Any,
) -> int:
    """Run a script with the options of torchrun.

    All options of torchrun are accepted. Options without a meaning here are reported or rejected. Words after the
    script are the script's own arguments.
    """
    from skyward_core.client.launch.plugin_and_provider_catalog import DEFAULT_PROVIDER
    from skyward_tui.cli.commands import launched_and_attached_runs as run

    notes = list(ignored_option_notes(given))
    asked = {name: value for name, value in given.items() if name.replace("_", "-") not in TORCHRUN_OPTIONS}
    for note in notes:
        console.note(note)
    if not asked["pool"] or (nproc_per_node, nnodes) != ("1", None):
        is_here = not asked["hosts"] and asked["provider"] in (None, DEFAULT_PROVIDER)
        asked |= {"nodes": nnodes, "ranks_per_node": parse_nproc(nproc_per_node, is_here=is_here)}
    for name in RESTART_OPTIONS if max_restarts else ():
        asked[name] = max_restarts if asked[name] is None else asked[name]
    asked["torchrun"] = nnodes in (None, 1) and nproc_per_node in ("1", "gpu", "auto", "cpu")
    if as_module:
        asked["module"] = training_script
        training_script = str(module_file(training_script))
    return run.run(LaunchRequest.from_options(training_script, **asked), console, watch=watch)


@command()
@click.argument("file", metavar="TASK.YAML")
@click.option(
    "-c", "--pool", "pool", metavar="POOL", help="Name of the pool. A running pool of this name is used as it is."
)
@launch_options("launch")
@variable_options
@click.option("--no-setup", is_flag=True, help="Skip the setup commands of the job file.")
@click.option("--detach", is_flag=True, help="Exit as soon as the job runs.")
@click.option("--idle", type=Duration(SHORTEST), help="Shut the pool down after this idle time, such as 10m.")
@click.option("-i", "--idle-minutes", type=click.FloatRange(0, min_open=True), hidden=True)
@click.option("--down/--keep", help="Tear the pool down after the job; with --idle, after the idle time.")
@click.option("--dry-run", is_flag=True, help="Show the plan without creating or running anything.")
@watch_option
def launch(
    console: Console,
    file: str,
    env: Sequence[str],
    secrets: Sequence[str],
    no_setup: bool,
    detach: bool,
    idle: float | None,
    idle_minutes: float | None,
    down: bool,
    dry_run: bool,
    watch: bool,
    **options: Any,
) -> int:
    """Run a job file (SkyPilot task YAML) on a pool.

    The job runs on a new pool, or on a running pool named by --pool.

    The files and the working folder are uploaded to all nodes. Then setup runs on all nodes, then run. The pool stays
    up, and shuts down after its idle time.
    """
    from skyward_core.client.launch import job_and_shell_launch
    from skyward_tui.cli.commands import exec_launch_queue

    idle = idle_minutes * 60 if idle is None and idle_minutes is not None else idle
    if detach and down and idle is None:
        raise click.UsageError("--down with --detach would end the running job. Add --idle TIME to these two options")
    given = job_and_shell_launch.parse_variables("--env", env)
    hidden = job_and_shell_launch.parse_variables("--secret", secrets)
    job = job_and_shell_launch.read_job_file(Path(file), given, hidden)
    request = job_and_shell_launch.JobRequest(
        job=job, options=LaunchRequest.from_options(file, **options), idle_timeout=idle
    )
    ends = down and idle is None
    return exec_launch_queue.launch(
        request, console, setup=not no_setup, detach=detach, down=ends, dry_run=dry_run, watch=watch
    )
