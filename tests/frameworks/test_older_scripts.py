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
