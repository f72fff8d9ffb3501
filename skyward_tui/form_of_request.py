"""The launch form filled with what a request asks for: the way back from :func:`.launch_form.request_of`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from skyward_core.front.launch_request import PACKAGES, LaunchRequest
from skyward_core.front.providers import DEFAULT
from skyward_core.model.errors import UsageError

from .launch_form import ALL_NODES, RANKS, Form, fields_of, path_of, rows_of
from .launch_packages import choice_of


def _written(value: object) -> str:
    return "" if value is None else str(value)


def _patterns(patterns: Sequence[str]) -> str:
    return " ".join("'" + each.replace("'", "'\"'\"'") + "'" for each in patterns)


# How values stand in the form, where it is not as their text.
_WRITTEN: Mapping[str, Callable[[Any], Any]] = {
    "arguments": shlex.join,
    "one": bool,
    "sweep": bool,
    "torchrun": bool,
    "keep": bool,
    "provider": lambda name: name or DEFAULT,
    "ranks_per_node": lambda ranks: _written(ranks or 1),
    "allocation": lambda market: "" if market == "on-demand" else _written(market),
    "selection": lambda order: "" if order == "cheapest" else _written(order),
    "plugins": tuple,
    "image_settings": shlex.join,
    "outputs": _patterns,
}


def without_field(request: LaunchRequest) -> list[str]:
    """What is said in a request, and has no field in the form: names of its own, and of settings of the provider."""
    provider = request.provider or DEFAULT
    rows = rows_of(provider)
    own = {"script", "script_args", "settings", "plugin_settings", "detach", *rows}
    said = [each.name for each in fields(request) if each.name not in own and getattr(request, each.name)]
    shown = {setting.name for setting in fields_of(provider).values()}
    no_field = [
        name
        for name, text in request.plugin_settings.items()
        if not text or name.rpartition(".")[0] not in request.plugins
    ]
    return said + [name for name in request.settings if name not in shown] + no_field


def form_of(request: LaunchRequest) -> Form:
    """The form that asks for the same.

    Raises:
        UsageError: it cannot say something that is asked for.
    """
    values = {
        row.field: _WRITTEN.get(name, _written)(getattr(request, name))
        for name, row in rows_of(request.provider or DEFAULT).items()
        if name not in (*PACKAGES, "gang", "gang_nodes", "gang_ranks")
    }
    values["gang"] = ALL_NODES if request.gang else _written(request.gang_nodes)
    if request.gang_ranks is not None:
        values["gang"] = f"{request.gang_ranks} {RANKS}"
    values["packages"] = next(
        (choice_of(name, str(given)) for name in PACKAGES if (given := getattr(request, name))), ""
    )
    if request.script_args is not None:
        values |= {"whole": True, "arguments": shlex.join(request.script_args)}
    ids = {setting.name: id for id, setting in fields_of(values["provider"]).items()}
    # What is left as soon as it runs: nobody waits for the app.
    values["keep"] = request.keep or request.detach
    lacking = without_field(request)
    if str(path_of(request.script)) != request.script:
        lacking.append("script")
    if lacking:
        raise UsageError(f"the form has no field that could say this: {', '.join(lacking)}")
    settings = {ids[name]: text for name, text in request.settings.items()}
    parameters = dict(request.plugin_settings)
    form = Form(script=request.script, settings=settings, parameters=parameters, **values)
    return form if request.shapes_pool else replace(form, pool=request.pool or "", name="")
