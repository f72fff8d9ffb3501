# mypy: ignore-errors
"""Parameters of two older generations: each is applied, warned about or refused.

``docs/upgrade/from-skyward.md`` lists the verdicts.
"""

from __future__ import annotations

import re
import warnings
from operator import attrgetter
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core import providers
from tests.compat.upstream import MEMBERS, PARAMETERS, PROVIDERS

PAGE = Path(__file__).parents[2] / "docs" / "upgrade" / "from-skyward.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").partition("\n## Parameters\n")[2].splitlines()
    if line.startswith("| `sky.")
]
# What each is made of besides.
BESIDE = {
    "Compute": {"provider": "sky.AWS(region='r')"},
    "AWS security_group_id": {"subnet_id": "'subnet-1'"},
    "Compute.attached": {"ref": "'train'"},
    "PipIndex": {"url": "'https://p.org'"},
    "plugins.mig": {"profile": "'3g.40gb'"},
    "accelerators.Custom": {"name": "'Mine'"},
}
POSITIONAL = {"shard": "[1, 2], "}


def parameter_verdicts() -> dict[str, dict[str, str]]:
    """Return kind, parameter and verdict of each warning."""
    found: dict[str, dict[str, str]] = {}
    for kind, parameters, verdict in ROWS:
        of_kind = found.setdefault(kind.strip("`").removeprefix("sky."), {})
        for name in re.findall(r"`(\w+)`", parameters):
            assert name not in of_kind, f"{kind} {name} stands there twice"
            of_kind[name] = verdict
    return found


def effect_of_parameter(kind: str, name: str) -> str:
    given = BESIDE.get(kind, {}) | BESIDE.get(f"{kind} {name}", {}) | {name: PARAMETERS[kind][name]}
    call = ", ".join(f"{word}={value}" for word, value in given.items())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FutureWarning)
        try:
            eval(f"sky.{kind}({POSITIONAL.get(kind, '')}{call})", {"sky": sky})  # noqa: S307  as a script has it
        except sky.SkywardError as error:
            assert "\n" not in str(error)
            if not isinstance(error, sky.PoolError):  # there is no such pool, which is another matter
                return "refused"
    mine = [str(each.message) for each in caught if f"{name}=...) is ignored" in str(each.message)]
    others = [each for each in caught if issubclass(each.category, FutureWarning)]
    if kind == "Executor":  # which makes a sky.Worker, and says so
        mine = [str(each.message) for each in others]
    assert len(mine) == len(others), [str(each.message) for each in others]
    return "told" if mine else "heeded"


def test_every_older_parameter_has_one_verdict() -> None:
    assert {kind: set(of_kind) for kind, of_kind in parameter_verdicts().items()} == {
        kind: set(of_kind) for kind, of_kind in PARAMETERS.items()
    }


@pytest.mark.parametrize("kind", PARAMETERS)
def test_effect_of_each_older_parameter_matches_its_verdict(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = []
    for name, verdict in parameter_verdicts()[kind].items():
        if name == "provider":
            monkeypatch.setattr(providers, "provider_override", "local")
        found = effect_of_parameter(kind, name)
        monkeypatch.setattr(providers, "provider_override", None)
        here = found == "heeded"
        if here != verdict.startswith(("same", "instead")) or here == verdict.startswith("not available"):
            wrong.append(f"{name} is {found}, and told of as: {verdict}")
    assert wrong == []


@pytest.mark.parametrize("name", PROVIDERS)
def test_unsupported_provider_keeps_its_parameters_and_hides_secrets(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = PROVIDERS[name].split()
    made = getattr(sky, name)(**{word: f"of {word}" for word in words})
    assert [getattr(made, word) for word in words] == [f"of {word}" for word in words]
    assert made == getattr(sky, name)(**made.parameters)
    secrets = [word for word in words if re.search("key|token|secret|json", word)]
    assert not [word for word in secrets if f"of {word}" in repr(made)], "no secret is shown"
    if name == "Container":
        assert sky.Compute(provider=made).spec.provider.name == "local"
    else:
        with pytest.raises(sky.UsageError, match=rf"sky\.{name}: renting machines of .*--provider local SCRIPT"):
            sky.Compute(provider=made)
    monkeypatch.setattr(providers, "provider_override", "local")
    compute = sky.Compute(provider=made, accelerator="A100", region="x", max_hourly_cost=1.0)
    assert compute.spec.provider.name == "local"
    (warning,) = compute._startup_notes
    assert all(word in warning for word in (*words, "region", "max_hourly_cost")) and "ignored" in warning


def test_older_values_have_all_their_attributes() -> None:
    missing = []
    for kind, names in MEMBERS.items():
        value = attrgetter(kind)(sky)
        has = {*dir(value), *getattr(value, "__match_args__", ()), *getattr(value, "__dataclass_fields__", ())}
        missing += [f"{kind}.{name}" for name in names.split() if name not in has]
    assert missing == []
