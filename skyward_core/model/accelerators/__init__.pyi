"""Generated from catalogue.json by ``python -m tests.accelerator_stubs``; do not edit."""

from typing import Literal

from .accelerator import Accelerator as Accelerator
from .accelerator import Custom as Custom
from .accelerator import Factory as Factory
from .accelerator import factories as factories
from .accelerator import factory as factory
from .accelerator import parse as parse
from .accelerator import resolve as resolve
from .catalog import CudaRange as CudaRange
from .catalog import Entry as Entry
from .catalog import Variant as Variant
from .catalog import find as find
from .catalog import nearest as nearest
from .catalog import search as search

def all() -> tuple[Entry, ...]:
    """Return all accelerators of the catalogue, ordered by maker, segment and age."""

def K80(
    count: float = 1,
    *,
    memory: Literal["12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA K80 (Kepler): 12 GB."""

def M4(
    count: float = 1,
    *,
    memory: Literal["4GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA M4 (Maxwell): 4 GB."""

def M6(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA M6 (Maxwell): 8 GB."""

def M10(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA M10 (Maxwell): 8 GB."""

def M40(
    count: float = 1,
    *,
    memory: Literal["12GB", "24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA M40 (Maxwell): 12 GB or 24 GB."""

def M60(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA M60 (Maxwell): 8 GB."""

def P4(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA P4 (Pascal): 8 GB."""

def P6(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA P6 (Pascal): 16 GB."""

def P40(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA P40 (Pascal): 24 GB."""

def P100(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA P100 (Pascal): 16 GB, 21.2 dense 16-bit TFLOP/s."""

def P100_PCIe(
    count: float = 1,
    *,
    memory: Literal["12GB", "16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA P100-PCIe (Pascal): 12 GB or 16 GB, 18.7 dense 16-bit TFLOP/s."""

def V100(
    count: float = 1,
    *,
    memory: Literal["16GB", "32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA V100 (Volta): 16 GB or 32 GB, 125 dense 16-bit TFLOP/s."""

def V100_PCIe(
    count: float = 1,
    *,
    memory: Literal["16GB", "32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA V100-PCIe (Volta): 16 GB or 32 GB, 112 dense 16-bit TFLOP/s."""

def V100S(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA V100S (Volta): 32 GB, 130 dense 16-bit TFLOP/s."""

def T4(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA T4 (Turing): 16 GB, 65 dense 16-bit TFLOP/s."""

def T4G(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA T4G (Turing): 16 GB."""

def A100(
    count: float = 1,
    *,
    memory: Literal["40GB", "80GB"] | float | None = None,
    mig: Literal[
        "1g.5gb",
        "1g.10gb",
        "2g.10gb",
        "3g.20gb",
        "4g.20gb",
        "7g.40gb",
        "1g.20gb",
        "2g.20gb",
        "3g.40gb",
        "4g.40gb",
        "7g.80gb",
    ]
    | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA A100 (Ampere): 40 GB or 80 GB, 312 dense 16-bit TFLOP/s."""

def A100_PCIe(
    count: float = 1,
    *,
    memory: Literal["40GB", "80GB"] | float | None = None,
    mig: Literal[
        "1g.5gb",
        "1g.10gb",
        "2g.10gb",
        "3g.20gb",
        "4g.20gb",
        "7g.40gb",
        "1g.20gb",
        "2g.20gb",
        "3g.40gb",
        "4g.40gb",
        "7g.80gb",
    ]
    | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA A100-PCIe (Ampere): 40 GB or 80 GB, 312 dense 16-bit TFLOP/s."""

def A30(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    mig: Literal["1g.6gb", "2g.12gb", "4g.24gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA A30 (Ampere): 24 GB, 165 dense 16-bit TFLOP/s."""

def A40(
    count: float = 1,
    *,
    memory: Literal["48GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA A40 (Ampere): 48 GB, 149.7 dense 16-bit TFLOP/s."""

def A10(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA A10 (Ampere): 24 GB, 125 dense 16-bit TFLOP/s."""

def A10G(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA A10G (Ampere): 24 GB, 70 dense 16-bit TFLOP/s."""

def A16(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA A16 (Ampere): 16 GB, 17.9 dense 16-bit TFLOP/s."""

def A2(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA A2 (Ampere): 16 GB, 18 dense 16-bit TFLOP/s."""

def L4(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA L4 (Ada Lovelace): 24 GB, 121 dense 16-bit TFLOP/s."""

def L40(
    count: float = 1,
    *,
    memory: Literal["48GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA L40 (Ada Lovelace): 48 GB, 181.05 dense 16-bit TFLOP/s."""

def L40S(
    count: float = 1,
    *,
    memory: Literal["48GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA L40S (Ada Lovelace): 48 GB, 362.05 dense 16-bit TFLOP/s."""

def H100(
    count: float = 1,
    *,
    memory: Literal["80GB"] | float | None = None,
    mig: Literal["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA H100 (Hopper): 80 GB, 989.5 dense 16-bit TFLOP/s."""

def H100_PCIe(
    count: float = 1,
    *,
    memory: Literal["80GB"] | float | None = None,
    mig: Literal["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA H100-PCIe (Hopper): 80 GB, 756.5 dense 16-bit TFLOP/s."""

def H100_NVL(
    count: float = 1,
    *,
    memory: Literal["94GB"] | float | None = None,
    mig: Literal["1g.12gb", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA H100-NVL (Hopper): 94 GB, 835.5 dense 16-bit TFLOP/s."""

def H20(
    count: float = 1,
    *,
    memory: Literal["96GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA H20 (Hopper): 96 GB."""

def H200(
    count: float = 1,
    *,
    memory: Literal["141GB"] | float | None = None,
    mig: Literal["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA H200 (Hopper): 141 GB, 989.5 dense 16-bit TFLOP/s."""

def H200_NVL(
    count: float = 1,
    *,
    memory: Literal["141GB"] | float | None = None,
    mig: Literal["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA H200-NVL (Hopper): 141 GB, 835.5 dense 16-bit TFLOP/s."""

def GH200(
    count: float = 1,
    *,
    memory: Literal["96GB", "144GB"] | float | None = None,
    mig: Literal["1g.12gb", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GH200 (Hopper): 96 GB or 144 GB, 989.5 dense 16-bit TFLOP/s."""

def B200(
    count: float = 1,
    *,
    memory: Literal["180GB"] | float | None = None,
    mig: Literal["1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA B200 (Blackwell): 180 GB, 2250 dense 16-bit TFLOP/s."""

def GB200(
    count: float = 1,
    *,
    memory: Literal["186GB"] | float | None = None,
    mig: Literal["1g.23gb", "1g.47gb", "2g.47gb", "3g.93gb", "7g.186gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GB200 (Blackwell): 186 GB, 2500 dense 16-bit TFLOP/s."""

def B300(
    count: float = 1,
    *,
    memory: Literal["288GB"] | float | None = None,
    mig: Literal["1g.34gb", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA B300 (Blackwell Ultra): 288 GB, 2250 dense 16-bit TFLOP/s."""

def GB300(
    count: float = 1,
    *,
    memory: Literal["288GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GB300 (Blackwell Ultra): 288 GB, 2500 dense 16-bit TFLOP/s."""

def RTX_PRO_6000_Server(
    count: float = 1,
    *,
    memory: Literal["96GB"] | float | None = None,
    mig: Literal["1g.24gb", "2g.48gb", "4g.96gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-PRO-6000-Server (Blackwell): 96 GB."""

def Quadro_M4000(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-M4000 (Maxwell): 8 GB."""

def Quadro_M5000(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-M5000 (Maxwell): 8 GB."""

def Quadro_M6000(
    count: float = 1,
    *,
    memory: Literal["12GB", "24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-M6000 (Maxwell): 12 GB or 24 GB."""

def Quadro_P2000(
    count: float = 1,
    *,
    memory: Literal["5GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-P2000 (Pascal): 5 GB."""

def Quadro_P4000(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-P4000 (Pascal): 8 GB."""

def Quadro_P5000(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-P5000 (Pascal): 16 GB."""

def Quadro_P6000(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-P6000 (Pascal): 24 GB."""

def Quadro_GP100(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-GP100 (Pascal): 16 GB, 20.7 dense 16-bit TFLOP/s."""

def Quadro_GV100(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-GV100 (Volta): 32 GB, 118.5 dense 16-bit TFLOP/s."""

def Quadro_RTX_4000(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-RTX-4000 (Turing): 8 GB, 57 dense 16-bit TFLOP/s."""

def Quadro_RTX_5000(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-RTX-5000 (Turing): 16 GB, 89.2 dense 16-bit TFLOP/s."""

def Quadro_RTX_6000(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-RTX-6000 (Turing): 24 GB, 130.5 dense 16-bit TFLOP/s."""

def Quadro_RTX_8000(
    count: float = 1,
    *,
    memory: Literal["48GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA Quadro-RTX-8000 (Turing): 48 GB, 130.5 dense 16-bit TFLOP/s."""

def T1000(
    count: float = 1,
    *,
    memory: Literal["4GB", "8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA T1000 (Turing): 4 GB or 8 GB."""

def RTX_A400(
    count: float = 1,
    *,
    memory: Literal["4GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-A400 (Ampere): 4 GB."""

def RTX_A1000(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-A1000 (Ampere): 8 GB."""

def RTX_A2000(
    count: float = 1,
    *,
    memory: Literal["6GB", "12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-A2000 (Ampere): 6 GB or 12 GB, 31.95 dense 16-bit TFLOP/s."""

def RTX_A4000(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-A4000 (Ampere): 16 GB, 76.7 dense 16-bit TFLOP/s."""

def RTX_A4500(
    count: float = 1,
    *,
    memory: Literal["20GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-A4500 (Ampere): 20 GB, 94.6 dense 16-bit TFLOP/s."""

def RTX_A5000(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-A5000 (Ampere): 24 GB, 111.1 dense 16-bit TFLOP/s."""

def RTX_A5500(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-A5500 (Ampere): 24 GB, 136.4 dense 16-bit TFLOP/s."""

def RTX_A6000(
    count: float = 1,
    *,
    memory: Literal["48GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-A6000 (Ampere): 48 GB, 154.8 dense 16-bit TFLOP/s."""

def A800(
    count: float = 1,
    *,
    memory: Literal["40GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA A800 (Ampere): 40 GB, 311.9 dense 16-bit TFLOP/s."""

def RTX_2000_Ada(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-2000-Ada (Ada Lovelace): 16 GB."""

def RTX_4000_Ada(
    count: float = 1,
    *,
    memory: Literal["20GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4000-Ada (Ada Lovelace): 20 GB."""

def RTX_4000_SFF_Ada(
    count: float = 1,
    *,
    memory: Literal["20GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4000-SFF-Ada (Ada Lovelace): 20 GB."""

def RTX_4500_Ada(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4500-Ada (Ada Lovelace): 24 GB."""

def RTX_5000_Ada(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-5000-Ada (Ada Lovelace): 32 GB."""

def RTX_5880_Ada(
    count: float = 1,
    *,
    memory: Literal["48GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-5880-Ada (Ada Lovelace): 48 GB."""

def RTX_6000_Ada(
    count: float = 1,
    *,
    memory: Literal["48GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-6000-Ada (Ada Lovelace): 48 GB, 364.2 dense 16-bit TFLOP/s."""

def RTX_PRO_2000(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-PRO-2000 (Blackwell): 16 GB."""

def RTX_PRO_4000(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-PRO-4000 (Blackwell): 24 GB."""

def RTX_PRO_4000_SFF(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-PRO-4000-SFF (Blackwell): 24 GB."""

def RTX_PRO_4500(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    mig: Literal["1g.16gb", "2g.32gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-PRO-4500 (Blackwell): 32 GB."""

def RTX_PRO_5000(
    count: float = 1,
    *,
    memory: Literal["48GB", "72GB"] | float | None = None,
    mig: Literal["1g.24gb", "2g.48gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-PRO-5000 (Blackwell): 48 GB or 72 GB."""

def RTX_PRO_6000(
    count: float = 1,
    *,
    memory: Literal["96GB"] | float | None = None,
    mig: Literal["1g.24gb", "2g.48gb", "4g.96gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-PRO-6000 (Blackwell): 96 GB, 503.8 dense 16-bit TFLOP/s."""

def RTX_PRO_6000_Max_Q(
    count: float = 1,
    *,
    memory: Literal["96GB"] | float | None = None,
    mig: Literal["1g.24gb", "2g.48gb", "4g.96gb"] | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-PRO-6000-Max-Q (Blackwell): 96 GB."""

def GB10(
    count: float = 1,
    *,
    memory: Literal["128GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GB10 (Blackwell): 128 GB."""

def GTX_960(
    count: float = 1,
    *,
    memory: Literal["2GB", "4GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-960 (Maxwell): 2 GB or 4 GB."""

def GTX_970(
    count: float = 1,
    *,
    memory: Literal["4GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-970 (Maxwell): 4 GB."""

def GTX_980(
    count: float = 1,
    *,
    memory: Literal["4GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-980 (Maxwell): 4 GB."""

def GTX_980_Ti(
    count: float = 1,
    *,
    memory: Literal["6GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-980-Ti (Maxwell): 6 GB."""

def TITAN_X(
    count: float = 1,
    *,
    memory: Literal["12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA TITAN-X (Maxwell): 12 GB."""

def GTX_1050(
    count: float = 1,
    *,
    memory: Literal["2GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-1050 (Pascal): 2 GB."""

def GTX_1050_Ti(
    count: float = 1,
    *,
    memory: Literal["4GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-1050-Ti (Pascal): 4 GB."""

def GTX_1060(
    count: float = 1,
    *,
    memory: Literal["3GB", "6GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-1060 (Pascal): 3 GB or 6 GB."""

def GTX_1070(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-1070 (Pascal): 8 GB."""

def GTX_1070_Ti(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-1070-Ti (Pascal): 8 GB."""

def GTX_1080(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-1080 (Pascal): 8 GB."""

def GTX_1080_Ti(
    count: float = 1,
    *,
    memory: Literal["11GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-1080-Ti (Pascal): 11 GB."""

def TITAN_X_Pascal(
    count: float = 1,
    *,
    memory: Literal["12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA TITAN-X-Pascal (Pascal): 12 GB."""

def TITAN_Xp(
    count: float = 1,
    *,
    memory: Literal["12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA TITAN-Xp (Pascal): 12 GB."""

def TITAN_V(
    count: float = 1,
    *,
    memory: Literal["12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA TITAN-V (Volta): 12 GB, 110 dense 16-bit TFLOP/s."""

def GTX_1650(
    count: float = 1,
    *,
    memory: Literal["4GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-1650 (Turing): 4 GB."""

def GTX_1650_SUPER(
    count: float = 1,
    *,
    memory: Literal["4GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-1650-SUPER (Turing): 4 GB."""

def GTX_1660(
    count: float = 1,
    *,
    memory: Literal["6GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-1660 (Turing): 6 GB."""

def GTX_1660_SUPER(
    count: float = 1,
    *,
    memory: Literal["6GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-1660-SUPER (Turing): 6 GB."""

def GTX_1660_Ti(
    count: float = 1,
    *,
    memory: Literal["6GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA GTX-1660-Ti (Turing): 6 GB."""

def RTX_2060(
    count: float = 1,
    *,
    memory: Literal["6GB", "12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-2060 (Turing): 6 GB or 12 GB."""

def RTX_2060_SUPER(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-2060-SUPER (Turing): 8 GB."""

def RTX_2070(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-2070 (Turing): 8 GB, 29.9 dense 16-bit TFLOP/s."""

def RTX_2070_SUPER(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-2070-SUPER (Turing): 8 GB."""

def RTX_2080(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-2080 (Turing): 8 GB, 40.3 dense 16-bit TFLOP/s."""

def RTX_2080_SUPER(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-2080-SUPER (Turing): 8 GB."""

def RTX_2080_Ti(
    count: float = 1,
    *,
    memory: Literal["11GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-2080-Ti (Turing): 11 GB, 53.8 dense 16-bit TFLOP/s."""

def TITAN_RTX(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA TITAN-RTX (Turing): 24 GB, 130.5 dense 16-bit TFLOP/s."""

def RTX_3050(
    count: float = 1,
    *,
    memory: Literal["6GB", "8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-3050 (Ampere): 6 GB or 8 GB."""

def RTX_3060(
    count: float = 1,
    *,
    memory: Literal["8GB", "12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-3060 (Ampere): 8 GB or 12 GB."""

def RTX_3060_Ti(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-3060-Ti (Ampere): 8 GB."""

def RTX_3070(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-3070 (Ampere): 8 GB, 40.6 dense 16-bit TFLOP/s."""

def RTX_3070_Ti(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-3070-Ti (Ampere): 8 GB, 43.5 dense 16-bit TFLOP/s."""

def RTX_3080(
    count: float = 1,
    *,
    memory: Literal["10GB", "12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-3080 (Ampere): 10 GB or 12 GB, 59.5 dense 16-bit TFLOP/s."""

def RTX_3080_Ti(
    count: float = 1,
    *,
    memory: Literal["12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-3080-Ti (Ampere): 12 GB, 68.2 dense 16-bit TFLOP/s."""

def RTX_3090(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-3090 (Ampere): 24 GB, 71 dense 16-bit TFLOP/s."""

def RTX_3090_Ti(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-3090-Ti (Ampere): 24 GB, 80 dense 16-bit TFLOP/s."""

def RTX_4060(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4060 (Ada Lovelace): 8 GB."""

def RTX_4060_Ti(
    count: float = 1,
    *,
    memory: Literal["8GB", "16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4060-Ti (Ada Lovelace): 8 GB or 16 GB."""

def RTX_4070(
    count: float = 1,
    *,
    memory: Literal["12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4070 (Ada Lovelace): 12 GB, 58.3 dense 16-bit TFLOP/s."""

def RTX_4070_SUPER(
    count: float = 1,
    *,
    memory: Literal["12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4070-SUPER (Ada Lovelace): 12 GB."""

def RTX_4070_Ti(
    count: float = 1,
    *,
    memory: Literal["12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4070-Ti (Ada Lovelace): 12 GB, 80.2 dense 16-bit TFLOP/s."""

def RTX_4070_Ti_SUPER(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4070-Ti-SUPER (Ada Lovelace): 16 GB."""

def RTX_4080(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4080 (Ada Lovelace): 16 GB, 97.5 dense 16-bit TFLOP/s."""

def RTX_4080_SUPER(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4080-SUPER (Ada Lovelace): 16 GB."""

def RTX_4090(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4090 (Ada Lovelace): 24 GB, 165.2 dense 16-bit TFLOP/s."""

def RTX_4090_D(
    count: float = 1,
    *,
    memory: Literal["24GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-4090-D (Ada Lovelace): 24 GB."""

def RTX_5050(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-5050 (Blackwell): 8 GB."""

def RTX_5060(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-5060 (Blackwell): 8 GB."""

def RTX_5060_Ti(
    count: float = 1,
    *,
    memory: Literal["8GB", "16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-5060-Ti (Blackwell): 8 GB or 16 GB."""

def RTX_5070(
    count: float = 1,
    *,
    memory: Literal["12GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-5070 (Blackwell): 12 GB, 61.7 dense 16-bit TFLOP/s."""

def RTX_5070_Ti(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-5070-Ti (Blackwell): 16 GB, 87.9 dense 16-bit TFLOP/s."""

def RTX_5080(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-5080 (Blackwell): 16 GB, 112.6 dense 16-bit TFLOP/s."""

def RTX_5090(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """NVIDIA RTX-5090 (Blackwell): 32 GB, 209.5 dense 16-bit TFLOP/s."""

def MI6(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI6 (GCN 4): 16 GB, 5.7 dense 16-bit TFLOP/s."""

def MI8(
    count: float = 1,
    *,
    memory: Literal["4GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI8 (GCN 3): 4 GB, 8.2 dense 16-bit TFLOP/s."""

def MI25(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI25 (GCN 5): 16 GB, 24.6 dense 16-bit TFLOP/s."""

def MI50(
    count: float = 1,
    *,
    memory: Literal["16GB", "32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI50 (GCN 5): 16 GB or 32 GB, 26.5 dense 16-bit TFLOP/s."""

def MI60(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI60 (GCN 5): 32 GB, 29.5 dense 16-bit TFLOP/s."""

def MI100(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI100 (CDNA): 32 GB, 92.3 dense 16-bit TFLOP/s."""

def MI210(
    count: float = 1,
    *,
    memory: Literal["64GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI210 (CDNA 2): 64 GB, 181 dense 16-bit TFLOP/s."""

def MI250(
    count: float = 1,
    *,
    memory: Literal["64GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI250 (CDNA 2): 64 GB, 181.05 dense 16-bit TFLOP/s."""

def MI250X(
    count: float = 1,
    *,
    memory: Literal["64GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI250X (CDNA 2): 64 GB, 191.5 dense 16-bit TFLOP/s."""

def MI300A(
    count: float = 1,
    *,
    memory: Literal["128GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI300A (CDNA 3): 128 GB, 980.6 dense 16-bit TFLOP/s."""

def MI300X(
    count: float = 1,
    *,
    memory: Literal["192GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI300X (CDNA 3): 192 GB, 1307.4 dense 16-bit TFLOP/s."""

def MI325X(
    count: float = 1,
    *,
    memory: Literal["256GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI325X (CDNA 3): 256 GB, 1307.4 dense 16-bit TFLOP/s."""

def MI350X(
    count: float = 1,
    *,
    memory: Literal["288GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI350X (CDNA 4): 288 GB, 2300 dense 16-bit TFLOP/s."""

def MI355X(
    count: float = 1,
    *,
    memory: Literal["288GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD MI355X (CDNA 4): 288 GB, 2500 dense 16-bit TFLOP/s."""

def V520(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AMD V520 (RDNA): 8 GB."""

def TPU_v2(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """Google TPU-v2 (TPU v2): 16 GB, 46 dense 16-bit TFLOP/s."""

def TPU_v3(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """Google TPU-v3 (TPU v3): 32 GB, 123 dense 16-bit TFLOP/s."""

def TPU_v4(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """Google TPU-v4 (TPU v4): 32 GB, 275 dense 16-bit TFLOP/s."""

def TPU_v5e(
    count: float = 1,
    *,
    memory: Literal["16GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """Google TPU-v5e (TPU v5e): 16 GB, 197 dense 16-bit TFLOP/s."""

def TPU_v5p(
    count: float = 1,
    *,
    memory: Literal["95GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """Google TPU-v5p (TPU v5p): 95 GB, 459 dense 16-bit TFLOP/s."""

def TPU_v6e(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """Google TPU-v6e (TPU v6e): 32 GB, 918 dense 16-bit TFLOP/s."""

def TPU7x(
    count: float = 1,
    *,
    memory: Literal["192GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """Google TPU7x (TPU7x): 192 GB, 2307 dense 16-bit TFLOP/s."""

def Inferentia(
    count: float = 1,
    *,
    memory: Literal["8GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AWS Inferentia (NeuronCore-v1): 8 GB, 64 dense 16-bit TFLOP/s."""

def Inferentia2(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AWS Inferentia2 (NeuronCore-v2): 32 GB, 190 dense 16-bit TFLOP/s."""

def Trainium(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AWS Trainium (NeuronCore-v2): 32 GB, 190 dense 16-bit TFLOP/s."""

def Trainium2(
    count: float = 1,
    *,
    memory: Literal["96GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AWS Trainium2 (NeuronCore-v3): 96 GB, 667 dense 16-bit TFLOP/s."""

def Trainium3(
    count: float = 1,
    *,
    memory: Literal["144GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """AWS Trainium3 (NeuronCore-v4): 144 GB, 671 dense 16-bit TFLOP/s."""

def Gaudi(
    count: float = 1,
    *,
    memory: Literal["32GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """Intel Gaudi (Gaudi): 32 GB, 60 dense 16-bit TFLOP/s."""

def Gaudi2(
    count: float = 1,
    *,
    memory: Literal["96GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """Intel Gaudi2 (Gaudi 2): 96 GB, 432 dense 16-bit TFLOP/s."""

def Gaudi3(
    count: float = 1,
    *,
    memory: Literal["128GB"] | float | None = None,
    form_factor: str | None = None,
) -> Accelerator:
    """Intel Gaudi3 (Gaudi 3): 128 GB, 1835 dense 16-bit TFLOP/s."""
