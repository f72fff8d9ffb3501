"""Guide: tensors as arguments and results, and a model that is trained on one node."""

import skyward as sky


@sky.function
def train(x, y):
    import torch

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return model.state_dict(), loss.item()


if __name__ == "__main__":
    import torch

    x = torch.linspace(-1, 1, 16).unsqueeze(1)
    with sky.Compute(provider=sky.AWS(), accelerator="T4") as compute:
        state, loss = train(x, 2 * x) >> compute
    model = torch.nn.Linear(1, 1)
    model.load_state_dict(state)
    assert loss < 0.1 and abs(float(model.weight.detach()) - 2) < 0.5
