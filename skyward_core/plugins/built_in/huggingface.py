"""Plugin ``huggingface``: Hugging Face libraries, an access token that is never stored, and models to download."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from skyward_core.plugins.built_in.accelerate import allow_cpu_gang
from skyward_core.plugins.plugin import Plugin, requirement, with_pip

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec
    from skyward_core.runtime.instance_info_and_attempt import InstanceInfo

_FETCH = "import sys; from huggingface_hub import snapshot_download as get; [get(name) for name in sys.argv[1:]]"


@dataclass(frozen=True)
class HuggingFace(Plugin):
    """transformers, datasets, tokenizers and accelerate. Together with the plugin ``torch`` the Trainer uses the pool.

    Args:
        token: Access token of the Hub. None for the client's ``HF_TOKEN``, if set. The token is pickled with the plugin
            and sent only to ranks. It is not written to any file, command line or log.
        models: Repositories to download before training: during the setup of a node, or with a token at the start of a
            worker. The first rank of a node downloads them, and the other ranks use its cache.
        version: Version of transformers: "latest", an exact version, or constraints such as ">=5".
    """

    name: ClassVar[str] = "huggingface"
    help: ClassVar[str] = "transformers, datasets and tokenizers, token and models"
    place: ClassVar[int] = 5
    gang: ClassVar[bool] = False
    token: str | None = field(default=None, repr=False, metadata={"help": "access token of the Hub"})
    models: Sequence[str] = field(default=(), metadata={"help": "repositories to download before training"})
    version: str = field(default="latest", metadata={"help": "version of transformers"})

    def __post_init__(self) -> None:
        object.__setattr__(self, "token", self.token or os.environ.get("HF_TOKEN"))
        models = (self.models,) if isinstance(self.models, str) else tuple(self.models)
        object.__setattr__(self, "models", models)

    def secrets(self) -> Sequence[str]:
        return (self.token,) if self.token else ()

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        return with_pip(image, [requirement("transformers", self.version), "datasets", "tokenizers", "accelerate"])

    def bootstrap(self, pool_spec: PoolSpec) -> Sequence[str]:
        return () if not self.models or self.token else (shlex.join(["python", "-c", _FETCH, *self.models]),)

    def around_process(self, info: InstanceInfo) -> AbstractContextManager[object]:
        if self.token:
            os.environ["HF_TOKEN"] = self.token
            if self.models:
                from huggingface_hub import snapshot_download

                for name in self.models:
                    snapshot_download(name)
        if "torch" in sys.modules:
            allow_cpu_gang(info)
        return nullcontext()


PLUGIN = HuggingFace
