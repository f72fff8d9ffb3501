"""Guide: standalone nodes."""

import skyward as sky


@sky.function
def digest(part: int) -> str:
    import hashlib

    return hashlib.sha256(f"part {part}".encode()).hexdigest()[:8]


if __name__ == "__main__":
    with sky.Compute(provider=sky.RunPod(), nodes=2, options=sky.Options(cluster=False)) as compute:
        found = sky.gather(*(digest(i) for i in range(8))) >> compute
        assert len(set(found)) == 8
