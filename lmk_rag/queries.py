"""A query as a multi-vector: its own vector and those of its parts.

The best landmark for the vector of a whole question speaks of all of it at once; a question about
two things is answered where one landmark speaks of the first and another of the second. So a query
is read as documents are, in stretches, only finer, and compared by MaxSim, as ColBERT does with
tokens (Khattab and Zaharia, SIGIR 2020).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import InputError
from lmk_rag.types import DocumentEmbedding, Floats, QueryEmbedding

_LENGTH = 1e-6  # what float32 leaves of a length of 1
_SHARES = 1e-3  # and what half precision leaves of a sum of lengths
_PART_TOKENS = 2
_MAX_PARTS = 64  # of a longer query's, neighbors are joined: the cost of a search grows with them


def part_config(config: LandmarkConfig, *, inserts_landmarks: bool) -> LandmarkConfig:
    """Return how a query is cut into parts.

    Where landmarks are tokens, another granularity would be another text to the model: then the
    parts are what the landmarks of such a document would be.
    """
    if inserts_landmarks:
        return config
    return replace(config, granularity=_PART_TOKENS, boundary="token")


def in_parts(embedding: DocumentEmbedding, *, by_tokens: bool = True) -> QueryEmbedding:
    """Turn a query that was encoded like a document into a multi-vector.

    A part weighs as it does in the query's own mean: by the length of its state, and by its tokens.
    The query's vector has the share of an average part.

    Args:
        embedding: of the query.
        by_tokens: whether a stretch counts in the mean by its tokens; an inserted landmark, of
            however many tokens, counts once.

    Returns:
        1 + min(L, 64) rows at most; the vector alone where the query is blank.
    """
    tokens = embedding.landmark_tokens
    weights = embedding.norms * (tokens if by_tokens else tokens > 0)
    sums = (embedding.landmarks * weights[:, None])[tokens > 0]
    if len(sums) > _MAX_PARTS:
        sums = np.add.reduceat(sums, np.arange(0, len(sums), -(-len(sums) // _MAX_PARTS)))
    total = float(np.linalg.norm(sums, axis=1).sum())
    if total == 0:
        return vector_only(embedding.vector)
    share = len(sums) / total
    rows = np.concatenate([embedding.vector[None], sums * share]) / (len(sums) + 1)
    return QueryEmbedding(embedding.vector, rows.astype(np.float32))


def vector_only(vector: Floats) -> QueryEmbedding:
    """Return a query of which only the (D,) unit-length vector is known."""
    return QueryEmbedding(vector, vector[None])


def checked(query: Floats | QueryEmbedding, width: int) -> QueryEmbedding:
    """Check what the encoder, or whoever, made of a query.

    Args:
        query: a (D,) vector of any length but 0, or an embedding with rows.
        width: D.

    Raises:
        InputError: another shape, no numbers, NaN or infinity, a vector without a direction, or
            rows whose lengths don't sum to 1.
    """
    if not isinstance(query, QueryEmbedding):
        return vector_only(_unit(query, width))
    try:
        rows = np.asarray(query.rows, np.float32)
    except (TypeError, ValueError):
        raise InputError(f"the query's rows are {query.rows!r:.80}; expected numbers") from None
    if rows.ndim != 2 or rows.shape[1] != width or len(rows) == 0:
        raise InputError(f"the query's rows have shape {rows.shape}; expected (P, {width})")
    total = float(np.linalg.norm(rows, axis=1).sum())
    if not abs(total - 1) < _SHARES:  # NaN too
        raise InputError(
            f"the lengths of the query's rows sum to {total:.4g}; expected 1, so that scores are "
            "means of cosines: divide each row by the sum"
        )
    return QueryEmbedding(_unit(query.vector, width), rows)


def _unit(vector: Floats, width: int) -> Floats:
    try:
        wide = np.asarray(vector, np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"the query array holds {np.asarray(vector).dtype}; expected numbers"
        ) from None
    peak = np.abs(wide).max() if wide.shape == (width,) else np.nan
    if not np.isfinite(peak) or peak == 0:
        raise InputError(
            f"the query vector has shape {wide.shape}; expected ({width},), with finite values "
            "of which one at least is not 0"
        )
    wide = wide / peak  # so that no square overflows
    norm = np.linalg.norm(wide)
    if abs(peak * norm - 1) < _LENGTH:  # as the encoder gives it: another rounding would change it
        return np.asarray(vector, np.float32)
    return np.asarray(wide / norm, np.float32)
