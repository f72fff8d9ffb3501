"""Packages and variables of the plugins, tested without their frameworks."""

import os
import pickle
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from skyward_core import plugins
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.specs import Image, PoolSpec
from skyward_core.plugins.built_in.tensorflow import make_tf_config
from skyward_core.runtime.framework_rendezvous_and_thread_limits import claim_port
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, Peer
from tests.support.plugin_gang import places, run_gang

GPU = "H100:8"


def image_for(*given, accelerator=None):
    spec = PoolSpec(name="p", provider=None, accelerator=accelerator, plugins=given)
    image = Image()
    for plugin in given:
        image = plugin.transform(image, spec)
    return image


@pytest.mark.parametrize(
    ("given", "accelerator", "pip"),
    [
        ([plugins.jax()], None, ("jax",)),
        ([plugins.jax()], GPU, ("jax[cuda12]",)),
        ([plugins.jax(cuda="cuda13", version="0.6.0")], GPU, ("jax[cuda13]==0.6.0",)),
        ([plugins.tensorflow(version=">=2.16")], None, ("tensorflow>=2.16",)),
        ([plugins.tensorflow()], GPU, ("tensorflow[and-cuda]",)),
        ([plugins.keras()], None, ("keras>=3", "jax")),
        ([plugins.keras(backend="torch")], None, ("keras>=3", "torch")),
        ([plugins.keras(backend="tensorflow")], None, ("keras>=3", "tensorflow")),
        # The backend's own plugin has the word on its version, on either side.
        ([plugins.keras(backend="torch"), plugins.torch(version="2.3.0")], None, ("keras>=3", "torch==2.3.0")),
        ([plugins.jax(version="0.6.0"), plugins.keras()], None, ("jax==0.6.0", "keras>=3")),
        ([plugins.huggingface()], None, ("transformers", "datasets", "tokenizers", "accelerate")),
        ([plugins.accelerate()], None, ("accelerate", "torch")),
        ([plugins.accelerate(deepspeed={}), plugins.torch()], None, ("accelerate", "deepspeed", "torch")),
        ([plugins.sklearn(version=">=1.4")], None, ("scikit-learn>=1.4",)),
        ([plugins.joblib()], None, ("joblib",)),
        ([plugins.mig()], GPU, ()),
    ],
)
def test_framework_plugin_installs_its_packages(given, accelerator, pip):
    assert image_for(*given, accelerator=accelerator).pip == pip


def test_pytorch_wheels_come_from_its_index_for_every_plugin():
    for given in (plugins.keras(backend="torch"), plugins.accelerate()):
        (index,) = image_for(given, accelerator=GPU).pip_indexes
        assert index.url.endswith("/cu128")


def test_keras_backend_is_set_in_the_image_environment():
    assert image_for(plugins.keras(backend="torch")).env == {"KERAS_BACKEND": "torch"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plugins.keras(backend="theano"), "not a backend of Keras. Use jax, torch, tensorflow"),  # type: ignore[arg-type]
        (lambda: plugins.accelerate(mixed_precision="int4"), "not a mixed precision. Use no, fp16"),  # type: ignore[arg-type]
        (lambda: plugins.accelerate(fsdp={}, deepspeed={}), "cannot be combined"),
        (lambda: plugins.mig(profile="half"), "not a MIG profile"),
        (lambda: plugins.mig(profile="9g.80gb"), "not a MIG profile"),
        (lambda: plugins.joblib(n_jobs=0), "n_jobs must be 1 or more"),
        (lambda: plugins.check_plugins([plugins.joblib(), plugins.sklearn()]), "cannot be combined"),
    ],
)
def test_invalid_framework_plugin_parameters_are_rejected(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_framework_plugins_do_nothing_for_one_rank():
    given = ["jax", "tensorflow", "torch"]
    (seen,) = run_gang(
        f"""
        before = dict(os.environ)
        with enter_process([plugins.by_name(name) for name in {given}], info):
            pass
        print(json.dumps([dict(os.environ) == before, sorted({{'jax', 'torch', 'tensorflow'}} & set(sys.modules))]))
        """,
        [InstanceInfo()],
    )
    assert seen == [True, []]


def test_tf_config_lists_a_port_per_rank():
    peers = (Peer(0, "10.0.0.1", (4000, 4002)), Peer(1, "10.0.0.2", (5000, 4000)))
    info = InstanceInfo(1, 2, 3, 4, 1, 2, "10.0.0.1", 31000, peers=peers)
    assert make_tf_config(info) == {
        "cluster": {"worker": ["10.0.0.1:4000", "10.0.0.1:4002", "10.0.0.2:5000", "10.0.0.2:4000"]},
        "task": {"type": "worker", "index": 3},
    }
    with pytest.raises(PoolError, match="a port for each of 4 ranks, but the nodes reserved 2"):
        make_tf_config(replace(info, peers=(peers[0], Peer(1, "10.0.0.2"))))


def test_tf_config_is_set_on_every_rank():
    infos = places(2)
    seen = run_gang(
        """
        with enter_process([plugins.keras(backend="tensorflow")], info):
            print(json.dumps(json.loads(os.environ["TF_CONFIG"])))
        """,
        infos,
    )
    assert [config["task"]["index"] for config in seen] == [0, 1]
    assert seen[0]["cluster"] == {"worker": [f"127.0.0.1:{peer.ports[0]}" for peer in infos[0].peers]}


JOINING = {
    "torch": "torch()", "torch without init": "torch(init=False)", "jax": "jax()", "tensorflow": "tensorflow()",
    "accelerate": "accelerate()", "keras on torch": "keras(backend='torch')",
    "keras on tensorflow": "keras(backend='tensorflow')",
}  # fmt: skip


def test_plugins_join_no_group_in_a_world_of_one_rank():
    made = ", ".join(f"[plugins.{make}]" for make in JOINING.values())
    (report,) = run_gang(
        f"""
        from skyward_core.runtime.instance_info_and_attempt import InstanceInfo
        words = ("RANK", "SIZE", "MASTER_", "JAX_", "TF_CONFIG", "ACCELERATE_USE_CPU")
        told = []
        for each in [{made}]:
            before = set(os.environ)
            with enter_process(each, info, InstanceInfo()):
                told.append([name for name in set(os.environ) - before if any(word in name for word in words)])
        told.append([name for name in ("torch", "jax", "tensorflow") if name in sys.modules])
        print(json.dumps([told, [each[0].joins for each in [{made}]]]))
        """,
        places(2)[:1],
    )
    assert report == [[[]] * (len(JOINING) + 1), [True] * len(JOINING)]


def test_plugins_of_one_worker_claim_distinct_ports():
    info = InstanceInfo(head_port=31000)
    assert [claim_port(info) for _ in range(3)] == [31000, 31001, 31002]


SECRET = "hf_secretsecretsecret"


def test_huggingface_token_is_only_in_the_pickled_plugin(monkeypatch):
    plugin = plugins.huggingface(token=SECRET, models=["org/model"])
    assert SECRET not in repr(plugin)
    image = image_for(plugin)
    assert SECRET not in str(asdict(image))
    assert plugin.bootstrap(PoolSpec(name="p", provider=None)) == ()
    assert pickle.loads(pickle.dumps(plugin)).token == SECRET  # it does travel
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert plugins.huggingface().token == SECRET
    assert plugins.huggingface(token="other").token == "other"


def test_huggingface_models_are_downloaded_by_the_bootstrap_step(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (tmp_path / "huggingface_hub.py").write_text(
        "def snapshot_download(name):\n    open('fetched', 'a').write(name + '\\n')\n"
    )
    models = ["org/model", "odd'; touch injected; '"]
    (step,) = plugins.huggingface(models=models).bootstrap(PoolSpec(name="p", provider=None))
    (tmp_path / "python").symlink_to(sys.executable)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    subprocess.run(["sh", "-c", step], check=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "fetched").read_text().splitlines() == models
    assert not (tmp_path / "injected").exists()


def test_huggingface_models_may_be_one_string():
    assert plugins.huggingface(models="org/model").models == ("org/model",)


def test_huggingface_models_with_a_token_are_downloaded_by_ranks(tmp_path):
    (tmp_path / "huggingface_hub.py").write_text(
        "import os\n"
        "def snapshot_download(name):\n"
        "    open(os.environ['SEEN'], 'a').write(f'{name} {os.environ[\"HF_TOKEN\"]}\\n')\n"
    )
    run_gang(
        f"""
        import sys; sys.path.insert(0, {str(tmp_path)!r})
        with enter_process([plugins.huggingface(token={SECRET!r}, models=("org/model",))], info):
            print(json.dumps(None))
        """,
        [InstanceInfo()],
        SEEN=str(tmp_path / "seen"),
    )
    assert (tmp_path / "seen").read_text() == f"org/model {SECRET}\n"
