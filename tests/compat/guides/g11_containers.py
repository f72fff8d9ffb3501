"""Guide: local nodes with an image's variables."""

import skyward as sky


@sky.function
def variable() -> str:
    import os

    return os.environ.get("MY_VAR", "not set")


if __name__ == "__main__":
    with sky.Compute(provider=sky.Container(), nodes=1, image=sky.Image(env={"MY_VAR": "it works"})) as compute:
        assert variable() >> compute == "it works"
