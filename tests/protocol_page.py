"""Generator of ``docs/internals/protocol.md`` and the types of frames from the protocol's tables.

``python -m tests.protocol_page`` writes both.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import keyword
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from skyward_core.protocol import frame_schemas_and_size_limits as frame_schemas
from skyward_core.protocol.frame_codec import VERSION
from skyward_core.protocol.validators import Check, Checks, FrameSchema, split_keys
from skyward_core.transport.ssh import host_command_channel
from tests import protocol_unvalidated_frames
from tests.protocol_key_meanings import MEANINGS, OBJECT_MEANINGS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "internals" / "protocol.md"
TYPES = ROOT / "skyward_core" / "protocol" / "frame_types.pyi"

HEAD = f"""# Protocol

This page lists all frames (messages) that client, agents and workers exchange. It is generated from the tables in
`skyward_core/protocol/frame_schemas_and_size_limits.py`. With these tables, agents and clients validate each frame that
they receive. The tables of all other frames are in `tests/protocol_unvalidated_frames.py`.
`python -m tests.protocol_page` writes this page, and a test compares it.

This is version {VERSION}. If the client and an agent have different versions, the client reports this and disconnects.
The client can still tear the pool down.

## Frames

A frame consists of:

1. the length of the header and the length of the body, as unsigned 32-bit numbers in network byte order
2. the header, a JSON object in UTF-8; its key `t` is the kind of the frame
3. the body: bytes, such as a pickle or part of a file

Keys that end in `?` are optional. The connection ends if a required key is missing, if a value is invalid, or if a
frame exceeds the size limit of its kind. Frames of unknown kinds and unknown keys are ignored if they are small.

Two kinds of connections have other rules. A worker does not validate frames, because it trusts the agent that started
it. A connection for files is closed after an invalid frame, a frame of an unknown kind included.

## Values

| value | meaning |
|---|---|
| address | host and port of a node |
| blob | content hash of some bytes, and the number of these bytes |
| call_index | index of a call in its run |
| count | whole number from 0 |
| file_name | name of a file, never a path |
| metric_summary | last, minimum and maximum value of a metric |
| node_place | a node's number, address and port, in a list |
| node_text | number of a node as text, because it is a key of an object |
| port | port number, 0 to 65,535 |
| rank | number of a rank or node; -1 for none |
| rank_info | place of a rank: its `InstanceInfo` as an object |
| relative_subpath | path below a folder |
| run_id | id of a run: 1 to 64 letters, digits, `_` and `-` |
| signature | signature of a message, as text |
| span | offset of the first byte in a file, and offset after the last one |
| stack_frame | a function, its file and a line, in a list |
| valid_log_name, log_name | name of a log file, such as `r003.out` |
| [rank] | list of ranks; other lists accordingly |
| JSON | any JSON value |
| {{run_id: count}} | object with run ids as keys, and counts as values; other objects accordingly |
| `{{number, cause?}}` | object with the keys `number` and optionally `cause` |
"""

# Title, prefix of the types, name of their union, table.
TABLES = (
    ("From a client to an agent", "Client", "FromClient", frame_schemas.FROM_CLIENT),
    ("From an agent to clients", "Agent", "FromAgent", frame_schemas.FROM_AGENT),
    ("From an agent to its workers", "ToWorker", "ToWorker", protocol_unvalidated_frames.TO_WORKER),
    ("From workers to their agent", "Worker", "FromWorker", frame_schemas.FROM_WORKER),
    ("On connections for files", "File", "FileFrame", protocol_unvalidated_frames.FILE_FRAMES),
    ("Between the agents of a gang", "Peer", "FromPeer", frame_schemas.PEER_FRAMES),
)
WORDS = {"plain": "JSON", "integer": "whole number"}


def page() -> str:
    """Return the text of ``docs/internals/protocol.md``."""
    parts, described = [HEAD], descriptions()
    for title, _, _, forms in TABLES:
        parts.append(f"\n## {title}\n")
        for kind in sorted(forms):
            parts.append(_kind(kind, forms[kind], described[forms[kind]]))
    parts.append('\n## Answers\n\nAn answer is a frame "known". It contains the `id` of its request and these keys.\n')
    for asked, checks in sorted(answers().items()):
        parts.append(f"\n### Answer to {asked}\n\n{_keys(f'answer to {asked}', checks, {})}")
    parts.append(
        "\n## Objects\n\nThese objects are values of keys, or the JSON in the body of frames between agents.\n"
    )
    for name, needs, may in sorted(_objects(), key=lambda each: each[0]):
        parts.append(f"\n### {name}\n\n{_keys(name, needs, may)}")
    return "".join(parts)


def answers() -> dict[str, Checks]:
    """Return the keys of answers by the kind of the request."""
    return {kind: form.answer for kind, form in frame_schemas.FROM_CLIENT.items() if form.answer}


def descriptions() -> dict[FrameSchema, str]:
    """Return the comments above the frames in the tables of schemas."""
    found: dict[FrameSchema, str] = {}
    for module in (frame_schemas, protocol_unvalidated_frames):
        found |= _descriptions_in(module)
    return found


def _descriptions_in(module: ModuleType) -> dict[FrameSchema, str]:
    lines = inspect.getsource(module).split("\n")
    found: dict[FrameSchema, str] = {}
    for table in ast.parse("\n".join(lines)).body:
        if isinstance(table, ast.AnnAssign) and ast.unparse(table.annotation) == "FrameSchemas":
            forms = vars(module)[ast.unparse(table.target)]
            for key, kind in zip(table.value.keys, forms, strict=True):  # type: ignore[union-attr]
                above = map(str.strip, lines[key.lineno - 2 :: -1])
                comment = [line[2:] for line in itertools.takewhile(lambda line: line.startswith("#"), above)]
                text = re.sub(r"(?<!\n)\n(?!\n|- )", " ", "\n".join(comment[::-1]))
                found[forms[kind]] = text
    return found


def _kind(kind: str, form: FrameSchema, description: str) -> str:
    body = f" The body has up to {form.body:,} bytes." if form.body else ""
    keys = _keys(kind, form.needs, form.may)
    return f"\n### {kind}\n\n{description}{body}\n\n{keys or 'No keys.' + chr(10)}"


def _keys(kind: str, needs: Checks, may: Checks) -> str:
    """Return a table with one key per row; "" for no keys."""
    named = [(key, key, check) for key, check in sorted(needs.items())]
    named += [(key, f"{key}?", check) for key, check in sorted(may.items())]
    rows = [f"| `{shown}` | {_words(check)} | {_meaning(kind, key)} |\n" for key, shown, check in named]
    return "".join(["| key | value | meaning |\n|---|---|---|\n", *rows]) if rows else ""


def _meaning(kind: str, key: str) -> str:
    return OBJECT_MEANINGS.get(f"{kind}.{key}") or MEANINGS.get(f"{kind}.{key}") or MEANINGS[key]


def _objects() -> Iterator[tuple[str, Checks, Checks]]:
    """Yield name, required and optional keys of each named object that is not a frame."""
    for check, name in NAMES.items():
        made_by, inner = parts_of(check)
        if made_by == "object_of" and not _frame_of(check):
            yield name, inner["needs"], inner["may"]


def _frame_of(check: Check) -> str:
    """Return the kind of frame whose keys an object has; "" if there is none."""
    return "call" if check is frame_schemas.CALL_KEYS else ""


def parts_of(check: Check) -> tuple[str, dict[str, Any]]:
    """Return the name of a validator, or the name and the arguments of the function that made it."""
    made_by, _, made = check.__qualname__.partition(".<locals>")
    inner = dict(inspect.getclosurevars(check).nonlocals) if made else {}
    if made_by == "object_of":
        inner["may"] = {key: one for key, one in inner["find"].__self__.items() if key not in inner["needs"]}
    return made_by, inner


def _words(check: Check) -> str:
    """Return a description of the values that a validator accepts."""
    match parts_of(check):
        case "optional", {"check": inner}:
            return f"{_words(inner)} or null"
        case "list_of", {"check": inner}:
            return f"[{_words(inner)}]"
        case "dict_of", {"name": name, "check": inner}:
            return f"{{{_words(name)}: {_words(inner)}}}"
        case "one_of", {"values": values}:
            return " or ".join(f'"{value}"' for value in values)
        case "object_of", _ if kind := _frame_of(check):
            return f'keys of frame "{kind}"'
        case "object_of", {"needs": {"t": kind}}:
            return f"frame {_words(kind)}"
        case "object_of", {"needs": needs, "may": may}:
            link = f" ([{NAMES[check]}](#{NAMES[check].lower()}))" if check in NAMES else ""
            return f"`{{{', '.join([*needs, *(f'{key}?' for key in may)])}}}`{link}"
        case name, _:
            word = name.removeprefix("is_")
            return WORDS.get(word, word)


# -- types -----------------------------------------------------------------------------------------------


def types() -> str:
    """Return the text of ``frame_types.pyi``."""
    definitions = [
        '"""Types of frames; generated by ``python -m tests.protocol_page``."""\n',
        "from typing import Any, Literal, NotRequired, TypedDict\n",
    ]
    definitions += _named_types()
    for _, prefix, union, forms in TABLES:
        for kind, form in forms.items():
            definitions.append(_typed_dict(f"{prefix}{kind.capitalize()}", form.needs, form.may, kind))
        definitions.append(_union(union, [f"{prefix}{kind.capitalize()}" for kind in forms]))
    known = frame_schemas.FROM_AGENT["known"]
    for asked, checks in answers().items():
        definitions.append(_typed_dict(f"{asked.capitalize()}Answer", known.needs | checks, known.may, "known"))
    conditional = host_command_channel.FACTS_OF_ROOT | host_command_channel.FACTS_OF_POOL
    definitions.append(_typed_dict("HostFacts", host_command_channel.FACTS, conditional))
    for done, checks in host_command_channel.DONE.items():
        definitions.append(_typed_dict(f"{done.capitalize()}Done", *split_keys([checks])))
    return "\n".join(definitions)


def _named_types() -> Iterator[str]:
    """Return the types of the schema's public constants that name values or keys."""
    for name, constant in vars(frame_schemas).items():
        if not name.isupper() or name.startswith("_"):
            continue
        if callable(constant):
            made_by, inner = parts_of(constant)
            if made_by == "object_of":
                yield _typed_dict(_camel(name), inner["needs"], inner["may"])
            else:
                yield f"{_camel(name)} = {_type(constant, named=False)}\n"
        elif isinstance(constant, dict) and all(map(callable, constant.values())):
            yield _typed_dict(_camel(name), *split_keys([constant]))


def _camel(constant: str) -> str:
    return constant.title().replace("_", "")


NAMES = {
    check: _camel(name)
    for name, check in vars(frame_schemas).items()
    if name.isupper() and not name.startswith("_") and callable(check)
}


def _typed_dict(name: str, needs: Checks, may: Checks, kind: str = "") -> str:
    keys = {"t": f'Literal["{kind}"]'} if kind else {}
    keys |= {key: _type(check) for key, check in needs.items()}
    keys |= {key: f"NotRequired[{_type(check)}]" for key, check in may.items()}
    if any(keyword.iskeyword(key) for key in keys):
        pairs = "".join(f'        "{key}": {type},\n' for key, type in keys.items())
        return f'{name} = TypedDict(\n    "{name}",\n    {{\n{pairs}    }},\n)\n'
    return f"class {name}(TypedDict):\n" + "".join(f"    {key}: {type}\n" for key, type in keys.items())


def _union(name: str, members: list[str]) -> str:
    line = f"{name} = {' | '.join(members)}\n"
    return line if len(line) <= 121 else f"{name} = (\n    " + "\n    | ".join(members) + "\n)\n"


def _type(check: Check, *, named: bool = True) -> str:
    """Return the Python type of the values that a validator accepts."""
    if named and check in NAMES:
        return NAMES[check]
    match parts_of(check):
        case "optional", {"check": inner}:
            return f"{_type(inner)} | None"
        case "list_of", {"check": inner}:
            return f"list[{_type(inner)}]"
        case "dict_of", {"check": inner}:
            return f"dict[str, {_type(inner)}]"
        case "one_of", {"values": values}:
            return f"Literal[{', '.join(map(json.dumps, values))}]"
        case "object_of", {"needs": needs, "may": may}:
            return _type_of_object(needs, may)
        case _:
            accepted = check.__annotations__["return"]
            return "Any" if accepted == "bool" else accepted.removeprefix("TypeGuard[").removesuffix("]")


def _type_of_object(needs: Checks, may: Checks) -> str:
    """Return the name of the group of keys, or of the kind of frame, that has these keys."""
    for name, constant in vars(frame_schemas).items():
        if name.isupper() and isinstance(constant, dict) and split_keys([constant]) == (needs, may):
            return _camel(name)
    for _, prefix, _, forms in TABLES:
        for kind, form in forms.items():
            if "t" in needs and {"t": needs["t"], **form.checks} == {**needs, **may}:
                return f"{prefix}{kind.capitalize()}"
    return "dict[str, Any]"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    TYPES.write_text(types(), encoding="utf-8")
