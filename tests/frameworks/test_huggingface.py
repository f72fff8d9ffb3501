"""transformers' Trainer across real ranks, with a token that is written nowhere."""

import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_tui.examples import finetune as example
from tests.support.fates import listening
from tests.support.loss import REPLACE, Lends, announce_preemption
from tests.support.waiting import wait_until

TOKEN = "hf_" + "NeverWrittenAnywhere".ljust(34, "x")
PLUGINS = [sky.plugins.torch(), sky.plugins.huggingface(token=TOKEN)]
NOT_INSTALLED = "sklearn scipy pandas pyarrow datasets torch._dynamo"  # optional there, and loaded where they are


@sky.function
def finetune() -> dict[str, Any]:
    """A tiny BERT from random weights learns whether the first token is large."""
    import tempfile

    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    model = BertForSequenceClassification(config)
    ids = torch.randint(0, 20, (64, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": int(row[0] > 9)} for row in ids]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=4,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            report_to=[],
            disable_tqdm=True,
            logging_steps=4,
            save_strategy="no",
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data)
        trainer.train()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return {
        "world": arguments.world_size,
        "rank": arguments.process_index,
        "steps": trainer.state.global_step,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "hash": hashlib.sha256(weights).hexdigest(),
        # Not the token itself: what a function returns is kept.
        "token": hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest(),
    }


@pytest.mark.proof("6 s of a processor")
def test_trainer_uses_all_ranks_of_a_broadcast_and_one_of_a_task(pool):
    first, second = finetune() @ pool
    assert (first["world"], second["world"]) == (2, 2)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["steps"] == 64 // (2 * 8) * 4
    assert first["losses"] == second["losses"]
    assert first["losses"][-1] < first["losses"][0]
    assert first["hash"] == second["hash"]
    assert first["token"] == second["token"] == hashlib.sha256(TOKEN.encode()).hexdigest()
    alone = list(sky.gather(finetune(), finetune(), finetune()) >> pool)
    assert [(each["world"], each["rank"], each["steps"]) for each in alone] == [(1, 0, 64 // 8 * 4)] * 3
    assert len({each["hash"] for each in alone}) == 1
    assert (finetune() @ pool)[0]["hash"] == first["hash"]


@pytest.mark.proof("8 s of a processor")
def test_packaged_finetune_example_trains_on_two_ranks(pool):
    first, second = example.finetune(epochs=1, samples=256) @ pool
    assert first == second
    assert first["ranks"] == 2
    assert first["loss"] < first["first_loss"]


def test_hugging_face_token_is_written_nowhere(pool, tmp_path):
    (tmp_path / "seen").write_text(f"a file with {TOKEN} in it")
    assert files_with_token(tmp_path) == [str(tmp_path / "seen")]
    hits = files_with_token(os.environ["SKYWARD_HOME"], os.environ["HF_HOME"])
    for name in ("cmdline", "environ"):
        hits += [str(path) for path in Path("/proc").glob(f"[0-9]*/{name}") if holds(path)]
    assert hits == []
    assert TOKEN not in repr(pool.spec)
    assert TOKEN not in str(pool.spec.describe())


def files_with_token(*folders: str | Path) -> list[str]:
    """Return the files that contain the token. Runs in another process, because closing the ledger's file would release
    this process's SQLite locks on it.
    """
    look = ["grep", "-rlsaFf", "-", *folders]
    return subprocess.run(look, input=TOKEN, stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()


def holds(path: Path) -> bool:
    try:
        return TOKEN.encode() in path.read_bytes()
    except OSError:  # a process that ended, or another person's
        return False


@pytest.mark.proof("1 s of a processor")
def test_trainer_ranks_listen_on_loopback_only(pool):
    found = listening() @ pool
    assert found[0], "the ranks have met somewhere"
    assert {address for rank in found for address in rank} == {"127.0.0.1"}


@sky.function
def finetune_with_jit_checkpoints(folder: str, waits: bool) -> tuple[int, int, int, str]:
    """Train for 24 steps. In the first attempt, wait in step 9 for the request for a checkpoint."""
    import time

    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    attempt, place = sky.attempt().number, f"{folder}/checkpoints-{waits}"
    waits = waits and attempt == 1

    class Wait(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if waits and state.global_step == 9:
                (Path(folder) / f"begun-{args.process_index}").touch()
                manager = next(each for each in trainer.callback_handler.callbacks if hasattr(each, "jit_manager"))
                while not manager.jit_manager.is_checkpoint_requested:
                    time.sleep(0.01)

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    ids = torch.randint(0, 20, (64, 8), generator=torch.Generator().manual_seed(1))
    arguments = TrainingArguments(
        output_dir=place, max_steps=24, per_device_train_batch_size=8, learning_rate=1e-2, report_to=[],
        disable_tqdm=True, save_strategy="no", enable_jit_checkpoint=True,
    )  # fmt: skip
    trainer = Trainer(
        model=BertForSequenceClassification(config), args=arguments,
        train_dataset=[{"input_ids": row, "labels": int(row[0] > 9)} for row in ids], callbacks=[Wait()],
    )  # fmt: skip
    Path(place).mkdir(exist_ok=True)
    last = get_last_checkpoint(place)
    trainer.train(resume_from_checkpoint=last)
    weights = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
    begin = int(last.rpartition("-")[2]) if last else 0
    return attempt, begin, trainer.state.global_step, hashlib.sha256(weights).hexdigest()


@pytest.mark.proof("15 s of a processor")
def test_trainer_saves_just_in_time_before_a_preemption_and_resumes_exactly(tmp_path):
    options = replace(REPLACE, on_loss="restart", grace=None)
    with (
        sky.Compute(provider=Lends(), nodes=2, plugins=PLUGINS, options=options) as compute,
        ThreadPoolExecutor() as beside,
    ):
        undisturbed = finetune_with_jit_checkpoints(str(tmp_path), False) @ compute
        running = beside.submit(lambda: finetune_with_jit_checkpoints(str(tmp_path), True) @ compute)
        wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        announce_preemption(compute, 1, left=120.0)
        resumed = running.result(100)
    assert [each[:3] for each in undisturbed] == [(1, 0, 24)] * 2
    assert [each[:3] for each in resumed] == [(2, 9, 24)] * 2
    assert {each[3] for each in resumed} == {each[3] for each in undisturbed}
