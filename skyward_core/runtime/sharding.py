"""``sky.shard``: each rank's part of a data set, with its type preserved."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from skyward_core.runtime.instance_info_and_attempt import instance_info

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
    """Return this rank's part of the data.

    Rank ``r`` of ``w`` gets the items ``r, r + w, r + 2w, ...``. Every item belongs to exactly one rank, and the sizes
    differ by at most one. Several arguments are divided in the same way, so that ``x[i]`` still belongs to ``y[i]``.

        x, y = sky.shard(inputs, labels, shuffle=True)

    Args:
        *data: Lists, tuples, ranges and other sequences, NumPy and JAX arrays, PyTorch and TensorFlow tensors (along
            the first axis), pandas frames and series (by position), Hugging Face data sets. The type is preserved,
            except that a shuffled range becomes a list, and other sequences become lists.
        shuffle: Permute first. The permutation depends only on ``seed`` and the length, so that ranks agree.
        seed: Seed of the permutation. None means 0, because all ranks must agree.
        drop_last: Return one contiguous block of ``len // world_size`` items, and drop the remainder.
        node: Index of the part. Default: this rank's index.
        total_nodes: Number of parts. Default: one for each rank.

    Returns:
        The part for one argument, a tuple of parts for several.

    Raises:
        ValueError: If the lengths of the arguments differ, or if the part does not exist.
        TypeError: If an argument has no order or no length (a dict, a set, a generator), or is text.
    """
    if not data:
        raise TypeError("shard() needs at least one argument: shard(x) or shard(x, y)")
    lengths = [_sized_length(item) for item in data]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"shard() got arguments of different lengths ({', '.join(map(str, lengths))}). Their items must correspond."
        )
    info = instance_info()
    rank, parts = info.rank if node is None else node, total_nodes or info.world_size
    if not 0 <= rank < parts:
        raise ValueError(f"shard() has no part {rank} of {parts} parts. Set node= and total_nodes=.")
    part, block = slice(rank, None, parts), lengths[0] // parts
    if drop_last:
        part = slice(rank * block, (rank + 1) * block)
    if not shuffle:
        taken = tuple(_take_slice(item, part) for item in data)
    else:
        order = list(range(lengths[0]))
        random.Random(seed or 0).shuffle(order)
        indices = order[part]
        taken = tuple(_take_indices(item, indices) for item in data)
    return taken[0] if len(taken) == 1 else taken


def _sized_length(data: Any) -> int:
    if isinstance(data, str | bytes | bytearray):
        hint = "shard its lines (text.splitlines()), or a list of file names"
    elif isinstance(data, Mapping):
        hint = "shard its columns together, shard(*data.values()), or its items, shard(list(data.items()))"
    elif isinstance(data, Set):
        hint = "ranks would disagree on the order of a set; use shard(sorted(data))"
    elif isinstance(data, Iterator):
        hint = (
            "its length is unknown; use shard(list(data)), or take every n-th item, "
            "itertools.islice(data, info.rank, None, info.world_size)"
        )
    elif _array_library(data) is None and not isinstance(data, Sequence):
        hint = "use a list, array, tensor or data frame; for a PyTorch Dataset use sky.DistributedSampler"
    elif getattr(data, "shape", None) == ():
        hint = "it has no first axis; use an array of at least one dimension"
    else:
        return len(data)
    raise TypeError(f"shard() cannot divide a {type(data).__name__}: {hint}")


def _array_library(data: Any) -> str | None:
    """Return an array's library, or "frame" for a data frame. Uses the names of types, so that nothing is imported."""
    for base in type(data).__mro__:
        root = base.__module__.partition(".")[0]
        # Other classes of these libraries, such as a torch Dataset, cannot be sliced like an array.
        if root in ("numpy", "torch", "jax", "jaxlib", "tensorflow", "pandas", "datasets") and hasattr(data, "shape"):
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
            # Index with a NumPy array of integers, because JAX does not accept a list, and NumPy would convert an empty
            # list to floats.
            numpy = sys.modules.get("numpy")
            return data[indices if numpy is None else numpy.asarray(indices, dtype="int64")]
