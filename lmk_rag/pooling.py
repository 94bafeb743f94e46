"""Pooling as pure tensor functions: token states in, landmark rows and document sums out.

Letters: N windows in a batch, T padded tokens, D width, S stretches of all windows together.

All three modes give, per window, one row per stretch and what the window adds to the document
vector, so that a text of any number of windows has

    document = (sum of weight_i * row_i + sum of extras) / (sum of weights + sum of extra counts)

- `lmk` (arXiv 2601.21525): row = state at the landmark, weight 1, no extras.
- `mean` (sentence-transformers' mean pooling, late chunking for the rows): row = mean of the
  stretch's token states, weight = its tokens; extras = states of special tokens and prompt.
- `cls`: rows as `mean` with weight 0; extras = the first state of each window.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Pooling = Literal["lmk", "mean", "cls"]


def landmark_rows(states: Tensor, window: Tensor, position: Tensor) -> Tensor:
    """Select the states at the landmarks.

    Rows are selected, not masked by multiplication: a NaN in a padded row can't spread.

    Args:
        states: (N, T, D) last hidden states.
        window: (S,) which window each landmark is in.
        position: (S,) its position there.

    Returns:
        (S, D) float32.
    """
    return states[window, position].float()


def stretch_means(states: Tensor, window: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Average the token states of each stretch, in float32.

    Args:
        states: (N, T, D) last hidden states.
        window: (S,) which window each stretch is in.
        start, end: (S,) its token range there; an empty range gives a zero row.

    Returns:
        (S, D) float32.
    """
    lengths = end - start
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    first = torch.cumsum(lengths, 0) - lengths
    offset = torch.arange(len(owner), device=lengths.device) - first[owner]
    tokens = states[window[owner], start[owner] + offset].float()
    sums = torch.zeros(len(lengths), states.shape[-1], device=states.device)
    sums.index_add_(0, owner, tokens)
    return sums / lengths.clamp(min=1).unsqueeze(1)


def window_extras(
    states: Tensor, rows: Tensor, window: Tensor, weights: Tensor, lengths: Tensor, pooling: Pooling
) -> tuple[Tensor, Tensor]:
    """Compute what each window adds to the document vector beside its rows.

    Args:
        states: (N, T, D) last hidden states.
        rows: (S, D) rows of all stretches, context included.
        window: (S,) which window each row is in.
        weights: (S,) tokens per stretch.
        lengths: (N,) unpadded tokens per window.
        pooling: the mode.

    Returns:
        sums (N, D) float32 and counts (N,) float32.
    """
    n_windows = states.shape[0]
    if pooling == "lmk":
        zero = torch.zeros(n_windows, states.shape[-1], device=states.device)
        return zero, zero[:, 0]
    if pooling == "cls":
        return states[:, 0].float(), torch.ones(n_windows, device=states.device)
    inside = torch.arange(states.shape[1], device=states.device) < lengths.unsqueeze(1)
    sums = torch.where(inside.unsqueeze(2), states, 0).sum(dim=1, dtype=torch.float32)
    counts = lengths.float()
    sums.index_add_(0, window, rows * -weights.unsqueeze(1))
    counts.index_add_(0, window, -weights)
    return sums, counts
