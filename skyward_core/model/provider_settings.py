"""Settings that a provider declares; entry points."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import SkywardError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


_TYPE_NAMES: dict[Any, str] = {int: "a whole number", float: "a number"}
_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


# Both are written out, as a dataclass takes a millisecond to make while somebody waits for a pool's start.


class Field:
    """How a setting looks in a form.

    Args:
        label: before the field.
        placeholder: in it while it is empty.
        missing: what to do about an empty one, where the setting is required.
        suggestions: texts that complete what is typed.
    """

    def __init__(
        self, label: str, *, placeholder: str = "", missing: str = "", suggestions: Sequence[str] = ()
    ) -> None:
        self.label = label
        self.placeholder = placeholder
        self.missing = missing
        self.suggestions = suggestions


class Setting:
    """A parameter of a provider's class that a person may give as a text.

    Args:
        name: of the parameter.
        help: what it is, in a line.
        type: makes its value of the text; raises ValueError, whose text says why, where it cannot.
        default: its value where nothing is given.
        required: whether something has to be given.
        option: a command line's own option for it; the others are given as ``name=text``.
        example: of what is given.
        names_machines: whether it names the machines, so that nobody has to say how many there are.
        field: gives its field in a form, which may tell of what is there now; None where it has none.
    """

    def __init__(
        self,
        name: str,
        *,
        help: str,
        type: Callable[[str], Any] = str,
        default: Any = None,
        required: bool = False,
        option: str = "",
        example: str = "",
        names_machines: bool = False,
        field: Callable[[], Field] | None = None,
    ) -> None:
        self.name = name
        self.help = help
        self.type = type
        self.default = default
        self.required = required
        self.option = option
        self.example = example
        self.names_machines = names_machines
        self.field = field

    def read(self, text: str) -> Any:
        """The value that a text stands for.

        Raises:
            UsageError: it stands for none; says why.
        """
        try:
            return self.type(text.strip())
        except SkywardError:
            raise
        except ValueError as error:
            why = f"{_TYPE_NAMES[self.type]}, not {text!r}" if self.type in _TYPE_NAMES else str(error)
            raise UsageError(f"{self.name}: {why}") from error
        except Exception as error:  # a type of another package may raise anything
            raise UsageError(f"{self.name}: {type(error).__name__}: {error}") from error

    def normalize(self, text: str) -> str:
        """A text as one word for a command line: what is a list has commas, however it was typed."""
        try:
            value = self.read(text)
        except UsageError:
            return text.strip()
        if not isinstance(value, list | tuple):
            return text.strip()
        listed = ",".join(map(str, value))
        return listed if self._parses_to(listed, value) else text.strip()

    def _parses_to(self, text: str, value: Any) -> bool:
        try:
            return bool(self.read(text) == value)
        except UsageError:
            return False


def word_list(text: str) -> list[str]:
    """The type of a setting that is a list: words with commas or spaces between them."""
    return text.replace(",", " ").split()


def flag(text: str) -> bool:
    """The type of a setting that is on or off.

    Raises:
        ValueError: it is neither yes nor no.
    """
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise ValueError(f"yes or no, not {text!r}") from None


def load_entry_points(group: str, ours: Collection[str]) -> dict[str, list[EntryPoint]]:
    """What the installed packages declare, by name: several where packages are at odds.

    Args:
        group: of entry points, such as ``skyward.plugins``.
        ours: names that no package can declare anew: none may hide one of ours.
    """
    from importlib.metadata import entry_points  # it takes as long to load as the rest of a start

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        if point.name not in ours:
            found.setdefault(point.name, []).append(point)
    return found


def resolve_entry_point(kind: str, points: Sequence[EntryPoint]) -> EntryPoint:
    """What a name stands for.

    Args:
        kind: what it is, for people: "plugin".
        points: all that is declared by that name.

    Raises:
        UsageError: several packages declare it.
    """
    if len(points) > 1:
        packages = " and ".join(sorted(describe_package(each) for each in points))
        raise UsageError(
            f"{kind} {points[0].name!r} is declared by {packages}: uninstall all but one of these packages"
        )
    return points[0]


def describe_package(point: EntryPoint) -> str:
    """The package that declares it, and what of it."""
    return f"{point.dist.name if point.dist is not None else 'a package without a name'} ({point.value})"
