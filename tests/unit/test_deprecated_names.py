"""Deprecated API names: each works as before and warns once, naming its replacement."""

import warnings

import pytest

import skyward_core as sky
from skyward_core.api import older_api_names


@pytest.fixture(autouse=True)
def no_warnings_given(monkeypatch):
    monkeypatch.setattr(older_api_names, "_warned", set())


def test_deprecated_compute_decorator_works_bare_and_with_arguments():
    with pytest.warns(FutureWarning, match=r"sky\.compute is deprecated: use @sky\.function") as caught:

        @sky.compute
        def bare():
            return 1

    assert [warning.filename for warning in caught] == [__file__]
    assert type(bare) is type(sky.function(lambda: 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once

        @sky.compute(timeout=5)
        def limited():
            return 1

    assert limited.timeout == 5


def test_deprecated_pip_and_env_of_a_pool_become_its_image():
    image = sky.Image(pip=["a"], env={"A": "1"})
    with pytest.warns(FutureWarning) as caught:
        pool = older_api_names.ComputePool(nodes=2, pip=["b"], env={"B": "2"}, image=image, accelerator="A100:2")
    reported = [str(warning.message) for warning in caught]
    assert reported[0] == "sky.ComputePool is deprecated: use sky.Compute"
    assert "sky.Image(pip=[...], env={...})" in reported[1]
    assert isinstance(pool, sky.Compute)
    assert pool.spec.image.pip == ("a", "b")
    assert pool.spec.image.env == {"A": "1", "B": "2"}
    assert str(pool.spec.accelerator) == "A100:2"


def test_deprecated_accelerators_by_maker_warn_and_work():
    with pytest.warns(FutureWarning, match=r"use sky\.accelerators\.A100\(\)"):
        assert sky.NVIDIA.A100 == sky.accelerators.A100
    with pytest.warns(FutureWarning, match=r"sky\.Accelerator\.NVIDIA\.H100"):
        assert sky.Accelerator.NVIDIA.H100(count=8) == sky.accelerators.H100(count=8)
    assert "A100" in dir(sky.NVIDIA)
    with pytest.raises(AttributeError, match="not an accelerator of NVIDIA"):
        sky.NVIDIA.MI300X  # noqa: B018
    with pytest.raises(AttributeError, match=r"Use sky\.accelerators\.RTX_4090\.$"):
        sky.AMD.RTX_4090  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean"):
        sky.NVIDIA.A10O  # noqa: B018
