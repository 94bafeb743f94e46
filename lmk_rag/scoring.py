"""Cosine and MaxSim over unit-length rows, in float32."""

from __future__ import annotations

import numpy as np

from lmk_rag.types import Floats, Ints


def row_scores(query: Floats, rows: Floats) -> Floats:
    """Return the cosine of a query and every row.

    Args:
        query: (D,) unit length.
        rows: (N, D) unit-length rows; float16 is widened before anything is summed.

    Returns:
        (N,) float32 in [-1, 1].
    """
    return np.clip(np.asarray(rows, np.float32) @ np.asarray(query, np.float32), -1.0, 1.0)


def best_per_group(scores: Floats, first_rows: Ints) -> Floats:
    """Return the maximum of each run of rows: MaxSim of one query vector and each multi-vector.

    Args:
        scores: (N,) row scores.
        first_rows: (G,) index of the first row of each run, increasing, no run empty.

    Returns:
        (G,) float32.
    """
    if len(first_rows) == 0:
        return np.zeros(0, np.float32)
    return np.maximum.reduceat(scores, first_rows)
