"""Each rank's part of a data set, with its type kept."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from skyward_core.runtime.instance_info import instance_info

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")


if TYPE_CHECKING:

    class ShardOptions(TypedDict, total=False):
        """Options of ``shard``; its docstring explains them."""

        shuffle: bool
        seed: int | str | None
        drop_last: bool
        node: int | None
        total_nodes: int | None


@overload
def shard(data: T, /, **options: Unpack[ShardOptions]) -> T: ...
@overload
def shard(first: T1, second: T2, /, **options: Unpack[ShardOptions]) -> tuple[T1, T2]: ...
@overload
def shard(first: T1, second: T2, third: T3, /, **options: Unpack[ShardOptions]) -> tuple[T1, T2, T3]: ...
@overload
def shard(*data: Any, **options: Unpack[ShardOptions]) -> Any: ...
def shard(
    *data: Any,
    shuffle: bool = False,
    seed: int | str | None = 0,
    drop_last: bool = False,
    node: int | None = None,
    total_nodes: int | None = None,
) -> Any:
    """This rank's part of the data.

    Rank ``r`` of ``w`` takes items ``r, r + w, r + 2w, ...``: every item belongs to exactly one rank, and the
    sizes differ by at most one. Several arguments are cut alike, so that ``x[i]`` still belongs to ``y[i]``.

    Args:
        *data: lists, tuples, ranges and other sequences, NumPy and JAX arrays, PyTorch and TensorFlow tensors
            (along their first axis), pandas frames and series (by position), Hugging Face data sets. Each keeps its
            type, except that a shuffled range becomes a list and other sequences become lists.
        shuffle: permute first; the permutation depends on ``seed`` and the length alone, so ranks agree.
        seed: of the permutation; None for 0, as all ranks have to agree.
        drop_last: give every rank one contiguous block of ``len // world_size`` items; drop the remainder.
        node: take the part of this rank in place of one's own.
        total_nodes: cut into so many parts in place of one for each rank.

    Returns:
        The part itself for one argument; a tuple of parts for several.

    Raises:
        ValueError: the arguments differ in length, or there is no such part.
        TypeError: an argument has no order or no length (a dict, a set, a generator), or is text.
    """
    if not data:
        raise TypeError("shard() needs something to shard: shard(x) or shard(x, y)")
    lengths = [_sized_length(item) for item in data]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"shard() got arguments of unequal lengths ({', '.join(map(str, lengths))}); "
            "their items would no longer belong together"
        )
    info = instance_info()
    rank, parts = info.rank if node is None else node, total_nodes or info.world_size
    if not 0 <= rank < parts:
        raise ValueError(f"shard() cuts into {parts} parts, and none has number {rank}: say node= and total_nodes=")
    part = _rank_slice(lengths[0], rank, parts, drop_last)
    if not shuffle:
        taken = tuple(_take_slice(item, part) for item in data)
    else:
        order = list(range(lengths[0]))
        random.Random(seed or 0).shuffle(order)
        indices = order[part]
        taken = tuple(_take_indices(item, indices) for item in data)
    return taken[0] if len(taken) == 1 else taken


def _rank_slice(length: int, rank: int, world_size: int, drop_last: bool) -> slice:
    if drop_last:
        block = length // world_size
        return slice(rank * block, (rank + 1) * block)
    return slice(rank, None, world_size)


def _sized_length(data: Any) -> int:
    if isinstance(data, str | bytes | bytearray):
        hint = "shard its lines (text.splitlines()), or a list of file names"
    elif isinstance(data, Mapping):
        hint = "shard its columns together, shard(*data.values()), or its items, shard(list(data.items()))"
    elif isinstance(data, Set):
        hint = "sets have no order that all ranks agree on: shard(sorted(data))"
    elif isinstance(data, Iterator):
        hint = (
            "its length is unknown: shard(list(data)), or take every n-th item as it comes, "
            "itertools.islice(data, info.rank, None, info.world_size)"
        )
    elif _array_library(data) is None and not isinstance(data, Sequence):
        hint = "give a list, array, tensor or data frame; for a PyTorch Dataset use sky.DistributedSampler"
    elif getattr(data, "shape", None) == ():
        hint = "it has no first axis: give an array of at least one dimension"
    else:
        return len(data)
    raise TypeError(f"shard() cannot cut a {type(data).__name__}: {hint}")


_LIBRARIES = ("numpy", "torch", "jax", "jaxlib", "tensorflow", "pandas", "datasets")


def _array_library(data: Any) -> str | None:
    """The array library that a value comes from, told by its type so that nothing needs importing."""
    for base in type(data).__mro__:
        root = base.__module__.partition(".")[0]
        # Not all that a library defines is an array: a torch Dataset has neither shape nor slices.
        if root in _LIBRARIES and hasattr(data, "shape"):
            return "frame" if hasattr(data, "iloc") else root
    return None


def _take_slice(data: Any, part: slice) -> Any:
    match _array_library(data):
        case "frame":
            return data.iloc[part]
        case "datasets":
            return data.select(range(len(data))[part])
        case None if not isinstance(data, list | tuple | range):
            return [data[i] for i in range(len(data))[part]]
        case _:
            return data[part]


def _take_indices(data: Any, indices: list[int]) -> Any:
    match _array_library(data):
        case "frame":
            return data.iloc[indices]
        case "datasets":
            return data.select(indices)
        case "tensorflow":
            return sys.modules["tensorflow"].gather(data, indices)
        case None:
            picked = [data[i] for i in indices]
            return tuple(picked) if isinstance(data, tuple) else picked
        case _:
            # JAX takes no list as an index; an empty list alone would be an array of floats.
            numpy = sys.modules.get("numpy")
            return data[indices if numpy is None else numpy.asarray(indices, dtype="int64")]
