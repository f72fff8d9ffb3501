"""Guide: environments of nodes: variables, files of the working folder, the client's own Python."""

import sys

import skyward as sky

image = sky.Image(
    python=f"{sys.version_info.major}.{sys.version_info.minor}",
    env={"STAGE": "test", "WORKERS": "4"},
    includes=["*.txt"],
    excludes=["*.log"],
)


@sky.function
def read_environment() -> dict:
    import os
    import platform

    return {
        "python": platform.python_version_tuple()[:2],
        "stage": os.environ["STAGE"],
        "workers": int(os.environ["WORKERS"]),
    }


if __name__ == "__main__":
    with sky.Compute(provider=sky.AWS(region="us-east-1"), image=image) as compute:
        here = tuple(map(str, sys.version_info[:2]))
        assert read_environment() >> compute == {"python": here, "stage": "test", "workers": 4}
