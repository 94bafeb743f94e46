"""Cosine and MaxSim over unit-length rows, in float32."""

from __future__ import annotations

import numpy as np

from lmk_rag.types import Floats, Ints

_QUERY_ROWS_AT_ONCE = 16  # times a million landmarks: 64 MB of scores


def row_scores(query: Floats, rows: Floats) -> Floats:
    """Return the cosine of a query and every row.

    Args:
        query: (D,) unit length.
        rows: (N, D) unit-length rows; float16 is widened before anything is summed.

    Returns:
        (N,) float32 in [-1, 1].
    """
    return np.clip(np.asarray(rows, np.float32) @ np.asarray(query, np.float32), -1.0, 1.0)


def max_sim(query: Floats, rows: Floats, first_rows: Ints) -> Floats:
    """Return MaxSim of one query and each of several multi-vectors.

    Args:
        query: (P, D): the sum over its rows of each one's best product counts.
        rows: (N, D) rows of all multi-vectors; float16 is widened before anything is summed.
        first_rows: (G,) index of the first row of each multi-vector, increasing, none empty.

    Returns:
        (G,) float32; in [-1, 1] if `rows` are unit-length and the lengths of `query`'s sum to 1.
    """
    wide, asked = np.asarray(rows, np.float32), np.asarray(query, np.float32)
    total = np.zeros(len(first_rows), np.float32)
    if len(first_rows) == 0:
        return total
    for at in range(0, len(asked), _QUERY_ROWS_AT_ONCE):
        scores = asked[at : at + _QUERY_ROWS_AT_ONCE] @ wide.T
        total += np.maximum.reduceat(scores, first_rows, axis=1).sum(axis=0)
    return np.clip(total, -1.0, 1.0)
