"""SkyPilot's examples and tests by their path in skypilot-org/skypilot, and the result of each here.

The documents are our own. Each has the keys and the structure of the document whose path it has, with shorter commands.
"""

# ruff: noqa: E501  a table

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from skyward_core.client.launch.job_and_shell_launch import JobRequest
from skyward_core.model.errors import JobFileError, UsageError
from skyward_core.tasks.job_file import JobFile

# Path, document, what it comes to: machines, steps, and what is told; or the words by which it is refused.
CORPUS = [
    ("tests/test_yamls/minimal.yaml", "{name: min, setup: a, run: b}", "1 on anything: setup, min"),
    ("tests/test_yamls/test_only_setup.yaml", "setup: a", "1 on anything: setup"),
    ("tests/test_yamls/failed_worker_setup.yaml", "{resources: {cpus: 2+}, num_nodes: 3, setup: a, run: b}",
     "3 on 2 cpus: setup, run"),
    ("tests/test_yamls/different_default_conda_env.yaml", "{resources: {cpus: 2+}, setup: a, run: b}",
     "1 on 2 cpus: setup, run"),
    ("tests/test_yamls/test_multiple_resources.yaml",
     """
     resources:
       any_of:
         - {cloud: aws, region: us-east-1, accelerators: A100:8}
         - {cloud: gcp, accelerators: T4:4}
         - cloud: aws
     run:
       echo hi
     """, "1 on aws us-east-1 A100:8 | gcp T4:4 | aws: run"),
    ("tests/test_yamls/test_multiple_resources_ordered.yaml",
     "{name: m, resources: {accelerators: ['A100-40GB:1', 'T4:1', 'V100:1', 'K80:1']}, run: a}",
     "1 on, in order, A100-40GB:1 | T4:1 | V100:1 | K80:1: m"),
    ("tests/test_yamls/test_multiple_accelerators_ordered_with_default.yaml",
     "{resources: {use_spot: true, accelerators: ['A100:1', 'T4:1']}, run: a}",
     "1 on, in order, spot A100:1 | spot T4:1: run"),
    ("tests/test_yamls/test_list_of_dicts_accelerators.yaml",
     """
     resources:
       accelerators:
         - T4: 1
         - L4: 1
     setup: echo "a"
     run: echo "b"
     """, "1 on, in order, T4:1 | L4:1: setup, run"),
    ("tests/test_yamls/test_mixed_list_accelerators.yaml",
     """
     resources:
       accelerators:
         - T4: 1
         - "V100:2"
         - A100: 1
     run: a
     """, "1 on, in order, T4:1 | V100:2 | A100:1: run"),
    ("tests/test_yamls/test_list_null_accelerators.yaml",
     """
     resources:
       accelerators:
         - T4: 1
         - V100: null
     run: a
     """, "1 on, in order, T4:1 | V100:1: run"),
    ("tests/test_yamls/test_labels.yaml", "{name: min, resources: {labels: {a: b}}, setup: a, run: b}",
     "1 on anything: setup, min; told resources.labels"),
    ("tests/test_yamls/autostop_test.yaml", "{resources: {cloud: aws, autostop: 1}, run: a}",
     "1 on aws: run; ends after 60 s"),
    ("tests/test_yamls/intermediate_bucket.yaml", "{name: i, file_mounts: {/there: .}, workdir: ., setup: a, run: b}",
     "1 on anything: file_mounts, setup, i"),
    ("tests/test_yamls/pvc_volume.yaml", "{resources: {cpus: 0.1+}, volumes: {/mnt/a: '${P}-a'}, run: a}",
     "volumes is not supported: use the machines' disks"),
    ("tests/test_yamls/pipeline.yaml", "name: p\n---\nname: a\nrun: a\n---\nname: b\nrun: b\n",
     "line 3: several documents"),
    ("tests/test_yamls/test_managed_jobs_retry.yaml",
     "resources:\n  job_recovery:\n    max_restarts_on_errors: 1\nrun: a\n---\nrun: b\n", "several documents"),
    ("examples/multi_hostname.yaml", "{name: m, num_nodes: 2, run: 'echo My hostname: $(hostname)'}", "2 on anything: m"),
    ("examples/job_queue/job.yaml", "{name: job, setup: a, run: 'for i in {1..120}; do echo $i; done'}",
     "1 on anything: setup, job"),
    ("examples/managed_job.yaml",
     """
     name: minimal
     setup: a
     run: |
       python -u - << EOF
       import time
       EOF
     """, "1 on anything: setup, minimal"),
    ("examples/env_check.yaml", "{num_nodes: 2, workdir: ., setup: a, run: b}", "2 on anything: setup, run"),
    ("examples/using_file_mounts.yaml",
     """
     resources: {infra: aws, cpus: 2+}
     workdir: .
     num_nodes: 2
     file_mounts:
       /one.txt: ./one.txt
       ~/a/b/c/file: ./one.txt
       relative_dir: .
       /data/part: gs://bucket/part
     run: a
     """, "line 9: file_mounts: /data/part: buckets, volumes and repositories cannot be mounted"),
    ("examples/resnet_distributed_torch.yaml", "{name: r, resources: {accelerators: V100}, num_nodes: 2, setup: a, run: b}",
     "2 on V100:1: setup, r"),
    ("examples/distributed-pytorch/train-rdzv.yaml",
     "{name: d, resources: {cpus: 4+, accelerators: L4:2}, num_nodes: 2, setup: a, run: b}", "2 on L4:2 4 cpus: setup, d"),
    ("examples/distributed_ray_train/ray_train.yaml",
     "{resources: {accelerators: L4:2}, num_nodes: 2, workdir: ., setup: a, run: b}", "2 on L4:2: setup, run"),
    ("examples/distributed_nccl_test_with_mpi.yaml",
     "{resources: {accelerators: T4, cloud: gcp}, file_mounts: {~/.ssh/id: ~/.ssh/none}, num_nodes: 2, run: a}",
     "file_mounts: ~/.ssh/id: /"),
    ("examples/deepspeed-multinode/sky.yaml",
     """
     resources:
       accelerators: A100:1  # a comment
     num_nodes: 2
     envs:
       MY_VAR_1: "hello"
       LIST: "MY_VAR_1,SKYPILOT_NODE_RANK"
     setup: a
     run: b
     """, "2 on A100:1: setup, run; MY_VAR_1 LIST"),
    ("examples/docker_app.yaml", "{resources: {accelerators: V100:4}, setup: docker build ., run: docker run x}",
     "1 on V100:4: setup, run"),
    ("examples/disk_size.yaml", "{name: minimal, resources: {infra: azure, disk_size: 512}, setup: a, run: b}",
     "needs provider azure"),
    ("examples/azure_start_stop.yaml", "{name: a, resources: {cloud: azure}, setup: 'echo \"x\"', run: b}",
     "needs provider azure"),
    ("examples/amd_task.yaml",
     "{resources: {cloud: kubernetes, image_id: 'rocm/pytorch:latest', accelerators: 'MI210:1'}, run: rocm-smi}",
     "needs provider kubernetes"),
    ("examples/amd/amd_smoke_test.yaml", "{resources: {cloud: kubernetes, image_id: 'docker:rocm/x:1'}, run: rocm-smi}",
     "containers are not supported"),
    ("examples/aws_efa/nccl_efa.yaml", "{resources: {infra: k8s, accelerators: A100:8}, config: {kubernetes: {}}, run: a}",
     "config is not supported: pass provider settings when launching the file"),
    ("examples/admin_policy/task.yaml", "{resources: {cloud: aws, cpus: 2, labels: {a: b}}, setup: a, run: b}",
     "1 on aws 2 cpus: setup, run; told resources.labels"),
    ("examples/airflow/train.yaml",
     "{resources: {cpus: 1}, envs: {B: x, S: s3}, file_mounts: {/data: {name: $B, store: $S}}, run: a}",
     "file_mounts: /data: buckets, volumes and repositories cannot be mounted"),
    ("examples/batch_inference/worker.yaml",
     """
     envs:
       DATA: r2://bucket
       HF_TOKEN:
     resources:
       accelerators: {L4, A10, A100-80GB}
       any_of:
         - use_spot: true
         - use_spot: false
     run: a
     """, "line 4: envs: HF_TOKEN has no value. Set it with --env HF_TOKEN=VALUE"),
    ("examples/aws-neuron/multi-accelerator.yaml",
     "{resources: {accelerators: {A100:1, Inferentia:6}, disk_size: 512, ports: 9000}, envs: {T: x}, run: a}",
     "1 on A100:1 512 GB | Inferentia:6 512 GB: run; T; told resources.ports"),
    ("examples/benchmark/timm.yaml", "{resources: {candidates: [{accelerators: T4:4}]}, run: a}",
     "unknown key 'candidates'"),
    ("examples/elastic_training/job.yaml", "---\nname: e\nexecution: parallel\n---\nname: c\nrun: a\n",
     "several documents"),
    ("llm/axolotl/axolotl-spot.yaml", "name: axolotl\nrun: |\n  a\nenvs:\n  B: c\n\n4\n", "line 8: could not find expected ':'"),
    ("llm/axolotl/axolotl-docker.yaml", "{resources: {accelerators: L4:1, cloud: gcp}, setup: a, run: b, envs: {T: x}}",
     "needs provider gcp"),
    ("llm/gpt-2/gpt2-train.yaml",
     """
     name: train
     resources:
       accelerators: A100:8
       any_of:
         - cloud: gcp
           image_id: projects/x/global/images/y
         - cloud: aws
         - cloud: kubernetes
     file_mounts:
       ~/.cache/huggingface: gs://data
     run: a
     """, "buckets, volumes and repositories cannot be mounted"),
    ("llm/llama-3_1-finetuning/lora.yaml",
     """
     envs: {SIZE: 8B, BUCKET: b}
     resources: {accelerators: A100:8, disk_tier: best, use_spot: true}
     file_mounts:
       /configs-${SIZE}: .
     setup: a
     run: b
     """, "1 on spot A100:8: file_mounts, setup, run; SIZE BUCKET; told resources.disk_tier"),
    ("llm/gpt-oss-finetuning/gpt-oss-120b-sft.yaml",
     "{resources: {accelerators: H200:8, network_tier: best}, file_mounts: {/sft: .}, num_nodes: 4, setup: a, run: b}",
     "4 on H200:8: file_mounts, setup, run; told resources.network_tier"),
    ("llm/deepseek-r1/deepseek-r1-671B.yaml",
     """
     name: r1
     resources:
       accelerators: {H200:8, H100:8}
       disk_size: 1024
       disk_tier: best
       any_of:
         - use_spot: true
         - use_spot: false
     num_nodes: 2
     run: a
     """, "2 on spot H200:8 1024 GB | spot H100:8 1024 GB | H200:8 1024 GB | H100:8 1024 GB: r1; told resources.disk_tier"),
    ("llm/llama-3_2/llama3_2.yaml", "{resources: {accelerators: A100:8}, service: {replicas: 2}, run: a}",
     "service is not supported: run the server"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "document", "gives"), CORPUS, ids=[path for path, _, _ in CORPUS])
def test_what_it_gives(path: str, document: str, gives: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").touch()
    text = textwrap.dedent(document)
    try:
        job = JobFile.from_text(text, Path(path))
        result = in_words(job)
        JobRequest.from_options(job, provider=None if job.ways[0].cloud else "local").spec()
    except (JobFileError, UsageError) as error:
        result = str(error)
        assert gives in result
        return
    assert result == gives


def test_there_are_enough_of_them() -> None:
    assert len({path for path, _, _ in CORPUS}) == len(CORPUS) >= 40


def in_words(job: JobFile) -> str:
    ways = []
    for way in job.ways:
        parts = [way.cloud, way.region, "spot" if way.spot else "", way.accelerator]
        parts += [f"{way.vcpus} cpus"] * bool(way.vcpus) + [f"{way.disk_gb} GB"] * bool(way.disk_gb)
        ways.append(" ".join(filter(None, parts)) or "anything")
    properties = [
        f"{job.num_nodes} on {'in order, ' if job.ordered else ''}{' | '.join(ways)}".replace("on in", "on, in")
    ]
    properties[0] += ": " + ", ".join(call.name for call in job.calls())
    properties += [f"ends after {job.idle_seconds:g} s"] if job.idle_seconds else []
    properties += [" ".join(job.envs)] if job.envs else []
    properties += [f"told {' '.join(note.split(' ')[0] for note in job.notes)}"] if job.notes else []
    return "; ".join(properties)
