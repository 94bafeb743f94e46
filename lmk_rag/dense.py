"""Dense layers that follow the pooling, as sentence-transformers folders and ours keep them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from lmk_rag.errors import CheckpointError, UnsafeCheckpointError

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    cls.__name__: cls for cls in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)
}


def load_dense(
    files: Sequence[Path], activations: Sequence[str], dtype: torch.dtype
) -> nn.Sequential | None:
    """Load one layer per activation; None where there are none.

    Args:
        files: a file per layer, as in sentence-transformers folders, or what `save_dense` wrote.
        activations: names of torch.nn classes.
        dtype: of the layers.

    Raises:
        CheckpointError: a file that can't be read, or an unknown activation.
        UnsafeCheckpointError: a layer that is only there as a pickle.
    """
    if not activations:
        return None
    states = [_load_file(path) for path in files]
    if len(states) == 1 and "0.0.weight" in states[0]:
        states = [  # our own format keeps all layers in one file
            {k.split(".", 2)[2]: v for k, v in states[0].items() if k.startswith(f"{i}.0.")}
            for i in range(len(activations))
        ]
    layers = []
    for state, activation in zip(states, activations, strict=True):
        weights = {key.removeprefix("linear."): value for key, value in state.items()}
        if activation not in _ACTIVATIONS:
            raise CheckpointError(
                f"a dense layer uses the activation {activation!r}; known are "
                f"{', '.join(sorted(_ACTIVATIONS))}"
            )
        out_width, in_width = weights["weight"].shape
        linear = nn.Linear(in_width, out_width, bias="bias" in weights)
        linear.load_state_dict(weights)
        layers.append(nn.Sequential(linear, _ACTIVATIONS[activation]()))
    return nn.Sequential(*layers).to(dtype=dtype).eval()


def save_dense(dense: nn.Sequential, path: Path) -> list[str]:
    """Write all layers into one file; return the names of their activations."""
    save_file({key: value.contiguous().cpu() for key, value in dense.state_dict().items()}, path)
    return [type(layer[1]).__name__ for layer in dense]  # type: ignore[index]


def _load_file(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file() and any(any(path.parent.glob(pattern)) for pattern in PICKLES):
        raise UnsafeCheckpointError(
            f"the dense layer in {path.parent} can run code when read; convert it to safetensors"
        )
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"the dense layer {path} could not be read: {error}") from error
