"""Guide: accelerators as values, by name, several of a type, fractions, and types that the catalogue lacks."""

import skyward as sky


@sky.function
def place() -> tuple:
    info = sky.instance_info()
    return info.node, info.accelerators


if __name__ == "__main__":
    a100 = sky.accelerators.A100(memory="80GB")
    assert (a100.name, a100.count, str(a100)) == ("A100", 1, "A100-80GB")
    assert a100.with_count(4).count == 4
    assert sky.accelerators.Accelerator.from_name("H100", count=8).count == 8
    assert sky.accelerators.L4(count=0.5) != sky.accelerators.L4()
    own = sky.accelerators.Custom("MyGPU", memory="48GB", count=2)
    assert own.count == 2
    for accelerator in (a100, "A100", sky.accelerators.T4(count=2), sky.accelerators.L4(count=0.5), own):
        asked = sky.Compute(provider=sky.RunPod(), accelerator=accelerator)
        assert asked.name
    with sky.Compute(provider=sky.AWS(), accelerator=sky.accelerators.T4(), nodes=1) as compute:
        node, accelerators = place() >> compute
        assert node == 0 and accelerators is not None
