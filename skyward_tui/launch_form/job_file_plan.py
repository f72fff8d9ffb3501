"""Job files in the launch form: variables, plan and steps of a job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skyward_core.client.launch.launch_option_declarations import JOB_LIMITS
from skyward_core.client.launch.plugin_and_provider_catalog import DEFAULT_PROVIDER, ArgumentField
from skyward_core.model.errors import JobFileError, SkywardError, UsageError
from skyward_core.util.safe_file_access import current_folder
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.pool_view import PoolView
from skyward_tui.launch_form.form import (
    FieldError,
    Form,
    parse_arguments,
    path_of,
    provider_settings,
    read_options,
    selected_pool,
    setting_fields,
)
from skyward_tui.text.number_time_and_run_state_format import NO_RUN, count, count_range
from skyward_tui.text.teardown_and_leftovers import kept_pool_text

if TYPE_CHECKING:
    from skyward_core.client.launch.job_and_shell_launch import JobFile, JobRequest
    from skyward_core.client.launch.launch_records_and_script_state import ShellRecord
    from skyward_core.model.specs import PoolSpec

_UNKNOWN = "the app asks for it at the launch"  # text in place of a secret's value that the user has not entered yet


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Plan for the launch of a job file.

    Attributes:
        job: The job file, with the form's variables.
        request: The request for a new pool; None for a running pool.
        pool: The running pool, or the specification of the new pool.
        notes: Notes about ignored parts of the file.
        lacks: Names of secrets without a value.
        keep: Whether a new pool stays up afterwards.
    """

    job: JobFile
    request: JobRequest | None
    pool: PoolView | PoolSpec
    notes: Sequence[str]
    lacks: tuple[str, ...]
    keep: bool

    @property
    def spec(self) -> PoolSpec | None:
        """Specification of the new pool; None for a running pool."""
        return None if isinstance(self.pool, PoolView) else self.pool


def variables(script: str) -> list[ArgumentField]:
    """Return the variables of a job file as form fields; empty if the file is invalid, because the plan reports the
    error."""
    from skyward_core.client.launch.job_and_shell_launch import read_job_variables

    try:
        envs, _ = read_job_variables(path_of(script))
    except SkywardError:
        return []
    return [
        ArgumentField(name, "text", "", text, text is None and name not in os.environ, help="a variable")
        for name, text in envs.items()
        if name.isidentifier()
    ]


def job_plan(
    form: Form, pools: Collection[PoolView], secrets: Mapping[str, str] | None = None, *, clone: bool = False
) -> JobPlan:
    """Compute the plan for the job file that a form names.

    Args:
        form: The form.
        pools: All known pools.
        secrets: Values that the user has entered, by name.
        clone: Whether to clone the job's repository.

    Raises:
        FieldError: If a field, or a line of the job file, is invalid.
    """
    from skyward_core.client.launch.job_and_shell_launch import JobRequest, read_job_file, read_job_variables

    path = path_of(form.script)
    given = parse_arguments(form.arguments)
    if given is None:
        raise FieldError("arguments", "missing closing quotation mark")
    try:
        envs, hidden = read_job_variables(path)
        here: dict[str, str | None] = {name: None for name, text in envs.items() if text is None and name in os.environ}
        open_ones = [name for name, text in hidden.items() if text is None]
        lacks = tuple(name for name in open_ones if name not in os.environ)
        values: dict[str, str | None] = dict.fromkeys(open_ones)
        values |= {name: (secrets or {}).get(name, _UNKNOWN) for name in lacks}
        missing = [name for name, text in envs.items() if text is None and name not in {**here, **given}]
        if missing:
            raise FieldError("arguments", f"{missing[0]} has no value: enter one in its field", missing[0])
        job = read_job_file(path, here | given, values)
        if (used := selected_pool(form, pools)) is not None:
            if job.num_nodes > len(used.nodes):
                has = f"pool {used.name} has {len(used.nodes)}. Choose another pool"
                raise FieldError("pool", f"the job needs {count(job.num_nodes, 'node')}, but {has}")
            return JobPlan(job, None, used, job.notes, lacks, True)
        request = JobRequest.from_options(
            job,
            pool=form.name.strip() or None,
            # The clouds in the job file select the provider, unless the user has chosen a provider other than the
            # default.
            provider=None if form.provider == DEFAULT_PROVIDER else form.provider,
            settings=dict(provider_settings(form)),
            **read_options(form, JOB_LIMITS),
        )
        spec, notes = request.spec(clone=clone)
    except JobFileError as error:
        raise FieldError("script", str(error)) from error
    except SkywardError as error:
        raise FieldError(error.field if error.field in ("provider", *JOB_LIMITS) else "script", str(error)) from error
    return JobPlan(job, request, spec, notes, lacks, form.keep)


def form_from_shell(found: ShellRecord, run: str) -> Form:
    """Return the form that runs a saved job again. Uses the job's file if it is unchanged, otherwise the saved text.

    Args:
        found: The saved job.
        run: ID of the run.

    Raises:
        UsageError: If the form lacks fields for the job, or the job was launched from another folder.
    """
    from skyward_core.client.launch.launch_records_and_script_state import JobRecord

    found.check_rerunnable()
    again = f"Run skyward-tui rerun {run}"
    if not isinstance(found, JobRecord):
        raise UsageError(f"the form does not support {sanitize_line(found.label)} (run {run}). {again}")
    if found.cwd != current_folder():
        raise UsageError(f"the job was launched in {found.cwd}. Open the app there. {again}")
    if found.run_alone or not found.setup or found.idle_timeout is not None:
        what = "exec, without setup" if found.run_alone else "--idle" if found.setup else "--no-setup"
        raise UsageError(f"the job was launched with {what}, which the form does not support. {again}")
    if found.options.plugins:
        raise UsageError(f"the job was launched with --plugin, which the form of a job does not support. {again}")
    provider = found.options.provider or DEFAULT_PROVIDER
    ids = {setting.name: id for id, setting in setting_fields(provider).items()}
    if unsupported := [name for name in found.options.settings if name not in ids]:
        raise UsageError(f"the form has no field for {', '.join(unsupported)}. {again}")
    values = {name: getattr(found.options, name) for name in JOB_LIMITS}
    limits: dict[str, Any] = {name: str(each).removesuffix(".0") for name, each in values.items() if each is not None}
    return Form(
        script=str(found.path if found.is_unchanged else found.write_file(run)),
        arguments=shlex.join(f"{name}={text}" for name, text in found.env.items()),
        provider=provider,
        settings={ids[name]: text for name, text in found.options.settings.items()},
        **limits,
        keep=not found.down,
    )


def job_rows(plan: JobPlan, ends: str = "X") -> list[tuple[str, str]]:
    """Return the rows of a job's plan as (heading, text). Of secrets, only the names are included.

    Args:
        plan: The plan.
        ends: Key or command that tears down the pool.
    """
    job, pool = plan.job, plan.pool
    rows = [("job", sanitize_line(job.name or str(job.path)))]
    if isinstance(pool, PoolView):
        rows.append(("uses", f"{job.num_nodes} of {count(len(pool.nodes), 'node')} of pool {pool.name}"))
    else:
        nodes = count_range(pool.least_nodes, pool.most_nodes, pool.provider.machine)
        rows.append(("creates", f"pool {pool.name}: {nodes}"))
        if pool.accelerator is not None:
            rows.append(("needs", str(pool.accelerator)))
        if (limits := pool.options).on_loss == "restart":
            how = f"up to {limits.restarts} after lost ranks or machines, {limits.error_restarts} after errors"
            rows.append(("restarts", how))
    rows.append(("folder", sanitize_line(job.folder)))
    rows += [("uploads", sanitize_line(f"{source} to {target}")) for target, source in job.mounts.items()]
    if job.setup.strip():
        rows.append(("setup", f"{count(len(job.setup.splitlines()), 'line')}, on all nodes"))
    if job.run.strip():
        rows.append(("run", f"{count(len(job.run.splitlines()), 'line')}, on {count(job.num_nodes, 'node')}"))
    else:
        rows.append(("run", NO_RUN))
    if job.secrets:
        asked = f"; the app asks for {', '.join(plan.lacks)} at the launch" if plan.lacks else ""
        rows.append(("secrets", sanitize_line(", ".join(job.secrets) + asked)))
    rows += [("note", sanitize_line(note)) for note in plan.notes]
    keeps_pool = plan.keep or isinstance(pool, PoolView)
    rows.append(("then", kept_pool_text(pool, ends) if keeps_pool else "pool is torn down after the job"))
    return rows
