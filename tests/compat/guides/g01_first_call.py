"""Guide: a first call."""

import skyward as sky


@sky.function
def total(a: int, b: int) -> int:
    return a + b


@sky.function
def figures(values: list) -> dict:
    return {"count": len(values), "mean": sum(values) / len(values)}


if __name__ == "__main__":
    with sky.Compute(provider=sky.AWS()) as compute:
        assert total(2, 3) >> compute == 5
        assert figures([1, 2, 3]) >> compute == {"count": 3, "mean": 2.0}
