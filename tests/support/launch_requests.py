"""hypothesis strategies for valid and arbitrary launch requests."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import strategies as st

from skyward_core.client.launch.launch_option_declarations import LaunchRequest

USUAL = ("on-demand", "cheapest")
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NASTY = st.sampled_from(
    [
        "", " ", "-", "--", "--keep", "-a", "=", "a=b", "--one=1", "'", '"', "a'b\"c", "\n", "$HOME", "*", "é",
        "☃ x", "\\", "#",
    ]
)  # fmt: skip
TEXT = ANY_TEXT | NASTY
HOST = st.from_regex(r"([a-z]{1,4}@)?[a-z]{1,6}[0-9]?(:22[0-9])?", fullmatch=True)
HOSTS = st.lists(HOST, min_size=1, max_size=4, unique_by=lambda name: name.rpartition("@")[2])
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
SCRIPTS = st.sampled_from(["train_it.py", "train it.py", "-x.py", "-a.py", "x:y.py", "./train_it.py"])
PACKAGES_SAID: list[dict[str, Any]] = [
    {},
    {"lock": "a lock/uv.lock"},
    {"requirements": "requirements.txt"},
    {"project": True},
]
PARAMETERS: dict[str, st.SearchStrategy[str]] = {
    "torch.backend": st.sampled_from(["gloo", "nccl", "None"]),
    "torch.init": st.sampled_from(["true", "no"]),
    "torch.version": NAMES | st.sampled_from([">=2.3, <3", "a 'b' \"c\" é= $HOME"]),
    "mig.profile": st.sampled_from(["1g.10gb", "2g.20gb"]),
    "joblib.n_jobs": st.integers(1, 9).map(str),
}


def given_to(plugins: list[str]) -> st.SearchStrategy[dict[str, str]]:
    """Draw some parameters of plugins as typed texts."""
    known = {name: texts for name, texts in PARAMETERS.items() if name.partition(".")[0] in plugins}
    return st.fixed_dictionaries({}, optional=known)


def numbers_of_nodes(most: int) -> st.SearchStrategy[int | str]:
    """Draw a number of nodes, or a range in the form of the command line."""
    ends = st.tuples(st.integers(1, most), st.integers(1, most)).filter(lambda pair: pair[0] != pair[1])
    return st.integers(1, most) | ends.map(lambda pair: f"{min(pair)}:{max(pair)}")


OF_ANY_IMAGE = st.sampled_from(
    [
        "pip=einops", "pip=a>=1,<2", "apt=git", "setup=echo 'a b' > \"$HOME/x\"", "env.WORD=a 'b'=c", "env.NONE=",
        "secret=HOST_TOKEN",
    ]
)  # fmt: skip
IMAGE = OF_ANY_IMAGE | st.sampled_from(["includes=train_it.py", "excludes=*.bin"])
SECRET = "a-value-of-the-shell"


@st.composite
def requests(draw: st.DrawFn) -> LaunchRequest:
    """Draw valid requests."""
    hosts = draw(st.none() | HOSTS)
    own = draw(st.none() | st.lists(TEXT, max_size=3))
    values = {
        "epochs": str(draw(st.integers(0, 99))),
        "note": draw(TEXT),
        "rate": repr(draw(st.floats(0))),
        "sizes": repr(draw(st.lists(st.integers(0, 9), max_size=3))),
        "any": draw(TEXT | st.sampled_from(["{'a': [1, (2,)]}", "{1, 2}", "b'x'", "1j"])),
    }
    provider = draw(st.sampled_from([None, "local", "aws"])) if hosts is None else "ssh"
    rents = provider == "aws"
    plugins = draw(st.lists(st.sampled_from(("torch", "mig", "joblib")), unique=True))
    return LaunchRequest(
        script=draw(SCRIPTS),
        function="train" if own is None else None,
        arguments=[f"{name}={text}" for name, text in values.items()] if own is None else (),
        script_args=own,
        torchrun=own is not None and draw(st.booleans()),
        python=draw(st.none() | st.just(sys.executable)),
        pool=draw(st.none() | NAMES),
        provider=provider,
        settings={} if hosts is None else {"hosts": ",".join(hosts)},
        allocation=draw(st.sampled_from([None, "spot", "spot-if-available", "on-demand"])) if rents else None,
        max_hourly_cost=draw(st.none() | st.floats(0.01, 1e4)) if rents else None,
        selection=draw(st.sampled_from([None, "cheapest", "first"])) if rents else None,
        budget=draw(st.none() | st.floats(0.01, 1e6)) if rents else None,
        wait_for_capacity=draw(st.sampled_from([None, "2h", "90", "1.5 days"])) if rents else None,
        grace=draw(st.none() | st.floats(0, 3600)),
        debug_wait=draw(st.sampled_from([None, "10m", "90", "0"])),
        nodes=draw(st.none() | numbers_of_nodes(len(hosts) if hosts else 64)),
        ranks_per_node=draw(st.none() | st.integers(1, 64) | st.just("gpu")),
        accelerator=draw(st.sampled_from((None, "A100", "A100-80GB:4", "H100:8"))),
        plugins=plugins,
        plugin_settings=draw(given_to(plugins)),
        image_settings=draw(st.lists(IMAGE if provider in ("ssh", "aws") else OF_ANY_IMAGE, max_size=4, unique=True)),
        **draw(st.sampled_from(PACKAGES_SAID)),
        outputs=draw(st.lists(st.sampled_from(("out/**", "*.pt", "a b", "a,b", ",", "-x", "☃'\"")), unique=True)),
        one=draw(st.booleans()),
        keep=draw(st.booleans()),
        detach=draw(st.booleans()),
        timeout=draw(st.none() | st.floats(0.001, 1e9)),
    )


HOSTILE = st.builds(
    LaunchRequest,
    script=SCRIPTS | TEXT,
    function=st.none() | TEXT,
    arguments=st.lists(TEXT, max_size=3),
    python=st.none() | TEXT,
    pool=st.none() | TEXT,
    provider=st.none() | TEXT | st.sampled_from(["local", "ssh"]),
    settings=st.dictionaries(TEXT | st.sampled_from(["hosts", "user"]), TEXT, max_size=2),
    nodes=st.none() | st.integers(-2, 2000) | TEXT,
    ranks_per_node=st.none() | st.integers(-2, 70) | st.just("gpu"),
    accelerator=st.none() | TEXT,
    allocation=st.none() | TEXT,
    max_hourly_cost=st.none() | st.floats(0.01, 1e4),
    selection=st.none() | TEXT,
    budget=st.none() | st.floats(0.01, 1e6),
    wait_for_capacity=st.none() | TEXT,
    grace=st.none() | st.floats(),
    debug_wait=st.none() | TEXT,
    plugins=st.lists(TEXT | st.just("torch"), max_size=2),
    plugin_settings=st.dictionaries(TEXT | st.sampled_from(["torch.backend", "a.b.c", " .a"]), TEXT, max_size=2),
    image_settings=st.lists(TEXT | st.sampled_from(["pip=", "env.=", "env.a b=c", "secret=", "secret=X"]), max_size=2),
    outputs=st.lists(TEXT, max_size=2),
    one=st.booleans(),
    keep=st.booleans(),
    detach=st.booleans(),
    timeout=st.none() | st.floats(),
)
