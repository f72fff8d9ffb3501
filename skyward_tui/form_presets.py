"""The form's presets: what it says under a name, and the form again of what stands there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import SkywardError
from skyward_core.wire.safe_text import field

from .form_of_request import form_of, without_field
from .launch_form import Form, path_of, request_of
from .packaged import named

if TYPE_CHECKING:
    from skyward_core.front.presets import Preset


def save(name: str, form: Form) -> Path:
    """Keep what the form says of a new pool; gives the file.

    Raises:
        SkywardError: it cannot be kept.
        OSError: the file cannot be written.
    """
    from skyward_core.front import presets

    request = request_of(replace(form, pool=""))
    return presets.save(name, replace(request, script=named(request.script)))


def form_of_preset(preset: Preset) -> tuple[Form, list[str]]:
    """The form filled in, and what could not be, in words."""
    from skyward_core.front.presets import NOWHERE, without_unknown

    request, said = preset.request()
    try:
        request = replace(request, script=str(path_of(request.script)))
    except SkywardError as error:  # an example that there is not any more
        said.append(str(error))
        request = replace(request, script=NOWHERE)
    request, more = without_unknown(request)
    said += more
    strange = without_field(request)
    said += [f"the form has no field for {field(name)}" for name in strange]
    settings_said = (*request.settings, *request.plugin_settings)
    blank: dict[str, Any] = {name: None for name in strange if name not in settings_said}
    blank |= {name: "" for name in ("module",) if name in blank}
    settings = {name: text for name, text in request.settings.items() if name not in strange}
    given = {name: text for name, text in request.plugin_settings.items() if name not in strange}
    form = form_of(replace(request, settings=settings, plugin_settings=given, **blank))
    name = request.pool or ""
    return replace(form, script="" if request.script == NOWHERE else form.script, pool="", name=name), said
