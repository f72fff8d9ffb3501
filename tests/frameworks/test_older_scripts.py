"""Scripts written for earlier releases, unchanged: with data, models and devices, and with every form of the API."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.whole_scripts import run_script

NOT_INSTALLED = "sklearn torch._dynamo"  # optional in transformers and keras, and loaded where they are


def results_of_script(script: str, folder: Path, **env: str) -> Any:
    """Return the script's variable ``results``."""
    done = run_script(
        script + "\nimport json\nprint('RESULTS', json.dumps(results, default=float))\n", folder, 240, **env
    )
    (line,) = re.findall(r"^RESULTS (.*)$", done.stdout, re.MULTILINE)
    return json.loads(line)


TORCH = """
import skyward as sky

import torch
class MyModel(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 1)
dataset = [(torch.full((4,), i / 64), torch.tensor([i / 16])) for i in range(128)]

@sky.compute
def train(epochs: int) -> dict:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader

    info = sky.instance_info()

    # Model setup
    model = MyModel()
    if dist.is_initialized():
        model = DDP(model)

    # Data loading with distributed sampler
    sampler = sky.DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, sampler=sampler, batch_size=64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(model, batch):
        x, y = batch
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    # Training loop
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # Important!
        for batch in loader:
            losses.append(train_step(model, batch))

    return {"node": info.node, "loss": losses[-1], "first": losses[0], "steps": len(losses),
            "weights": [each.tolist() for each in model.parameters()]}


@sky.compute
@sky.integrations.torch(backend="nccl")
def total():
    import os
    import torch
    import torch.distributed as dist
    total = torch.ones(1)
    dist.all_reduce(total)
    return [dist.get_backend(), total.item(), os.environ["LOCAL_RANK"], os.environ["NODE_RANK"]]

@sky.integrations.transformers(backend="nccl")
@sky.compute
def tune():
    from accelerate import PartialState
    state = PartialState(cpu=True)
    return [state.num_processes, state.process_index, len(list(sky.DistributedSampler(range(10))))]


@sky.integrations.transformers(backend="nccl")
@sky.compute
def fine_tune():
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        Trainer,
        TrainingArguments,
    )
    from datasets import load_dataset

    # Load model and tokenizer
    model = AutoModelForSequenceClassification.from_pretrained(
        "distilbert-base-uncased",
        num_labels=2,
    )
    tokenizer = AutoTokenizer.from_pretrained("distilbert-base-uncased")

    # Load and tokenize dataset
    dataset = load_dataset("imdb")

    def tokenize(examples):
        return tokenizer(examples["text"], truncation=True, padding=True)

    tokenized = dataset.map(tokenize, batched=True)

    # Training arguments
    args = TrainingArguments(
        output_dir="./results",
        num_train_epochs=3,
        per_device_train_batch_size=16,
    )

    # Trainer auto-detects distributed setup
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=tokenized["train"],
        eval_dataset=tokenized["test"],
    )

    trainer.train()
    return trainer.evaluate()


sky.ComputePool(provider=sky.AWS(), nodes=2, accelerator=sky.NVIDIA.A100, image=sky.Image(pip=["torch"]))
sky.ComputePool(provider=sky.AWS(), nodes=2, accelerator="A100", pip=["torch"])

with sky.ComputePool(
    provider=sky.AWS(),
    nodes=2,
    accelerator="A100",
    image=sky.Image(pip=["torch"]),
    pip=["transformers", "datasets", "torch", "accelerate"],
) as pool:
    results = {
        "train": train(epochs=10) @ pool,  # first: it makes the process group, for it names torch.distributed
        "alone": train(epochs=1) >> pool,
        "total": total() @ pool,
        "tune": tune() @ pool,
        "fine_tune": fine_tune() @ pool,
    }
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Folder with a small model, its tokenizer, and reviews in two files.

    Written without transformers, whose import takes longer than everything else here. The files contain only a part of
    the weights. The rest is initialized randomly, as for any new head.
    """
    tokenizers = pytest.importorskip("tokenizers")
    safetensors = pytest.importorskip("safetensors.numpy")
    for name in ("transformers", "datasets"):
        if find_spec(name) is None:
            pytest.skip(f"needs {name}")
    folder = tmp_path / "distilbert-base-uncased"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film"]
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, "[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder.mkdir()
    plain.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": 16}))
    shape = {"vocab_size": len(words), "max_position_embeddings": 16, "dim": 16, "hidden_dim": 16}
    config = {"model_type": "distilbert", "n_layers": 1, "n_heads": 2} | shape
    (folder / "config.json").write_text(json.dumps(config))
    weights = np.random.default_rng(0).normal(0, 0.02, (len(words), 16)).astype("float32")
    parts = {"distilbert.embeddings.word_embeddings.weight": weights}
    safetensors.save_file(parts, folder / "model.safetensors", {"format": "pt"})
    for name, count in (("train", 64), ("test", 16)):
        rows = [{"text": ("good film", "bad film")[at % 2], "label": at % 2} for at in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.proof("10 s of a processor")
def test_older_torch_and_trainer_script_runs(tmp_path: Path, models: Path) -> None:
    files = {name: str(models / f"{name}.jsonl") for name in ("train", "test")}
    script = TORCH.replace('"distilbert-base-uncased"', repr(str(models)))
    script = script.replace('load_dataset("imdb")', f'load_dataset("json", data_files={files})')
    results = results_of_script(script, tmp_path)
    assert (results["alone"]["node"], results["alone"]["steps"]) == (0, 2), "a task has all of the data"
    trained = results["train"]
    assert [result["node"] for result in trained] == [0, 1]
    assert [result["steps"] for result in trained] == [10, 10], "a batch of 64 of 128 for each of two ranks"
    assert all(result["loss"] < result["first"] for result in trained)
    first, second = trained
    assert first["weights"] == second["weights"]
    # The integration makes the process group inside the rank.
    assert results["total"] == [["gloo", 2.0, "0", "0"], ["gloo", 2.0, "0", "1"]]
    assert results["tune"] == [[2, 0, 5], [2, 1, 5]]
    first, second = results["fine_tune"]
    assert first["epoch"] == second["epoch"] == 3
    assert first["eval_loss"] == pytest.approx(second["eval_loss"], abs=1e-6), "ranks agree"
    assert 0 < first["eval_loss"] < 5


JAX = """
import skyward as sky

@sky.integrations.jax()
@sky.compute
def sums():
    import os
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    names = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_COUNT")
    total = multihost_utils.process_allgather(jnp.array([jax.process_index() + 1.0])).sum()
    return [os.environ[name] for name in names] + [float(total), ":" in os.environ["JAX_COORDINATOR_ADDRESS"]]


@sky.integrations.jax()
@sky.compute
def train():
    import jax
    import jax.numpy as jnp

    # JAX distributed already initialized
    # Use pmap or jax.experimental.pjit for parallelism

    @jax.pmap
    def train_step(params, batch):
        return params - 0.1 * jax.grad(lambda p: jnp.mean((batch @ p - 1) ** 2))(params)

    results = train_step(jnp.zeros((1, 3)), jnp.ones((1, 4, 3)))
    return [jax.process_count(), jax.device_count(), results.addressable_data(0).tolist()[0]]


@sky.integrations.keras(backend="jax", seed=3)
@sky.compute
def train_model(epochs: int) -> dict:
    import keras
    import numpy as np

    pool = sky.instance_info()

    # Load data
    pixels = np.random.default_rng(0)
    x_train, y_train = pixels.integers(0, 255, (256, 28, 28)), pixels.integers(0, 10, 256)
    x_train = x_train.astype(np.float32) / 255.0

    # Shard data across nodes
    x_local, y_local = sky.shard(x_train, y_train, shuffle=True, seed=42)

    # Build model
    model = keras.Sequential([
        keras.layers.Flatten(input_shape=(28, 28)),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ])

    model.compile(
        optimizer="adam",
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )

    # Train
    history = model.fit(x_local, y_local, epochs=epochs, batch_size=64)

    return {
        "node": pool.node,
        "epochs": len(history.history["accuracy"]),
        "accuracy": history.history["accuracy"][-1],
        "backend": keras.backend.backend(),
        "weights": [float(abs(keras.ops.convert_to_numpy(each)).sum()) for each in model.weights],
    }



@sky.integrations.keras(backend="jax", seed=3)
@sky.compute
def fit_line(x, y, steps, batch):
    import keras

    mine, wanted = sky.shard(x, y)  # strided, so that each batch of all ranks is a stretch of the whole
    model = keras.Sequential([keras.Input((x.shape[1],)), keras.layers.Dense(1)])
    began = [each.tolist() for each in model.get_weights()]
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    model.fit(mine, wanted, epochs=1, steps_per_epoch=steps, batch_size=batch, shuffle=False, verbose=0)
    return [began, [each.tolist() for each in model.get_weights()]]


import numpy as np
x = np.random.default_rng(5).normal(size=(32, 3)).astype("float32")
y = (x @ np.array([[1.0], [-2.0], [0.5]], dtype="float32")) + 1

for more in ({"accelerator": "H100"}, {"accelerator": "A100", "image": sky.Image(env={"KERAS_BACKEND": "jax"})}):
    sky.ComputePool(provider=sky.AWS(), nodes=2, pip=["jax[cuda12]"], **more)

with sky.ComputePool(
    provider=sky.AWS(),
    nodes=2,
    accelerator="H100",
    pip=["jax[cuda12]"],
    image=sky.Image(
        pip=["keras>=3.2", "jax[cuda12]"],
        env={"KERAS_BACKEND": "jax"},
    ),
) as pool:
    results = {"line": fit_line(x, y, steps=4, batch=4) @ pool}
    results |= {"model": train_model(epochs=10) @ pool, "sums": sums() @ pool, "train": train() @ pool}
"""


def by_hand(weights: np.ndarray[Any, Any], bias: np.ndarray[Any, Any]) -> list[Any]:
    """Return the line that plain gradient descent fits in one process, with batches of the whole data."""
    x = np.random.default_rng(5).normal(size=(32, 3)).astype("float32")
    y = (x @ np.array([[1.0], [-2.0], [0.5]], dtype="float32")) + 1
    for first in range(0, 32, 8):
        batch, labels = x[first : first + 8], y[first : first + 8]
        error = batch @ weights + bias - labels
        weights, bias = weights - 0.2 * batch.T @ error / 8, bias - 0.2 * error.mean(0)
    return [pytest.approx(weights.ravel().tolist(), abs=1e-5), pytest.approx(bias.tolist(), abs=1e-5)]


@pytest.mark.proof("6 s of a processor")
@pytest.mark.skipif(find_spec("keras") is None or find_spec("jax") is None, reason="needs keras and jax")
def test_older_jax_and_keras_script_runs(tmp_path: Path) -> None:
    # What is optional in keras, and loaded where it is.
    results = results_of_script(JAX, tmp_path, NOT_INSTALLED="sklearn pandas IPython")
    assert results["sums"] == [["2", str(rank), "1", 3.0, True] for rank in (0, 1)]
    assert results["train"] == [[2, 2, pytest.approx([0.2] * 3)]] * 2
    (began, first), (same, second) = results["line"]
    assert began == same and first == second, "one seed, one model"
    weights, bias = by_hand(np.array(began[0]), np.array(began[1]))
    assert [each for row in first[0] for each in row] == weights and first[1] == bias
    fitted = results["model"]
    assert [(each["node"], each["epochs"], each["backend"]) for each in fitted] == [(0, 10, "jax"), (1, 10, "jax")]
    first, second = fitted
    assert first["weights"] == second["weights"], "one model, which both ranks train"
    assert first["accuracy"] == second["accuracy"] and 0 <= first["accuracy"] <= 1


def lists_printed_by_script(script: str, tmp_path: Path) -> tuple[list[object], str]:
    """Return a script's output, parsed as JSON lines, and its standard error."""
    done = run_script(script, tmp_path, 120)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")], done.stderr


FORMS = """
import json
import skyward as sky

def world():
    import os
    return len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])

@sky.integrations.tensorflow
@sky.compute
def bare_above():
    return world()

@sky.compute
@sky.integrations.tensorflow
def bare_below():
    return world()

@sky.integrations.tensorflow()
@sky.compute
def called_above():
    return world()

@sky.compute
@sky.integrations.tensorflow()
def called_below():
    return world()

@sky.integrations.tensorflow
@sky.compute
def generator():
    yield world()

@sky.compute
def part(data):
    info = sky.instance_info()
    return [info.is_head, sum(sky.shard(data))]

with sky.ComputePool(provider=sky.AWS(), nodes=2, accelerator=sky.NVIDIA.A100, pip=["numpy"]) as pool:
    for form in (bare_above, bare_below, called_above, called_below):
        print(json.dumps(form() @ pool))
    print(json.dumps([list(values) for values in generator() @ pool]))
    print(json.dumps(part(list(range(10))) @ pool))
"""


def test_older_names_run_and_warn_about_their_replacement(tmp_path):
    printed, errors = lists_printed_by_script(FORMS, tmp_path)
    assert printed == [[2, 2]] * 4 + [[[2], [2]], [[True, 20], [False, 25]]]
    for old, new in [
        ("sky.compute", "@sky.function"),
        ("sky.ComputePool", "sky.Compute"),
        ("sky.NVIDIA.A100", "sky.accelerators.A100()"),
        ("sky.integrations.tensorflow", "plugins=[sky.plugins.tensorflow()]"),
    ]:
        assert errors.count(f"{old} is deprecated: use {new}") == 1


def lines_printed_by_script(script: str, folder: Path, **env: str) -> tuple[list[Any], list[str]]:
    """Return a script's JSON lines, and the output of its ranks."""
    done = run_script("import json\nimport skyward as sky\n" + script, folder, 180, **env)
    # A rank's line may come between two pieces of what the script prints itself.
    of_ranks = re.compile(r"(r\d{3}\| [^\n]*)\n")
    own = of_ranks.sub("", done.stdout)
    return [json.loads(line) for line in own.splitlines()], of_ranks.findall(done.stdout)


PLACES = """
@sky.function
@sky.stdout(only="head")
def roles(numbers, labels):
    info = sky.instance_info()
    mine, names = sky.shard(numbers, labels, shuffle=True, seed=42)
    print(f"node {info.node} speaks")
    assert all(name == str(number) for number, name in zip(mine, names))
    assert type(mine) is list and (info.head_addr, info.head_port) == ("", 0)
    return [info.node, info.total_nodes, info.is_head, info.accelerators, len(info.peers), mine]

@sky.function
@sky.stdout(only=lambda info: info.node < 2)
def some_speak():
    print("one of two")
    return sky.instance_info().node

@sky.function
@sky.silent
def nobody_speaks():
    import sys
    print("never"), print("never", file=sys.stderr)
    return sum(sky.shard(list(range(100))))

with sky.Compute(
    provider=sky.AWS(), nodes=4, accelerator=sky.accelerators.A100(), options=sky.Options(cluster=False)
) as compute:
    numbers = list(range(20))
    print(json.dumps(roles(numbers, [str(n) for n in numbers]) @ compute))
    print(json.dumps(some_speak() @ compute))
    print(json.dumps(sum(nobody_speaks() @ compute)))
"""


@pytest.mark.proof("1 s of a processor")
def test_older_script_with_places_shards_and_printing_ranks_runs(tmp_path: Path) -> None:
    (roles, some, total), printed = lines_printed_by_script(PLACES, tmp_path)
    assert [role[:5] for role in roles] == [[node, 4, node == 0, 0, 0] for node in range(4)]
    assert sorted(number for role in roles for number in role[5]) == list(range(20))
    assert (some, total) == ([0, 1, 2, 3], 4950)
    assert sorted(printed) == ["r000| node 0 speaks", "r000| one of two", "r001| one of two"]


TWO_SAMPLERS = """
@sky.function
@sky.stdout(only="head")
def train() -> dict:
    import os
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    assert dist.is_initialized()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = torch.nn.Linear(8, 3)
    for each in model.parameters():  # by hand what DDP and an optimizer do: to load them takes as long as PyTorch
        dist.broadcast(each.data, 0)
    generator = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(48, 8, generator=generator), torch.randint(0, 3, (48,), generator=generator))
    losses = []
    for sampler in (
        DistributedSampler(data, num_replicas=world, rank=rank), sky.DistributedSampler(data, shuffle=True)
    ):
        loader = DataLoader(data, batch_size=12, sampler=sampler)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in loader:
                loss = torch.nn.CrossEntropyLoss()(model(x), y)
                for each, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
                    dist.all_reduce(gradient)
                    each.data -= 0.1 * gradient / world
            print(f"epoch {epoch}")
    dist.barrier()
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    return {
        "weight": model.weight.sum().item(), "rank": rank,
        "variables": [os.environ[name] for name in names],
        "head": os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"],
        "token": len(os.environ["HF_TOKEN"]), "backend": dist.get_backend(),
    }

for made in (
    sky.plugins.torch(vision="latest", audio="latest"),
    sky.plugins.torch(version="2.3.0", vision="0.18.0", cuda="cu124"),
    sky.plugins.torch(backend="gloo"),
):
    assert made.name == "torch"

with sky.Compute(
    provider=sky.AWS(),
    accelerator=sky.accelerators.A100(),
    nodes=2,
    plugins=[sky.plugins.torch(), sky.plugins.huggingface(token="hf_made_up_for_this")],
    options=sky.Options(grace=60),  # a busy machine may need long to free what torch has
) as compute:
    print(json.dumps(train() @ compute))
"""


@pytest.mark.proof("2 s of a processor")
def test_older_torch_script_with_both_samplers_runs(tmp_path: Path) -> None:
    ((first, second),), printed = lines_printed_by_script(TWO_SAMPLERS, tmp_path)
    assert first["weight"] == second["weight"]
    assert [first["rank"], second["rank"]] == [0, 1]
    assert (first["variables"], second["variables"]) == (["2", "0", "0", "1", "0"], ["2", "1", "0", "1", "1"])
    assert first["head"] == second["head"]
    assert (first["backend"], first["token"]) == ("gloo", len("hf_made_up_for_this"))
    assert printed == [f"r000| epoch {epoch}" for epoch in (0, 1, 2)] * 2
