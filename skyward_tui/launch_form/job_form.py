"""The launch form where it names a job file: what the file asks for, and what comes of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.client.launch.script_plugin_provider_discovery import DEFAULT_PROVIDER
from skyward_core.model.errors import JobFileError, SkywardError, UsageError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.pool_view import PoolView
from skyward_tui.launch_form.form import (
    FieldError,
    Form,
    parse_amount,
    parse_arguments,
    path_of,
    provider_settings,
    setting_fields,
)
from skyward_tui.terminal_info import current_folder
from skyward_tui.text.number_and_time_format import NO_RUN, count, count_range

if TYPE_CHECKING:
    from skyward_core.client.launch.job_launch import JobFile, JobRequest
    from skyward_core.client.launch.job_records import ShellRecord
    from skyward_core.client.launch.script_plugin_provider_discovery import ArgumentField, Task
    from skyward_core.model.specs import PoolSpec

_UNKNOWN = "asked for when it is launched"  # stands for a secret meanwhile


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What a job comes to.

    Attributes:
        job: the file, with the form's variables.
        request: what is asked for; None where it runs on a pool that is up.
        pool: that pool, or what is to be made.
        notes: what of the file is not heeded, in words.
        lacks: secrets that nobody has given.
        keep: whether a pool that is made for it stays.
    """

    job: JobFile
    request: JobRequest | None
    pool: PoolView | PoolSpec
    notes: Sequence[str]
    lacks: tuple[str, ...]
    keep: bool

    @property
    def spec(self) -> PoolSpec | None:
        """Of a pool that is to be made."""
        return None if isinstance(self.pool, PoolView) else self.pool


def variables(script: str) -> list[ArgumentField]:
    """The file's variables as fields; none where it cannot be read, which its plan tells."""
    from skyward_core.client.launch.job_launch import read_variables
    from skyward_core.client.launch.script_plugin_provider_discovery import ArgumentField

    try:
        envs, _ = read_variables(path_of(script))
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
    """Work the form out.

    Args:
        secrets: values that were asked for, by name.
        clone: fetch the repository that the job works in.

    Raises:
        FieldError: names the field that is wrong; of the file it says the line.
    """
    from skyward_core.client.launch.job_launch import JobFile, JobRequest, read_variables

    path = path_of(form.script)
    said = parse_arguments(form.arguments)
    if said is None:
        raise FieldError("arguments", "a quotation has no end")
    try:
        envs, hidden = read_variables(path)
        here: dict[str, str | None] = {name: None for name, text in envs.items() if text is None and name in os.environ}
        open_ones = [name for name, text in hidden.items() if text is None]
        lacks = tuple(name for name in open_ones if name not in os.environ)
        values: dict[str, str | None] = dict.fromkeys(open_ones)
        values |= {name: (secrets or {}).get(name, _UNKNOWN) for name in lacks}
        missing = [name for name, text in envs.items() if text is None and name not in {**here, **said}]
        if missing:
            raise FieldError("arguments", f"{missing[0]} has no value: give it in its field", missing[0])
        job = JobFile.from_yaml(path, env=here | said, secrets=values)
        if form.pool:
            used = next((pool for pool in pools if pool.key == form.pool and pool.is_live), None)
            if used is None:
                raise FieldError("pool", "that pool is not up any more; choose another or a new one")
            if job.num_nodes > len(used.nodes):
                has = f"pool {used.name} has {len(used.nodes)}"
                raise FieldError("pool", f"the job runs on {count(job.num_nodes, 'node')}, and {has}: choose another")
            return JobPlan(job, None, used, job.notes, lacks, True)
        if any(form.name.strip() == pool.name for pool in pools if pool.is_live):
            raise FieldError("name", f"a pool named {form.name.strip()} is already up: choose it, or another name")
        request = JobRequest.from_options(
            job,
            pool=form.name.strip() or None,
            # What the file says of clouds holds, as long as nobody has chosen otherwise.
            provider=None if form.provider == DEFAULT_PROVIDER else form.provider,
            settings=dict(provider_settings(form)),
            budget=parse_amount(form.budget),
            wait_for_capacity=form.wait_for_capacity.strip() or None,
        )
        spec, notes = request.spec(clone=clone)
    except JobFileError as error:
        raise FieldError("script", str(error)) from error
    except SkywardError as error:
        raise FieldError(error.field if error.field in ("provider", "budget") else "script", str(error)) from error
    return JobPlan(job, request, spec, notes, lacks, form.keep)


def form_from_shell(found: ShellRecord, run: str) -> Form:
    """The form that runs a kept job again: of its file where that says what it said, else of what was kept of it.

    Args:
        run: the run that it is kept with.

    Raises:
        UsageError: the form cannot say all of it, as of a command, or its paths are seen from another folder.
    """
    from skyward_core.client.launch.job_records import JobRecord

    found.check_rerunnable()
    again = f"skyward-tui rerun {run} runs it again as it was"
    if not isinstance(found, JobRecord):
        raise UsageError(f"run {run} is of {sanitize_line(found.label)}, for which the form has no field: {again}")
    if found.cwd != current_folder():
        raise UsageError(
            f"it was launched in {found.cwd}, from where its paths are seen: open the app there, or {again}"
        )
    if found.run_alone or not found.setup or found.idle_timeout is not None:
        what = "exec, without setup" if found.run_alone else "-i" if found.setup else "--no-setup"
        raise UsageError(f"it was launched with {what}, which the form cannot say: {again}")
    if found.plugins:
        raise UsageError(f"it was launched with --plugin, which the form of a job cannot say: {again}")
    provider = found.provider or DEFAULT_PROVIDER
    ids = {setting.name: id for id, setting in setting_fields(provider).items()}
    if strange := [name for name in found.settings if name not in ids]:
        raise UsageError(f"the form has no field for {', '.join(strange)}: {again}")
    return Form(
        script=str(found.path if found.is_unchanged else found.write_file(run)),
        arguments=shlex.join(f"{name}={text}" for name, text in found.env.items()),
        provider=provider,
        settings={ids[name]: text for name, text in found.settings.items()},
        budget="" if found.budget is None else f"{found.budget:g}",
        wait_for_capacity=found.wait_for_capacity or "",
        keep=not found.down,
    )


def job_rows(plan: JobPlan) -> list[tuple[str, str]]:
    """What will happen, as (heading, text); of secrets no more than their names."""
    job, pool = plan.job, plan.pool
    told = [("job", sanitize_line(job.name or str(job.path)))]
    if isinstance(pool, PoolView):
        told.append(("uses", f"pool {pool.name}: {count(len(pool.nodes), 'node')}, {job.num_nodes} of them for it"))
    else:
        nodes = count_range(pool.least_nodes, pool.most_nodes, pool.provider.machine)
        told.append(("creates", f"pool {pool.name}: {nodes}"))
        if pool.accelerator is not None:
            told.append(("needs", str(pool.accelerator)))
    told.append(("folder", sanitize_line(job.folder)))
    told += [("brings", sanitize_line(f"{source} to {target}")) for target, source in job.mounts.items()]
    if job.setup.strip():
        told.append(("setup", f"{count(len(job.setup.splitlines()), 'line')}, on all nodes"))
    if job.run.strip():
        told.append(("run", f"{count(len(job.run.splitlines()), 'line')}, on {count(job.num_nodes, 'node')}"))
    else:
        told.append(("run", NO_RUN))
    if job.secrets:
        asked = f"; {', '.join(plan.lacks)} asked for at the launch" if plan.lacks else ""
        told.append(("secrets", sanitize_line(", ".join(job.secrets) + asked)))
    told += [("note", sanitize_line(note)) for note in plan.notes]
    stays = plan.keep or isinstance(pool, PoolView)
    told.append(("then", "the pool stays up; X tears it down" if stays else "the pool is torn down"))
    return told


def job_steps(plan: JobPlan, folder: Path) -> list[Task]:
    """Its calls, in order, with large ones in a folder.

    Raises:
        SkywardError: a file that it brings cannot be read.
    """
    from skyward_core.client.launch.job_launch import job_tasks, pool_job_tasks

    if isinstance(plan.pool, PoolView):
        return pool_job_tasks(plan.job, plan.pool, folder)
    return list(job_tasks(plan.job, folder))
