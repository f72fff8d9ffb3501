"""Options that several commands have: where machines come from, what they have to be and may cost, what goes with a
script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

Decorated = Callable[..., Any]


def _all(options: Sequence[Callable[[Decorated], Decorated]]) -> Callable[[Decorated], Decorated]:
    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


of_settings = click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of the provider; repeatable."
)
of_place = _all(
    (
        click.option(
            "--provider", metavar="NAME", help="Where machines come from, such as ssh.  [default: local]"
        ),
        click.option(
            "--hosts", metavar="HOST,...", help="Hosts to reach over SSH, or a group of skyward.toml."
        ),
        of_settings,
    )
)
of_accelerator = click.option(
    "--accelerator", metavar="NAME[:N]", help="What each machine carries, such as A100-80GB:8."
)
of_ranks = _all(
    (
        click.option(
            "--plugin", "plugins", metavar="NAME", multiple=True, help="A plugin, such as torch; repeatable."
        ),
        click.option(
            "--plugin-set",
            "plugin_settings",
            metavar="PLUGIN.NAME=VALUE",
            multiple=True,
            help="A parameter of a plugin, such as torch.backend=gloo; repeatable.",
        ),
        click.option(
            "--output",
            "outputs",
            metavar="PATTERN",
            multiple=True,
            help='Files that ranks write and that are brought here, such as "out/**"; repeatable.',
        ),
    )
)
of_packages = _all(
    (
        click.option(
            "--image-set",
            "image_settings",
            metavar="FIELD=VALUE",
            multiple=True,
            help="Of the ranks' environment: pip=einops, setup=..., env.NAME=..., secret=NAME; repeatable.",
        ),
        click.option(
            "--lock",
            metavar="FILE",
            help="Install what this lock has: uv.lock, pylock.toml, or NAME==VERSION lines.",
        ),
        click.option("--requirements", metavar="FILE", help="Install what this requirements file asks for."),
        click.option("--project", is_flag=True, help="Install what the project's pyproject.toml depends on."),
    )
)
of_pool = _all(
    (
        click.option("--pool", metavar="NAME", help="The pool's name; one that is up is used, and stays up."),
        click.option("--keep", is_flag=True, help="Leave the pool up afterwards."),
        click.option(
            "--debug-wait", metavar="TIME", help="Wait so long at breakpoints for who debugs, such as 10m."
        ),
    )
)
# Of a pool that is made for a run.
of_market = _all(
    (
        click.option(
            "--allocation", metavar="MARKET", help="on-demand, spot, spot-if-available or cheapest of both."
        ),
        click.option(
            "--max-hourly",
            "max_hourly_cost",
            metavar="$",
            type=click.FloatRange(0, min_open=True),
            help="What an hour of a machine may cost, with disk and address.",
        ),
        click.option(
            "--selection", metavar="WHICH", help="cheapest, or first: the region that is named first."
        ),
        click.option(
            "--budget", metavar="$", type=click.FloatRange(0, min_open=True), help="What the pool may cost."
        ),
        click.option(
            "--wait-for-capacity",
            metavar="TIME",
            help="Try for so long where there are no machines, such as 2h.",
        ),
    )
)
# Of machines that are looked for, and not made.
of_offers = _all(
    (
        click.option(
            "--accelerator", metavar="NAME[:N]", help="What a machine has to carry, such as H100:8."
        ),
        click.option(
            "--max-hourly",
            metavar="$",
            type=click.FloatRange(0, min_open=True),
            help="What an hour may cost, all told.",
        ),
        click.option("--spot", is_flag=True, help="Spot machines only, which can be taken back at any time."),
        click.option("--region", "regions", metavar="R", multiple=True, help="Where; repeatable."),
        click.option("--zone", "zones", metavar="Z", multiple=True, help="Only there; repeatable."),
        click.option("--efa", is_flag=True, help="With EFA, the fast network between machines of AWS."),
        click.option(
            "--vcpus", metavar="N", type=click.IntRange(0), default=0, help="At least so many vCPUs."
        ),
        click.option(
            "--memory", metavar="GB", type=click.FloatRange(0), default=0, help="At least so much memory."
        ),
        click.option(
            "--arch", "architecture", type=click.Choice(["x86_64", "arm64"]), help="Of this architecture."
        ),
        click.option(
            "--block", metavar="HOURS", type=click.IntRange(1), help="What can be bought ahead, for so long."
        ),
        click.option(
            "--nodes", metavar="N", type=click.IntRange(1), help="So many machines of it.  [default: 1]"
        ),
    )
)


of_watch = click.option(
    "--watch", is_flag=True, help="Tell how it is in a few lines, in place of all that ranks print."
)


_of_variables = (
    click.option(
        "--env", "env", metavar="NAME[=VALUE]", multiple=True, help="A variable of the job; repeatable."
    ),
    click.option(
        "--secret",
        "secrets",
        metavar="NAME[=VALUE]",
        multiple=True,
        help="One that is blanked in logs; repeatable.",
    ),
)


def of_variables(command: Any) -> Any:
    for option in reversed(_of_variables):
        command = option(command)
    return command
