"""Choose device, dtype and batch size for the hardware at hand."""

from __future__ import annotations

import torch

from lmk_rag.errors import ConfigError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(device: str) -> torch.device:
    """Return the named device, or with "auto" CUDA, then MPS, then the CPU.

    Raises:
        ConfigError: no such device here.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device {device!r} is not usable here: {error}") from error
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Return the named dtype, or with "auto" bfloat16 where it is native, else float32."""
    if dtype == "auto":
        return torch.bfloat16 if _native_bfloat16(device) else torch.float32
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; expected auto, {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def default_batch_tokens(device: torch.device) -> int:
    """Return padded tokens per batch: what fits the caches of a CPU, or fills a GPU."""
    return 2_048 if device.type == "cpu" else 65_536


def _native_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return any(
            getattr(torch.cpu, probe, bool)()
            for probe in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        )
    return False
