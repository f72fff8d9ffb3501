"""Which Python loads the script of a launch: the one that is chosen for it, unless what the launch asks for needs
another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..model.spec import Image, PoolSpec
from ..model.wrong_field import of_field
from ..plugins.base import transform_image
from ..tasks import known_pythons
from ..tasks.interpreter import Ask, base_for, interpreter_of, made_of
from ..tasks.known_pythons import own_base
from ..tasks.own_interpreter import is_own
from ..tasks.packages.asked import asked, python_asked
from ..tasks.python_versions import satisfies
from .scripts import missing_of

if TYPE_CHECKING:
    from ..model.interpreter import Interpreter
    from ..tasks.packages.packages import Packages


def script_python(
    script: Path, python: str | None, spec: PoolSpec, *, launching: bool = False
) -> tuple[Interpreter, Packages | None]:
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
    with of_field("script" if python is None else "python"):
        found = interpreter_of(script, python, ask=_asks(launching))
    if spec.image.packages_by:
        return _of_file(found, spec.image, is_said=python is not None, ask=_asks(launching))
    elsewhere = found.chosen and not is_own(found.prefix)
    if elsewhere or not spec.plugins or not missing_of(script, found):
        return found, None
    brought = transform_image(spec.plugins, Image(), spec).describe()
    if not brought["pip"]:
        return found, None
    names = ", ".join(plugin.name for plugin in spec.plugins)
    environment = {name: list(brought[name]) for name in ("pip", "pip_indexes") if brought[name]}
    return made_of(own_base(), environment, f"plugins of the pool: {names}"), None


def _asks(launching: bool) -> Ask:
    return known_pythons.ask if launching else known_pythons.read


def _of_file(
    found: Interpreter, image: Image, *, is_said: bool, ask: Ask
) -> tuple[Interpreter, Packages | None]:
    folder = str(image.workdir or "")
    wanted, source = python_asked(image, folder)
    fits = satisfies(found.version, wanted)
    if found.chosen and (fits or is_said or found.base):
        return found, asked(image, folder, found.version)
    with of_field(image.packages_by):
        base = base_for(wanted, source, ask=ask)
    packages = asked(image, folder, base.version)
    if packages is None:
        return found, None
    was = found.source if found.chosen else "this program's own Python"
    notes = (
        ()
        if fits
        else (f"{was} was passed over: it is {found.version}, and {source} asks for Python {wanted}",)
    )
    name = Path(packages.source).name
    return made_of(base, packages.added_to({}), name, (*found.notes, *notes)), packages
