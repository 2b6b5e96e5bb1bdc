"""Which device and dtype "auto" means here, and why."""

from typing import Literal, NamedTuple

import torch

from streamlearn.errors import ConfigError

__all__ = ["DeviceName", "DtypeName", "Hardware", "resolve_hardware"]

DeviceName = Literal["auto", "cpu", "cuda"]
DtypeName = Literal["auto", "float32", "bfloat16", "float64"]


class Hardware(NamedTuple):
    """Where a learner computes and in which dtype it keeps keys and values."""

    device: torch.device
    dtype: torch.dtype
    reason: str


def resolve_hardware(device: DeviceName = "auto", dtype: DtypeName = "auto") -> Hardware:
    """Resolve "auto": CUDA where there is one; bfloat16 where its GEMMs run in hardware at speed.

    On CPUs that means matrix tiles (AMX). AVX-512 alone has bfloat16 dot products, but its GEMMs
    were measured slower than float32 ones (130 against 200 GFLOP/s), so it keeps float32.

    Raises:
        ConfigError: CUDA was asked for and there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "learner.device=cuda but this PyTorch sees no CUDA device; "
            "install a CUDA build of PyTorch or set learner.device=cpu"
        )
    chosen = torch.device(
        "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")
    )
    if dtype != "auto":
        return Hardware(chosen, getattr(torch, dtype), f"{dtype} as asked")
    if chosen.type == "cuda":
        if torch.cuda.get_device_capability(chosen) >= (8, 0):
            return Hardware(chosen, torch.bfloat16, "this GPU multiplies bfloat16 in tensor cores")
        return Hardware(chosen, torch.float32, "this GPU has no bfloat16 tensor cores")
    if _cpu_has_bfloat16_tiles():
        return Hardware(chosen, torch.bfloat16, "this CPU multiplies bfloat16 in tiles (AMX)")
    return Hardware(chosen, torch.float32, "this CPU has no bfloat16 matrix tiles")


def _cpu_has_bfloat16_tiles() -> bool:
    """Whether the CPU lists AMX for bfloat16; False where that cannot be told."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return any(line.startswith("flags") and " amx_bf16" in line for line in file)
    except OSError:
        return False
