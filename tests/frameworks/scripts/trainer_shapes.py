"""Typical trainer scripts for torchrun, without downloads.

`accelerate`: accelerate/examples/nlp_example.py: `prepare`, a scheduler, `gather_for_metrics`. `trainer`: transformers'
Trainer with TrainingArguments from the command line.

The scripts of `torch_shapes.py` run after them in the process group that accelerate created, because importing PyTorch
takes most of the time.
"""

import sys

import torch
import torch_shapes  # lies beside this script
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    get_linear_schedule_with_warmup,
)


def small():
    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def examples(count):
    made = torch.Generator().manual_seed(count)
    tokens = torch.randint(64, (count, 8), generator=made)
    return [{"input_ids": row, "labels": row.sum() % 2} for row in tokens]


def nlp_example():
    accelerator = Accelerator(cpu=True)
    set_seed(42)
    model = small()
    loader = DataLoader(examples(32), shuffle=True, batch_size=4)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=2e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, len(loader))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    seen = 0
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        seen += len(accelerator.gather_for_metrics(batch["labels"]))
    assert (seen, accelerator.num_processes) == (32, 2)
    return accelerator.unwrap_model(model).state_dict()


def trainer(words):
    (args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses(words)
    torch.manual_seed(7)
    trained = Trainer(model=small(), args=args, train_dataset=examples(32))
    trained.train()
    assert args.world_size == 2
    return trained.model.state_dict()


if __name__ == "__main__":
    out, *rest = sys.argv[1:]
    made = {"accelerate": nlp_example(), "trainer": trainer(rest)} | torch_shapes.all_shapes(out)
    if torch.distributed.get_rank() == 0:
        torch.save(made, out)
    torch.distributed.destroy_process_group()
