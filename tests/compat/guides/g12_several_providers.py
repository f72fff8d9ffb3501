"""Guide: alternative machine specifications, each with limits."""

import skyward as sky


@sky.function
def node() -> int:
    return sky.instance_info().node


if __name__ == "__main__":
    with sky.Compute(
        sky.Spec(provider=sky.VastAI(), accelerator=sky.accelerators.A100(), max_hourly_cost=2.5, allocation="spot"),
        sky.Spec(provider=sky.Verda(), accelerator=sky.accelerators.A100(), allocation="spot-if-available"),
        sky.Spec(
            provider=sky.AWS(),
            accelerator=sky.accelerators.A100(),
            allocation="on-demand",
            cpus=8,
            disk_gb=50,
        ),
        selection="cheapest",
        ttl=2400,
        options=sky.Options(provision_timeout=600, retry_on_interruption=0),
    ) as compute:
        assert node() >> compute == 0
