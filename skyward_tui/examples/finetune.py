"""Training with transformers' Trainer, on a tiny model with random weights and generated sentences.

skyward-tui run example:finetune --nodes 2 --plugin torch --plugin huggingface --arg epochs=3

The torch plugin sets up the process group, which the Trainer uses. Everything below is plain transformers. Nothing is
downloaded. To use a real model, replace it with AutoModelForSequenceClassification.from_pretrained(...).
"""

import skyward_core as sky

GOOD, BAD = ("fine", "great", "lovely"), ("dull", "awful", "poor")


@sky.function
@sky.stdout(only="head")
def finetune(epochs: int = 3, batch_size: int = 16, lr: float = 5e-3, samples: int = 512) -> dict:
    """Train the model to recognize praise; return the first training loss and the evaluation loss."""
    import random
    import tempfile

    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    words = ["a", "film", "so", "very", *GOOD, *BAD]
    draw = random.Random(0)
    data = []
    for number in range(samples):
        sentence = ["a", "very", draw.choice(GOOD if number % 2 else BAD), "film"]
        ids = torch.tensor([words.index(word) for word in sentence])
        data.append({"input_ids": ids, "labels": number % 2})

    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(words),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=8,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=batch_size,
            learning_rate=lr,
            logging_steps=4,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
        trainer.train()
        evaluated = trainer.evaluate()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"ranks": arguments.world_size, "first_loss": losses[0], "loss": evaluated["eval_loss"]}


if __name__ == "__main__":
    plugins = [sky.plugins.torch(), sky.plugins.huggingface()]
    with sky.Compute(provider=sky.Local(), nodes=2, plugins=plugins) as compute:
        results = finetune() @ compute
    print(f"loss {results[0]['first_loss']:.3f} -> {results[0]['loss']:.3f} on {results[0]['ranks']} ranks")
