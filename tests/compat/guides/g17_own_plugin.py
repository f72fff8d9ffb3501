"""Guide: a plugin of the user, around a rank, around each call, and on the client."""

import os
from contextlib import contextmanager
from dataclasses import dataclass

import skyward as sky


@dataclass(frozen=True)
class Greets(sky.plugins.Plugin):
    name = "greets"
    word: str = "hello"

    def transform(self, image, pool_spec):
        from dataclasses import replace

        return replace(image, env={**image.env, "GREETING": self.word})

    @contextmanager
    def around_process(self, info):
        os.environ["GREETED"] = f"{os.environ['GREETING']} {info.node}"
        yield

    def decorate(self, fn):
        from functools import wraps

        return wraps(fn)(lambda *args: (self.word, fn(*args)))


@sky.function
def greeted() -> str:
    return os.environ["GREETED"]


if __name__ == "__main__":
    with sky.Compute(provider=sky.AWS(), nodes=2, plugins=[Greets("welcome")]) as compute:
        assert greeted() @ compute == [("welcome", "welcome 0"), ("welcome", "welcome 1")]
