"""Sets of checkpoint files: which files belong together, and which sets are complete.

A machine may lose its power at any instant of a save, so files of a set may be missing or cut off. A set is complete if
all of its files are whole and none is missing. The required files are those that a manifest in the set names, those
that its framework always writes, and those that both the previous and the next set have. Contents are parsed, never
unpickled, because ranks can write anything.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path, PurePosixPath
from struct import error as StructError
from struct import unpack, unpack_from
from typing import BinaryIO

from skyward_core.util.light_dataclass import Value, value
from skyward_core.views import group_pairs

MAX_MANIFEST_BYTES = 32 << 20  # bytes; larger manifests are not read
ZIP_TAIL_BYTES = 1 << 16  # bytes at the end of a zip file that may contain its end record
# Whole files with these endings are not empty and do not begin with zeros. After a power cut, a file may have its size
# but zeros instead of blocks that were not written yet.
BINARY = (".bin", ".ckpt", ".distcp", ".h5", ".keras", ".metadata", ".npz", ".pkl", ".pt", ".pth")
CUT_OFF = "is cut off"

_NUMBERED = re.compile(r"(checkpoint|ckpt|step|epoch|iter|iteration|global_?step)s?[-_=]?\d+.*", re.IGNORECASE)
_SHARD = re.compile(rb"__\d+_\d+\.distcp")
_RANK_FILE = re.compile(r"rng_state_(\d+)\.pth")


@value
class CheckpointFile(Value):
    """A file of a checkpoint.

    Attributes:
        path: Path below the ranks' working folder.
        size: Size in bytes.
        changed_at: Unix time of the last change.
        problem: Reason why the content is not whole, or "".
        needs: Names of files in the same folder that the content refers to.
    """

    path: str
    size: int
    changed_at: float
    problem: str = ""
    needs: tuple[str, ...] = ()


@value
class CheckpointSet(Value):
    """Files that a run saved together.

    Attributes:
        name: Path of the folder, or of the only file.
        files: The files.
        problem: Reason why the set is incomplete, or "".
    """

    name: str
    files: tuple[CheckpointFile, ...]
    problem: str = ""

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files)

    @property
    def changed_at(self) -> float:
        """Unix time of the last change of a file."""
        return max(file.changed_at for file in self.files)

    @property
    def family(self) -> str:
        """Name without numbers, shared by a set and the newer sets that replace it. "" if no set replaces this one."""
        place = PurePosixPath(self.name)
        if self.files[0].path == self.name and place.suffix != ".ckpt":
            return ""
        return f"{place.parent}/{_without_numbers(place.name)}" if _NUMBERED.match(place.name) else ""

    @property
    def relative_names(self) -> frozenset[str]:
        """Paths of the files below the folder."""
        return frozenset(file.path[len(self.name) + 1 :] for file in self.files)


def find_sets(files: Iterable[CheckpointFile]) -> list[CheckpointSet]:
    """Group files into sets, and state which sets are incomplete. The newest set is the first."""
    files = list(files)
    marked = {_folder(file.path) for file in files if file.path.endswith((".distcp", "/.metadata"))}
    members = group_pairs((_set_name(file.path, marked), file) for file in files)
    sets = [CheckpointSet(name, tuple(each)) for name, each in members.items()]
    sets = [CheckpointSet(each.name, each.files, _find_problem(each)) for each in sets]
    families = group_pairs((each.family, each) for each in sorted(sets, key=lambda each: each.changed_at))
    compared = chain.from_iterable(_compare(each) if family else each for family, each in families.items())
    return sorted(compared, key=lambda each: (-each.changed_at, each.name))


def select_latest(sets: Sequence[CheckpointSet]) -> list[CheckpointSet]:
    """Return the sets from which a run continues: the newest complete set of each family, and all complete
    sets that no newer set replaces.

    The sets of a family replace each other, such as ``step-100`` and ``step-200``.
    """
    chosen: dict[str, CheckpointSet] = {}
    for each in sets:
        if not each.problem:
            chosen.setdefault(each.family or f"\0{each.name}", each)
    return list(chosen.values())


def select_outdated(sets: Sequence[CheckpointSet], keep: int, limit: int) -> list[CheckpointSet]:
    """Return the complete sets to delete: those of each family beyond a number of sets or a total size.

    The sets of a family replace each other, such as ``step-100`` and ``step-200``.

    Args:
        sets: Sets, the newest first.
        keep: Number of sets to keep of each family.
        limit: Maximum bytes of the kept sets of each family. The newest set is kept even if it is larger.
    """
    kept: dict[str, list[CheckpointSet]] = {}
    outdated: list[CheckpointSet] = []
    for each in sets:
        family = kept.setdefault(each.family, [])
        if each.family and not each.problem:
            fits = len(family) < keep and sum(one.size for one in family) + each.size <= limit
            (outdated if family and not fits else family).append(each)
    return outdated


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _set_name(path: str, marked: set[str]) -> str:
    """Return the name of a file's set: its outermost numbered folder, distributed checkpoint folder or own path."""
    folder = _folder(path)
    parts = folder.split("/")
    for at, part in enumerate(parts, 1):
        if _NUMBERED.fullmatch(part):
            return "/".join(parts[:at])
    return folder if folder in marked and folder else path


def _find_problem(found: CheckpointSet) -> str:
    """Return why a set is incomplete by its own content, or ""."""
    if torn := next((file for file in found.files if file.problem), None):
        return f"{PurePosixPath(torn.path).name} {torn.problem}"
    if found.files[0].path == found.name:
        return ""
    paths = {file.path for file in found.files}
    names = found.relative_names
    needed = [f"{_folder(file.path)}/{name}" for file in found.files for name in file.needs]
    needed += [f"{_folder(path)}/.metadata" for path in paths if path.endswith(".distcp")]
    if names & {"training_args.bin", "optimizer.pt"}:
        needed.append(f"{found.name}/trainer_state.json")
    ranks = [int(match[1]) for name in names if (match := _RANK_FILE.fullmatch(name)) and len(match[1]) < 6]
    needed += [f"{found.name}/rng_state_{rank}.pth" for rank in range(max(ranks, default=-1))]
    if missing := next((path for path in needed if path not in paths), ""):
        return f"{missing[len(found.name) + 1 :]} is missing"
    if "checkpoint-is-incomplete.txt" in names:
        return "transformers marks it as incomplete"
    # A complete save of torch.distributed.checkpoint writes ".metadata" after all shards.
    metadata = min((file.changed_at for file in found.files if file.path.endswith("/.metadata")), default=None)
    shards = [file.changed_at for file in found.files if file.path.endswith(".distcp")]
    return "a later save has begun" if metadata is not None and max(shards, default=0.0) > metadata + 1.0 else ""


def _compare(family: Sequence[CheckpointSet]) -> list[CheckpointSet]:
    """Mark a set as incomplete if it lacks a file that the previous and the next set have. The oldest set is first."""
    names = [frozenset(map(_without_numbers, each.relative_names)) for each in family]
    compared = list(family)
    for at, each in enumerate(family):
        needed = names[at - 1] if at else frozenset[str]()
        if at + 1 < len(family):
            needed &= names[at + 1]
        missing = min(needed - names[at], default="")
        if missing and not each.problem:
            compared[at] = CheckpointSet(each.name, each.files, f"{missing} is missing, which earlier checkpoints have")
    return compared


def inspect_content(path: Path, name: str) -> tuple[str, tuple[str, ...]]:
    """Check whether the content of a file is whole, as far as its format shows this.

    Args:
        path: Local path of the file.
        name: Name of the original, which determines the format.

    Returns:
        The reason why the content is not whole, or "", and the names of files to which the content refers.

    Raises:
        OSError: If the file cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(64)
        if not head.strip(b"\0") and name.endswith(BINARY):
            return ("contains zeros" if size else "is empty"), ()
        try:
            if name == ".metadata" and size <= MAX_MANIFEST_BYTES:
                content = head + file.read()
                shards = {shard.decode() for shard in _SHARD.findall(content)}
                # Length in bytes of the first frame of a pickle of protocol 4 or later.
                frame = unpack_from("<Q", head, 3)[0] if head[2] == 0x95 else 0
                return ("" if content.endswith(b".") and 11 + frame <= size else CUT_OFF), tuple(sorted(shards))
            if name.endswith(".json") and size <= MAX_MANIFEST_BYTES:
                return "", _named_files(json.loads(head + file.read()))
            return ("" if _is_whole(file, name, head, size) else CUT_OFF), ()
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, StructError, RecursionError):
            return CUT_OFF, ()


def _named_files(manifest: object) -> tuple[str, ...]:
    """Return the files that the index of a sharded model names."""
    shards = manifest.get("weight_map") if isinstance(manifest, dict) else None
    names = shards.values() if isinstance(shards, dict) else ()
    return tuple(sorted({name for name in names if isinstance(name, str)}))


def _is_whole(file: BinaryIO, name: str, head: bytes, size: int) -> bool:
    if name.endswith(".safetensors"):
        (length,) = unpack_from("<Q", head)
        if length > MAX_MANIFEST_BYTES:
            return bool(length < size)
        file.seek(8)
        tensors = json.loads(file.read(length))
        ends = [each["data_offsets"][1] for key, each in tensors.items() if key != "__metadata__"]
        return bool(8 + length + max(ends, default=0) <= size)
    # Do not check an empty file, which may be a marker, or a .distcp file, which may have several parts.
    if head and b"PK\x03\x04".startswith(head[:4]) and not name.endswith(".distcp"):
        return _is_whole_zip(file, size)
    if name.endswith(".pkl"):
        file.seek(size - 1)
        return file.read(1) == b"."  # a complete pickle ends with the instruction STOP, which is a period
    if head.startswith(b"\x89HDF\r\n\x1a\n") and head[8] in (0, 2, 3):
        return bool(unpack_from("<Q", head, 40 if head[8] == 0 else 28)[0] <= size)
    return True


def _is_whole_zip(file: BinaryIO, size: int) -> bool:
    """Check whether a zip file ends with its directory, as files of PyTorch, Keras and NumPy do."""
    start = max(0, size - ZIP_TAIL_BYTES)
    file.seek(start)
    tail = file.read(ZIP_TAIL_BYTES)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0:
        return False
    length, directory, comment = unpack("<LLH", tail[at + 12 : at + 22])
    if directory == 0xFFFFFFFF:
        # Position of the zip64 end record, from the locator in front of the ordinary end record.
        (end,) = unpack_from("<Q", tail, at - 12)
        file.seek(end)
        length, directory = unpack("<QQ", file.read(56)[40:56])
    file.seek(directory)
    return start + at + 22 + comment == size and (not length or file.read(4) == b"PK\x01\x02")
