"""Commands that run job files, and plain commands, on pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .command_console import console_of, of_json
from .number_options import SomeNodes
from .shared_options import of_place, of_variables, of_watch


@click.command()
@click.argument("file", metavar="TASK.YAML")
@click.option(
    "-c", "--pool", "pool", metavar="POOL", help="The pool's name; one that is up is used as it is."
)
@of_place
@of_variables
@click.option("--no-setup", is_flag=True, help="Do not run the file's setup.")
@click.option("--detach", is_flag=True, help="Leave as soon as the job runs.")
@click.option(
    "-i",
    "--idle-minutes",
    metavar="MIN",
    type=click.FloatRange(0, min_open=True),
    help="The pool ends so long after its last use.",
)
@click.option(
    "--down", is_flag=True, help="Tear the pool down when the job is over; with -i once it is idle."
)
@click.option(
    "--budget", metavar="$", type=click.FloatRange(0, min_open=True), help="What the pool may cost."
)
@click.option(
    "--wait-for-capacity", metavar="TIME", help="Try for so long where there are no machines, such as 2h."
)
@click.option(
    "--plugin",
    "plugins",
    metavar="NAME",
    multiple=True,
    help="A plugin of the pool, such as mpi; repeatable.",
)
@click.option(
    "--plugin-set",
    "plugin_settings",
    metavar="PLUGIN.NAME=VALUE",
    multiple=True,
    help="A parameter of a plugin, such as torch.backend=gloo; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be made and run.")
@of_watch
@of_json
def launch(
    file: str,
    env: tuple[str, ...],
    secrets: tuple[str, ...],
    no_setup: bool,
    detach: bool,
    idle_minutes: float | None,
    down: bool,
    dry_run: bool,
    watch: bool,
    as_json: bool,
    **said: Any,
) -> int:
    """Run a job file, as SkyPilot's task YAML is, on a pool.

    On one of its own, or on one that is up.

    Files and working folder are brought to all nodes; then setup runs on all of them, then run. The pool stays up, and
    ends itself when nobody has used it for a while.
    """
    with console_of(as_json) as console:
        from skyward_core.front.job_request import JobFile, request_of
        from skyward_core.front.shell_tasks import said_variables

        from .commands.job import launch as execute

        if detach and down and idle_minutes is None:
            raise click.UsageError(
                "--detach leaves the job running, and --down ends its pool: give -i MIN with both"
            )
        job = JobFile.from_yaml(
            Path(file), env=said_variables("--env", env), secrets=said_variables("--secret", secrets)
        )
        idle = None if idle_minutes is None else idle_minutes * 60
        request = request_of(job, idle_timeout=idle, **said)
        ends = down and idle is None
        return execute(
            request, console, setup=not no_setup, detach=detach, down=ends, dry_run=dry_run, watch=watch
        )


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@of_variables
@click.option(
    "--nodes",
    metavar="N|LIST",
    type=SomeNodes(),
    help="Run a command on so many nodes, or on these (0,2); it waits until they are free.",
)
@click.option("--detach", is_flag=True, help="Leave as soon as it runs.")
@of_watch
@of_json
@click.argument("pool")
@click.argument(
    "words", metavar="TASK.YAML | [--] COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED
)
def exec_(
    pool: str,
    words: tuple[str, ...],
    env: tuple[str, ...],
    secrets: tuple[str, ...],
    nodes: int | tuple[int, ...] | None,
    detach: bool,
    watch: bool,
    as_json: bool,
) -> int:
    """Run a job file, or a command, on a pool that is up.

    Of a file its working folder is brought anew, and its run is run; its setup is not. A command runs on every rank:
    exec POOL nvidia-smi -L. Its exit status is that of the first rank that failed.
    """
    with console_of(as_json) as console:
        from skyward_core.front.shell_tasks import said_variables, values_here

        from .commands.execute import execute

        if words[0].startswith("-") and words[0] != "--":
            raise click.UsageError(
                f"options of exec stand before the pool, as in exec {words[0]} … {pool} COMMAND; "
                f"a command of that name behind --"
            )
        words = words[1:] if words[:1] == ("--",) else words
        if not words:
            raise click.UsageError("name a job file, or a command")
        is_file = words[0].endswith((".yaml", ".yml"))
        if is_file and len(words) > 1:
            raise click.UsageError(
                f"options of exec stand before the pool: exec {' '.join(words[1:])} {pool} {words[0]}"
            )
        given, hidden = said_variables("--env", env), said_variables("--secret", secrets)
        if is_file:
            if nodes is not None:
                raise click.UsageError(
                    f"{words[0]} says on how many nodes it runs, by num_nodes: leave out --nodes"
                )
            from skyward_core.front.job_request import JobFile

            job = JobFile.from_yaml(Path(words[0]), env=given, secrets=hidden)
            return execute(pool, (), console, job=job, env={}, secrets={}, detach=detach, watch=watch)
        values = values_here("--env", given), values_here("--secret", hidden)
        said: dict[str, Any] = {"env": values[0], "secrets": values[1]}
        return execute(pool, words, console, **said, detach=detach, watch=watch, nodes=nodes)


@click.command()
@click.argument("pool")
@of_json
def queue(pool: str, as_json: bool) -> int:
    """Show which runs have a pool's nodes, and which wait.

    Of those that wait it says why. First come, first served: a run that waits is before all that came after it.
    "cancel RUN" takes one out.
    """
    with console_of(as_json) as console:
        from .commands.queue import queue as execute

        return execute(pool, console)


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@of_json
def cp(source: str, target: str, as_json: bool) -> int:
    """Copy files and folders to a node, or from it.

    One of SRC and DST is POOL:PATH, or POOL:RANK:PATH for the node of that rank; PATH is from the login's home.
    """
    with console_of(as_json) as console:
        from .commands.copy import copy as execute

        return execute(source, target, console)


@click.command()
@click.argument("target", metavar="POOL[:RANK]")
@click.argument("ports", metavar="[LOCAL:]PORT...", nargs=-1, required=True)
def forward(target: str, ports: tuple[str, ...]) -> int:
    """Bring ports of a node to this machine, by ssh.

    A tensorboard or a notebook on the head is then at http://127.0.0.1:PORT, for this machine alone, until ctrl-c.
    """
    with console_of(False) as console:
        from .commands.hosts import forward as execute

        return execute(target, ports, console)
