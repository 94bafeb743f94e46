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
from lmk_rag.types import DocumentEmbedding, Floats, QueryEmbedding

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


def in_parts(embedding: DocumentEmbedding) -> QueryEmbedding:
    """Turn a query that was encoded like a document into a multi-vector.

    A part weighs as it does in the mean of the token states: by its tokens and the length of its
    state. The query's vector has the share of an average part.

    Returns:
        1 + min(L, 64) rows at most; the vector alone where the query is blank.
    """
    weights = embedding.norms * embedding.landmark_tokens
    sums = embedding.landmarks * weights[:, None]
    sums = sums[embedding.landmark_tokens > 0]
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
