"""Pickled calls (tasks) and their bytes (blobs) as values. Light to import: pools use tasks without the pickling."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from skyward_core.model.script_interpreter import Interpreter
from skyward_core.protocol.frame_codec import MAX_INLINE_BYTES
from skyward_core.util.content_hash import hash_bytes
from skyward_core.util.light_dataclass import Value, value


@value
class SourceText(Value):
    """The text of a script, or of a cell of a notebook.

    Attributes:
        hash: the name that its content has.
        name: that of the file it makes on a node.
        place: the client's file, all links followed; "" for what is none.
    """

    hash: str
    name: str
    place: str
    data: bytes


@value
class Blob(Value):
    """Bytes with a name made of their content; in memory when small, else in a file. ``sources``: of what is in it."""

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
        """Remove the file, if there is one."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@value
class Task(Value):
    """One call, pickled. ``timeout``: seconds per rank, or None. ``stream``: a generator function. ``script``: a whole
    script, which leaves its rank no process. ``interpreter``: the one that pickled it; None for the one that runs this.
    ``feeds``: arguments that travel value by value while the call goes on, each with its parameter's name; ``pickled``
    pickles a value.
    ``portable``: nothing in it is of that one alone, as of a command. ``nodes``: how many nodes run it, or which, where
    it runs on all ranks; None for all. ``job``: id of the job that it is a step of; ``more``: whether another step of
    that follows, for which its nodes are kept a while. ``rank``: the one that runs it; None for any.
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
    rank: int | None = None


def delete_files(tasks: Iterable[Task]) -> None:
    """Remove the files of large arguments, once they have been sent or are not to be."""
    for task in tasks:
        task.fn.delete_file()
        task.args.delete_file()


def write_tasks(tasks: Sequence[Task], folder: Path) -> None:
    """Write tasks of one function into a folder, for another process to :func:`read_tasks`."""
    task = tasks[0]
    entries: dict[str, Any] = {"name": task.name, "timeout": task.timeout, "count": len(tasks)}
    entries |= {"stream": task.stream, "script": task.script, "nodes": task.nodes}
    for part, blob in (("fn", task.fn), *((f"args-{i}", each.args) for i, each in enumerate(tasks))):
        target = folder / part
        if blob.path is not None:
            blob.path.replace(target)
        else:
            target.write_bytes(blob.read())
        told = [{"hash": each.hash, "name": each.name, "place": each.place} for each in blob.sources]
        for each in blob.sources:
            (folder / f"source-{each.hash}").write_bytes(each.data)
        entries[part] = {"hash": blob.hash, "size": blob.size, "sources": told}
    (folder / "task.json").write_text(json.dumps(entries), encoding="utf-8")


def read_tasks(folder: Path) -> list[Task]:
    """The tasks that :func:`write_tasks` wrote; large blobs stay in their files."""
    entries = json.loads((folder / "task.json").read_text(encoding="utf-8"))

    def blob(part: str) -> Blob:
        path, told = folder / part, entries[part]
        sources = tuple(
            SourceText(**each, data=(folder / f"source-{each['hash']}").read_bytes()) for each in told["sources"]
        )
        if told["size"] > MAX_INLINE_BYTES:
            return Blob(told["hash"], told["size"], path=path, sources=sources)
        return Blob(told["hash"], told["size"], data=path.read_bytes(), sources=sources)

    said = entries["nodes"]
    how = {key: entries[key] for key in ("timeout", "stream", "script")}
    how["nodes"] = tuple(said) if isinstance(said, list) else said
    fn = blob("fn")
    return [Task(entries["name"], fn, blob(f"args-{i}"), **how) for i in range(entries["count"])]


_EMPTY_ARGUMENTS = pickle.dumps(((), {}), protocol=5)
EMPTY_BLOB = Blob(hash_bytes(_EMPTY_ARGUMENTS), len(_EMPTY_ARGUMENTS), data=_EMPTY_ARGUMENTS)
