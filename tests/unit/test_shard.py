"""Shards of data sets for each rank."""

import subprocess
import sys
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, using
from skyward_core.runtime.sharding import shard

# What is slow to import is so when a test needs it: every process of a run collects this file.


def tensor(values):
    torch = pytest.importorskip("torch")

    return torch.tensor(values)


def jax_array(values):
    return pytest.importorskip("jax.numpy").array(values)


JAX_ARRAY = pytest.param(jax_array, marks=pytest.mark.proof("2 s of a processor"))


def series(values):
    return pytest.importorskip("pandas").Series(values)


def frame(values):
    return pytest.importorskip("pandas").DataFrame({"a": values})


def index(values):
    return pytest.importorskip("pandas").Index(values)


def image_folder():
    torch = pytest.importorskip("torch")

    class ImageFolder(torch.utils.data.Dataset):  # type: ignore[name-defined]
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return index

    return ImageFolder()


def shards_of_all_ranks(world_size, *data, **options):
    """Return the shard of every rank of a gang of a given size."""
    parts = []
    for rank in range(world_size):
        with using(InstanceInfo(rank=rank, world_size=world_size, total_nodes=world_size, node=rank)):
            parts.append(shard(*data, **options))
    return parts


def test_shard_is_strided_by_rank():
    data = list(range(7))
    info = InstanceInfo(node=1, total_nodes=2, rank=3, world_size=4, local_rank=1, ranks_per_node=2)
    with using(info):
        assert shard(data) == [3]
    assert shards_of_all_ranks(2, data) == [[0, 2, 4, 6], [1, 3, 5]]


@given(st.integers(0, 200), st.integers(1, 40), st.booleans(), st.integers())
def test_shards_are_disjoint_complete_and_even(length, world, shuffle, seed):
    both = shards_of_all_ranks(world, list(range(length)), range(1000, 1000 + length), shuffle=shuffle, seed=seed)
    parts = [part for part, _ in both]
    assert sorted(item for part in parts for item in part) == list(range(length))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [[value - 1000 for value in other] for _, other in both] == parts


def test_shard_with_drop_last_returns_equal_contiguous_blocks():
    assert shards_of_all_ranks(3, list(range(11)), drop_last=True) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    shuffled = shards_of_all_ranks(3, list(range(11)), drop_last=True, shuffle=True)
    assert [len(part) for part in shuffled] == [3, 3, 3]
    assert len({item for part in shuffled for item in part}) == 9
    assert shards_of_all_ranks(3, [1, 2], drop_last=True) == [[], [], []]


def test_shard_off_a_pool_returns_all_items():
    assert shard([3, 1, 2]) == [3, 1, 2]


def test_shuffled_shard_depends_only_on_the_seed():
    first, again = (shards_of_all_ranks(2, list(range(50)), shuffle=True, seed=7) for _ in range(2))
    assert first == again
    assert first != shards_of_all_ranks(2, list(range(50)), shuffle=True, seed=8)
    assert first != shards_of_all_ranks(2, list(range(50)))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("make", [list, tuple, np.array, tensor, JAX_ARRAY, series, frame, index])
def test_shard_keeps_type_and_items(make, shuffle, drop_last):
    values = [10 * i for i in range(9)]
    data = make(values)
    expected = shards_of_all_ranks(2, values, shuffle=shuffle, drop_last=drop_last)
    parts = shards_of_all_ranks(2, data, shuffle=shuffle, drop_last=drop_last)
    for part, items in zip(parts, expected, strict=True):
        assert type(part) is type(data)
        assert getattr(part, "dtype", None) is None or part.dtype == data.dtype
        flat = part["a"] if make is frame else part
        assert [int(x) for x in flat] == items


@pytest.mark.parametrize("make", [np.array, tensor, JAX_ARRAY])
def test_empty_shuffled_shard_of_an_array_is_an_array(make):
    data = make([[1.0, 2.0]])
    part = shards_of_all_ranks(2, data, shuffle=True)[1]
    assert part.shape == (0, 2) and part.dtype == data.dtype


def test_shard_of_a_range_is_a_range_unless_shuffled():
    assert shards_of_all_ranks(3, range(10))[1] == range(1, 10, 3)
    assert sorted(i for part in shards_of_all_ranks(3, range(10), shuffle=True) for i in part) == list(range(10))


def test_shard_of_other_sequences_is_a_list():
    assert shards_of_all_ranks(2, deque("abc")) == [["a", "c"], ["b"]]


def test_shards_of_several_arrays_stay_aligned():
    x = np.arange(20)
    y = tensor(range(0, 200, 10))
    names = [str(i) for i in range(20)]
    for px, py, pn in shards_of_all_ranks(3, x, y, names, shuffle=True, seed=42):
        assert isinstance(px, np.ndarray) and type(py) is type(y) and isinstance(pn, list)
        assert [10 * int(i) for i in px] == py.tolist()
        assert [str(int(i)) for i in px] == pn
    assert type(shards_of_all_ranks(1, x, y)[0]) is tuple
    assert type(shards_of_all_ranks(1, x)[0]) is np.ndarray


def test_shard_of_unequal_lengths_is_an_error():
    with pytest.raises(ValueError, match=r"10, 9, 10"):
        shard(list(range(10)), np.arange(9), range(10))


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: {"a": [1]}, r"data\.values\(\)"), (lambda: {1, 2}, "sorted"),
        (lambda: (i for i in range(3)), "islice"), (lambda: iter([1]), "list"), (lambda: "train.csv", "splitlines"),
        (lambda: b"bytes", "splitlines"), (lambda: 5, "use a list"), (lambda: np.array(3.0), "at least one dimension"),
        (lambda: tensor(3.0), "at least one dimension"), (image_folder, "DistributedSampler"),
    ],
)  # fmt: skip
def test_shard_of_unsupported_data_suggests_a_conversion(make, hint):
    data = make()
    with pytest.raises(TypeError, match=hint) as caught:
        shard(data)
    assert type(data).__name__ in str(caught.value)


def test_shard_without_arguments_is_an_error():
    with pytest.raises(TypeError, match="needs at least one argument"):
        shard()


def test_shard_imports_no_array_library():
    code = (
        "import sys; from skyward_core.runtime.sharding import shard; assert shard([1]) == [1]; "
        "print(sorted({'numpy', 'torch', 'jax', 'pandas', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_shard_uses_gather_for_tensorflow_tensors(monkeypatch):
    """TensorFlow tensors accept no list as index. A proof in tests/frameworks uses the real library."""

    class EagerTensor(list):
        __module__ = "tensorflow.python.framework.ops"
        shape = (4,)

        def __getitem__(self, index):
            assert isinstance(index, slice)
            return EagerTensor(super().__getitem__(index))

    class Library:
        @staticmethod
        def gather(data, indices):
            return EagerTensor([list(data)[i] for i in indices])

    monkeypatch.setitem(sys.modules, "tensorflow", Library)
    values = EagerTensor("abcd")
    parts = []
    for rank in range(2):
        with using(InstanceInfo(rank=rank, world_size=2)):
            assert shard(values) == EagerTensor("abcd"[rank::2])
            parts.append(shard(values, shuffle=True, seed="seed"))
    assert all(type(each) is EagerTensor for each in parts)
    assert sorted(parts[0] + parts[1]) == list("abcd")
