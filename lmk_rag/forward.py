"""The forward pass: windows in, pooled rows out, and texts put together from their windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from lmk_rag.batching import token_batches
from lmk_rag.landmarks import LandmarkedText, Window
from lmk_rag.pooling import Pooling, landmark_rows, stretch_means, window_extras
from lmk_rag.types import DocumentEmbedding, Floats

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class PooledWindow:
    """What one window contributes.

    Attributes:
        rows: (W, D) float32, one raw row per stretch, context included.
        extra_sum, extra_count: (D,) and a number: its share of the document vector beside
            the rows (see `pooling`).
    """

    rows: Floats
    extra_sum: Floats
    extra_count: float

    @property
    def is_finite(self) -> bool:
        """Whether every number is."""
        return bool(np.isfinite(self.rows).all() and np.isfinite(self.extra_sum).all())


def is_finite(embedding: DocumentEmbedding) -> bool:
    """Whether every number is: a zero state has no direction, a dense layer can overflow."""
    return bool(np.isfinite(embedding.vector).all() and np.isfinite(embedding.landmarks).all())


def run_windows(
    model: PreTrainedModel, windows: list[Window], *, pooling: Pooling, pad_id: int
) -> list[PooledWindow]:
    """Run one batch of windows through the model, padded on the right to the longest."""
    device = model.device
    lengths = torch.tensor([len(window.ids) for window in windows])
    longest = int(lengths.max())
    ids = torch.full((len(windows), longest), pad_id)
    for row, window in zip(ids, windows, strict=True):
        row[: len(window.ids)] = torch.from_numpy(window.ids)
    # The mask comes from lengths, never from ids; where nothing is padded none is needed.
    padded = bool((lengths < longest).any())
    mask = (torch.arange(longest) < lengths[:, None]).long().to(device) if padded else None
    counts = [len(window.stretches) for window in windows]
    owner = torch.repeat_interleave(torch.arange(len(windows)), torch.tensor(counts)).to(device)
    ranges = torch.from_numpy(np.concatenate([window.stretches for window in windows])).to(device)
    with torch.inference_mode():
        states = model(input_ids=ids.to(device), attention_mask=mask).last_hidden_state
        rows = _rows(states, owner, ranges, pooling)
        tokens = (ranges[:, 1] - ranges[:, 0]).float()
        sums, extra_counts = window_extras(states, rows, owner, tokens, lengths.to(device), pooling)
    split = np.split(rows.cpu().numpy(), np.cumsum(counts)[:-1])
    return [
        PooledWindow(*parts)
        for parts in zip(split, sums.cpu().numpy(), extra_counts.tolist(), strict=True)
    ]


def run_batches(
    windows: list[Window], budget: int, run: Callable[[list[Window]], list[PooledWindow]]
) -> Iterator[tuple[int, PooledWindow]]:
    """Run windows in batches of like length; one that does not fit in memory is halved.

    Args:
        windows: in any order.
        budget: padded tokens per batch.
        run: runs one batch.

    Yields:
        the index of each window, and its result.
    """
    batches = token_batches([len(window.ids) for window in windows], budget)
    while batches:
        batch = batches.pop(0)
        try:
            results = run([windows[i] for i in batch])
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                raise
            half = len(batch) // 2
            batches[:0] = [batch[:half], batch[half:]]
            continue
        yield from zip(batch, results, strict=True)


def assemble(
    layout: LandmarkedText,
    windows: list[PooledWindow],
    *,
    pooling: Pooling,
    dense: nn.Sequential | None,
) -> DocumentEmbedding:
    """Put one text together from its windows: rows of their own, the mean, unit lengths."""
    own = zip(layout.windows, windows, strict=True)
    rows = np.concatenate([pooled.rows[window.n_context :] for window, pooled in own])
    if pooling == "lmk":
        weights = np.ones(len(rows), np.float32)
    elif pooling == "mean":
        weights = layout.landmark_tokens.astype(np.float32)
    else:
        weights = np.zeros(len(rows), np.float32)
    total = weights @ rows + sum(pooled.extra_sum for pooled in windows)
    document = total / (weights.sum() + sum(pooled.extra_count for pooled in windows))
    if pooling != "lmk" and layout.landmark_tokens.sum() == 0:
        rows = document[None]  # a blank text has no token states of its own
    if dense is not None:
        rows, document = _project(dense, rows), _project(dense, document[None])[0]
    norms = np.linalg.norm(rows, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):  # see `is_finite`
        vector = (document / np.linalg.norm(document)).astype(np.float32)
        landmarks = rows / norms[:, None]
    return DocumentEmbedding(
        vector=vector,
        landmarks=landmarks,
        norms=norms,
        spans=layout.spans,
        landmark_tokens=layout.landmark_tokens,
        n_windows=len(layout.windows),
        truncated=layout.truncated,
    )


def _rows(states: Tensor, owner: Tensor, ranges: Tensor, pooling: Pooling) -> Tensor:
    start, end = ranges[:, 0], ranges[:, 1]
    if pooling == "lmk":
        return landmark_rows(states, owner, end)
    return stretch_means(states, owner, start, end)


def _project(dense: nn.Sequential, rows: Floats) -> Floats:
    weight = next(dense.parameters())
    with torch.inference_mode():
        projected = dense(torch.from_numpy(rows).to(weight.device, weight.dtype))
    return projected.float().cpu().numpy()  # type: ignore[no-any-return]
