"""Pickled calls (tasks) and their bytes (blobs) as values.

This module is separate from the pickling, so that pools can use tasks without importing cloudpickle.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from skyward_core.model.specs import Interpreter
from skyward_core.protocol.frame_codec import MAX_INLINE_BYTES
from skyward_core.util.content_hash import hash_bytes
from skyward_core.util.light_dataclass import Value, value


@value
class SourceText(Value):
    """Text of a script, or of a cell of a notebook.

    Attributes:
        hash: Content hash.
        name: File name on a node.
        place: Path of the file on the client, with all links resolved; "" if no file has this text.
    """

    hash: str
    name: str
    place: str
    data: bytes


@value
class Blob(Value):
    """Bytes addressed by their content hash: in memory if small, otherwise in a file.

    Attributes:
        size: Number of bytes.
        sources: Source texts of the code that the bytes contain.
    """

    hash: str
    size: int
    data: bytes | None = None
    path: Path | None = None
    sources: tuple[SourceText, ...] = ()

    def read(self) -> bytes:
        if self.data is not None:
            return self.data
        if self.path is None:
            raise ValueError(f"blob {self.hash} has neither bytes nor a file")
        return self.path.read_bytes()

    def delete_file(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@value
class Task(Value):
    """One pickled call.

    Attributes:
        timeout: Time limit per rank in seconds; None for no limit.
        stream: Whether the function is a generator.
        script: Whether the call is a whole script. The rank's process ends after such a call.
        interpreter: Interpreter that pickled the call; None for this process's interpreter.
        portable: Whether any Python version can run the call, as for a shell command.
        feeds: Iterator arguments, whose values are sent one by one during the call, each with the name of its
            parameter.
        pickled: Function that pickles one value of such an argument.
        nodes: Number or indices of the nodes whose ranks all run the call; None for all nodes.
        job: Id of the job of which the call is a step; "" if none.
        more: Whether another step of the job follows. The job's nodes then stay reserved for a while.
        before: Earlier steps of the job, which are repeated if a machine was replaced; None if they are unknown.
        rank: The rank that runs the call; None for any.
    """

    name: str
    fn: Blob
    args: Blob
    timeout: float | None = None
    stream: bool = False
    script: bool = False
    interpreter: Interpreter | None = None
    portable: bool = False
    feeds: tuple[tuple[str, Iterable[Any]], ...] = ()
    pickled: Callable[[Any], bytes] = pickle.dumps
    nodes: int | tuple[int, ...] | None = None
    job: str = ""
    more: bool = False
    before: tuple[Task, ...] | None = None
    rank: int | None = None


def delete_files(tasks: Iterable[Task]) -> None:
    """Remove the files of large functions and arguments after they were sent, or if they will not be sent."""
    for task in tasks:
        task.fn.delete_file()
        task.args.delete_file()


def write_tasks(tasks: Sequence[Task], folder: Path) -> None:
    """Write tasks of one function to a folder. Another process reads them with :func:`read_tasks`."""
    task = tasks[0]
    entries: dict[str, Any] = {"name": task.name, "timeout": task.timeout, "count": len(tasks)}
    entries |= {"stream": task.stream, "script": task.script, "nodes": task.nodes}
    for part, blob in (("fn", task.fn), *((f"args-{i}", each.args) for i, each in enumerate(tasks))):
        target = folder / part
        if blob.path is not None:
            blob.path.replace(target)
        else:
            target.write_bytes(blob.read())
        sources = [{"hash": each.hash, "name": each.name, "place": each.place} for each in blob.sources]
        for each in blob.sources:
            (folder / f"source-{each.hash}").write_bytes(each.data)
        entries[part] = {"hash": blob.hash, "size": blob.size, "sources": sources}
    (folder / "task.json").write_text(json.dumps(entries), encoding="utf-8")


def read_tasks(folder: Path) -> list[Task]:
    """Return the tasks that :func:`write_tasks` wrote; large blobs stay in their files."""
    entries = json.loads((folder / "task.json").read_text(encoding="utf-8"))

    def blob(part: str) -> Blob:
        path, entry = folder / part, entries[part]
        sources = tuple(
            SourceText(**each, data=(folder / f"source-{each['hash']}").read_bytes()) for each in entry["sources"]
        )
        if entry["size"] > MAX_INLINE_BYTES:
            return Blob(entry["hash"], entry["size"], path=path, sources=sources)
        return Blob(entry["hash"], entry["size"], data=path.read_bytes(), sources=sources)

    nodes = entries["nodes"]
    options = {key: entries[key] for key in ("timeout", "stream", "script")}
    options["nodes"] = tuple(nodes) if isinstance(nodes, list) else nodes
    fn = blob("fn")
    return [Task(entries["name"], fn, blob(f"args-{i}"), **options) for i in range(entries["count"])]


_EMPTY_ARGUMENTS = pickle.dumps(((), {}), protocol=5)
EMPTY_BLOB = Blob(hash_bytes(_EMPTY_ARGUMENTS), len(_EMPTY_ARGUMENTS), data=_EMPTY_ARGUMENTS)
