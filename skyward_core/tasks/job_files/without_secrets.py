"""The text of a job file without its secrets, to be kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import yaml

from ...model.errors import JobFileError
from ...wire.redact import Redactor, url_secrets
from .document import Document


def without_secrets(text: str, names: Collection[str], values: Collection[str]) -> str:
    """The same with nothing where the values of its ``secrets``, and of other variables, stand; whoever runs it has to
    give them anew.

    Args:
        text: what stands in the file.
        names: those variables of its ``envs``.
        values: texts that may stand nowhere in it, such as what was given in place of what it says.

    Raises:
        JobFileError: they cannot be left out, or one stands in it beside them.
    """
    places = sorted(_places(text, set(names)), reverse=True)
    for begin, end in places:
        lines = text[begin:end].count("\n") if text[begin:end].endswith("\n") else 0
        text = f"{text[:begin]}null{chr(10) if lines else ''}{text[end:]}"
    written = text.encode()
    if Redactor(values).data(written) != written:  # without it that line would do something else
        raise JobFileError("the value of a secret stands in another line of it, too")
    try:
        tables = Document(text, "it").values
    except JobFileError as error:
        raise JobFileError(f"its secrets cannot be left out of it: {error}") from error
    hidden, envs = (tables.get(name) for name in ("secrets", "envs"))
    left = [*(hidden.values() if isinstance(hidden, Mapping) else ())]
    left += [value for name, value in envs.items() if name in names] if isinstance(envs, Mapping) else []
    if any(value is not None for value in left):
        raise JobFileError("its secrets cannot be left out of it")
    if url_secrets(text):
        raise JobFileError("a password stands in a URL in it")
    return text


def _places(text: str, names: Collection[str]) -> set[tuple[int, int]]:
    """From where to where values stand that are left out."""
    found: set[tuple[int, int]] = set()  # an alias stands where its anchor does
    for tree in yaml.compose_all(text, Loader=yaml.SafeLoader):
        for key, table in tree.value if isinstance(tree, yaml.MappingNode) else ():
            if key.value not in ("secrets", "envs") or not isinstance(table, yaml.MappingNode):
                continue
            for name, value in table.value:
                if key.value == "secrets" or name.value in names:
                    found.add((value.start_mark.index, value.end_mark.index))
    return found
