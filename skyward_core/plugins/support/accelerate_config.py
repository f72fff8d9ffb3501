"""What Hugging Face Accelerate's configuration says, as ``accelerate config`` writes it, in the words of the plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model.errors import UsageError
from ...model.older_words import unheeded

# By their environment variables, as accelerate's launcher sets them.
_VARIABLES = {
    "debug": "ACCELERATE_DEBUG_MODE",
    "downcast_bf16": "ACCELERATE_DOWNCAST_BF16",
    "num_cpu_threads_per_process": "OMP_NUM_THREADS",
}
_OURS = (
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


def read(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A configuration as parameters of the plugin, and as variables of the ranks.

    Args:
        config: as ``accelerate config`` writes it, with ``fsdp`` and ``deepspeed`` (or ``fsdp_config`` and
            ``deepspeed_config``) as tables.

    Raises:
        UsageError: it has a key that Accelerate has not, or says what does not go together.
    """
    left = dict(config)
    parameters: dict[str, Any] = {}
    variables: dict[str, str] = {}
    if (precision := left.pop("mixed_precision", None)) is not None:
        parameters["mixed_precision"] = precision
    for name in ("fsdp", "deepspeed"):
        table = _table(left, name)
        if table is None:
            continue
        table = {key.removeprefix(f"{name}_"): value for key, value in table.items()}
        if name == "deepspeed" and table.keys() & set(_DEEPSPEED):
            if more := table.keys() - set(_DEEPSPEED):
                raise UsageError(
                    f"deepspeed has no {' and no '.join(sorted(more))} beside Accelerate's own words"
                )
            parameters[name] = {}
            variables |= {f"ACCELERATE_DEEPSPEED_{key.upper()}": text(value) for key, value in table.items()}
        else:
            parameters[name] = table
    kind = str(left.pop("distributed_type", "") or "").upper()
    if (needed := _NEEDS.get(kind)) and needed not in parameters:
        raise UsageError(f"distributed_type {kind} needs a table {needed!r} beside it")
    for name, variable in _VARIABLES.items():
        if (value := left.pop(name, None)) is not None:
            variables[variable] = text(value)
    for name in _OURS:
        unheeded("the pool's ranks are what takes part")("accelerate config", name, left.pop(name, None))
    if left:
        raise UsageError(f"Accelerate's configuration has no {' and no '.join(sorted(left))}")
    return parameters, variables


def _table(left: dict[str, Any], name: str) -> dict[str, Any] | None:
    found = [value for key in (name, f"{name}_config") if (value := left.pop(key, None)) is not None]
    if not found:
        return None
    if len(found) > 1 or not isinstance(found[0], Mapping):
        raise UsageError(f"{name} of Accelerate's configuration is one table")
    return dict(found[0])


def text(value: Any) -> str:
    """A value as Accelerate reads it of a variable."""
    return str(value).lower() if isinstance(value, bool) else str(value)
