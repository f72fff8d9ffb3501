"""Plugin ``accelerate``: Hugging Face Accelerate, its environment and its configuration file.

Variables: https://huggingface.co/docs/accelerate/package_reference/cli and ``accelerate/utils/launch.py``.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from skyward_core.model.deprecated_and_unknown_arguments import ignored
from skyward_core.model.errors import UsageError
from skyward_core.plugins.built_in.torch import Torch, process_group
from skyward_core.plugins.plugin import Plugin, requirement, with_pip

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec
    from skyward_core.runtime.instance_info_and_attempt import InstanceInfo


# Environment variables that Accelerate's launcher sets, by field of the configuration.
_VARIABLES = {
    "debug": "ACCELERATE_DEBUG_MODE",
    "downcast_bf16": "ACCELERATE_DOWNCAST_BF16",
    "num_cpu_threads_per_process": "OMP_NUM_THREADS",
}
_POOL_FIELDS = (
    "num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "main_training_function",
    "gpu_ids", "same_network", "rdzv_backend", "compute_environment", "use_cpu", "tpu_env",
    "tpu_use_cluster", "tpu_use_sudo", "enable_cpu_affinity",
)  # fmt: skip
_DEEPSPEED = (
    "config_file", "zero_stage", "offload_optimizer_device", "offload_param_device", "offload_optimizer_nvme_path",
    "offload_param_nvme_path", "gradient_accumulation_steps", "gradient_clipping", "zero3_save_16bit_model",
    "zero3_init_flag",
)  # fmt: skip
_NEEDS = {"FSDP": "fsdp", "DEEPSPEED": "deepspeed"}


def read_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a configuration, split into parameters of the plugin and variables of the ranks.

    Args:
        config: Output of ``accelerate config``, with ``fsdp`` and ``deepspeed`` (or ``fsdp_config`` and
            ``deepspeed_config``) as tables.

    Raises:
        UsageError: If a key is unknown, or if keys contradict each other.
    """
    remaining = dict(config)
    parameters: dict[str, Any] = {}
    variables: dict[str, str] = {}
    if (precision := remaining.pop("mixed_precision", None)) is not None:
        parameters["mixed_precision"] = precision
    for name in ("fsdp", "deepspeed"):
        table = _table(remaining, name)
        if table is None:
            continue
        table = {key.removeprefix(f"{name}_"): value for key, value in table.items()}
        if name == "deepspeed" and table.keys() & set(_DEEPSPEED):
            if more := table.keys() - set(_DEEPSPEED):
                raise UsageError(f"deepspeed has keys that Accelerate does not know: {', '.join(sorted(more))}")
            parameters[name] = {}
            variables |= {f"ACCELERATE_DEEPSPEED_{key.upper()}": format_variable(value) for key, value in table.items()}
        else:
            parameters[name] = table
    kind = str(remaining.pop("distributed_type", "") or "").upper()
    if (needed := _NEEDS.get(kind)) and needed not in parameters:
        raise UsageError(f"distributed_type {kind} requires a table {needed!r}")
    for name, variable in _VARIABLES.items():
        if (value := remaining.pop(name, None)) is not None:
            variables[variable] = format_variable(value)
    for name in _POOL_FIELDS:
        ignored("the pool determines the ranks and their devices")("accelerate config", name, remaining.pop(name, None))
    if remaining:
        raise UsageError(f"unknown keys in Accelerate's configuration: {', '.join(sorted(remaining))}")
    return parameters, variables


def _table(remaining: dict[str, Any], name: str) -> dict[str, Any] | None:
    found = [value for key in (name, f"{name}_config") if (value := remaining.pop(key, None)) is not None]
    if not found:
        return None
    if len(found) > 1 or not isinstance(found[0], Mapping):
        raise UsageError(f"{name} of Accelerate's configuration must be one table")
    return dict(found[0])


def format_variable(value: Any) -> str:
    """Return a value in the format of Accelerate's variables."""
    return str(value).lower() if isinstance(value, bool) else str(value)


Precision = Literal["no", "fp16", "bf16", "fp8"]


@dataclass(frozen=True)
class Accelerate(Plugin):
    """Hugging Face Accelerate: ``Accelerator()`` uses the pool, with or without the plugin ``torch``.

    Args:
        mixed_precision: "no", "fp16", "bf16" or "fp8". None if the function chooses the precision.
        fsdp: Options of fully sharded data parallelism, named as in Accelerate's configuration without the prefix
            ``fsdp_``: ``{"sharding_strategy": "FULL_SHARD"}``. None for none.
        deepspeed: DeepSpeed configuration. None for none.
        version: "latest", an exact version, or constraints such as ">=1.0".
        config: Complete configuration, as ``accelerate config`` writes it. None to use the other parameters.

    Raises:
        UsageError: If the precision is unknown, if both fsdp and deepspeed are given, or if the configuration is
            invalid.
    """

    name: ClassVar[str] = "accelerate"
    help: ClassVar[str] = "Hugging Face Accelerate, with FSDP or DeepSpeed"
    place: ClassVar[int] = 6
    needs_peers = Torch.needs_peers
    mixed_precision: Precision | None = field(default=None, metadata={"help": "no, fp16, bf16 or fp8"})
    fsdp: Mapping[str, Any] | None = field(default=None, metadata={"help": "options of fully sharded data parallelism"})
    deepspeed: Mapping[str, Any] | None = field(default=None, metadata={"help": "DeepSpeed configuration, as a dict"})
    version: str = field(default="latest", metadata={"help": "version of accelerate"})
    config: Mapping[str, Any] | None = field(
        default=None, metadata={"help": "complete Accelerate configuration, as a dict"}
    )
    _variables: Mapping[str, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        # scripts for older API versions pass the configuration in this parameter
        if isinstance(self.mixed_precision, Mapping):
            object.__setattr__(self, "config", self.mixed_precision)
            object.__setattr__(self, "mixed_precision", None)
        if self.config is not None:
            parameters, variables = read_config(self.config)
            object.__setattr__(self, "_variables", variables)
            for name, value in parameters.items():
                if getattr(self, name) not in (None, value):
                    raise UsageError(f"{name}= and config= contradict each other. Remove one.")
                object.__setattr__(self, name, value)
        if self.mixed_precision not in (None, *get_args(Precision)):
            choices = ", ".join(get_args(Precision))
            raise UsageError(f"{self.mixed_precision!r} is not a mixed precision. Use {choices}.")
        if self.fsdp is not None and self.deepspeed is not None:
            raise UsageError("fsdp and deepspeed cannot be combined. Remove one.")

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        packages = [requirement("accelerate", self.version)]
        if self.deepspeed is not None:
            packages.append("deepspeed")
        image = with_pip(image, packages)
        if any(plugin.name == "torch" for plugin in pool_spec.plugins):
            return image
        return Torch().transform(image, pool_spec)

    @contextmanager
    def around_process(self, info: InstanceInfo) -> Iterator[None]:
        os.environ.update(self._environment())
        with process_group(info, "cuda:nccl,cpu:gloo" if self.fsdp is not None and _has_cuda() else None):
            allow_cpu_gang(info)
            yield

    def _environment(self) -> dict[str, str]:
        values = dict(self._variables)
        if self.mixed_precision is not None:
            values["ACCELERATE_MIXED_PRECISION"] = self.mixed_precision
        if self.fsdp is not None:
            values["ACCELERATE_USE_FSDP"] = "true"
            values |= {f"FSDP_{key.upper()}": format_variable(value) for key, value in self.fsdp.items()}
        if self.deepspeed is not None:
            values["ACCELERATE_USE_DEEPSPEED"] = "true"
        if self.deepspeed:
            # The configuration is passed in base64, which DeepSpeed accepts in place of a file name.
            config = json.dumps(dict(self.deepspeed)).encode()
            values["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = base64.urlsafe_b64encode(config).decode()
        return values


def allow_cpu_gang(info: InstanceInfo) -> None:
    """Configure Accelerate, and thereby the Trainer, for a gang of ranks without GPUs.

    Otherwise Accelerate and the Trainer ignore a process group without CUDA, and every rank trains separately.
    """
    if info.world_size > 1 and not info.stands_alone and not _has_cuda():
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


PLUGIN = Accelerate
