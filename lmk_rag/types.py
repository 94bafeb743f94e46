"""The values that flow between the stages. NumPy only, no torch.

Letters used in every docstring of the package: B texts, T tokens, L landmarks, D width.
A span is a pair of character offsets [start, end) into the original string, so that
`text[start:end]` is exactly what it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Document:
    """A text with its id and the user's metadata.

    Attributes:
        id: any non-empty string; comes back unchanged with every passage.
        text: the text; never rewritten, so offsets into it stay true.
        metadata: JSON-like values (see `lmk_rag.store.metadata` for the rule), kept under a
            key of their own in the store.
    """

    id: str
    text: str
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class DocumentEmbedding:
    """One encoded text: its single vector and its landmarks.

    Attributes:
        vector: (D,) float32, unit length: the document vector.
        landmarks: (L, D) float32, unit-length rows: the multi-vector.
        norms: (L,) float32: lengths of the raw landmark states, so that
            `landmarks * norms[:, None]` gives the raw states back.
        spans: (L, 2) int64: the characters each landmark owns; they tile the text.
        landmark_tokens: (L,) int64: content tokens in each landmark's stretch.
        n_windows: windows the text was encoded in.
        truncated: True if `on_overflow="truncate"` cut the text; the characters covered are
            then `spans[-1, 1]`.
    """

    vector: Floats
    landmarks: Floats
    norms: Floats
    spans: Ints
    landmark_tokens: Ints
    n_windows: int
    truncated: bool = False

    @property
    def n_tokens(self) -> int:
        """Content tokens encoded: no special tokens, no prompt, no overlap counted twice."""
        return int(self.landmark_tokens.sum())

    @property
    def n_landmarks(self) -> int:
        """L, the number of landmarks; at least 1."""
        return len(self.landmarks)

    def stretch_vector(self, first: int, last: int) -> Floats:
        """Return the vector of landmarks `first` to `last`, both inclusive.

        Returns:
            (D,) float32, unit length: the normalized mean of the raw landmark states.
        """
        rows = self.landmarks[first : last + 1] * self.norms[first : last + 1, None]
        mean = rows.mean(axis=0)
        return np.asarray(mean / np.linalg.norm(mean), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class QueryEmbedding:
    """One encoded query: its single vector, and the multi-vector that finds landmarks.

    Attributes:
        vector: (D,) float32, unit length.
        rows: (P, D) float32: `vector` and the vectors of the query's parts, each as long as its
            share, which sum to 1. So MaxSim with it, the sum over rows of each one's best
            landmark, is a mean of cosines, in [-1, 1].
    """

    vector: Floats
    rows: Floats


@dataclass(frozen=True, eq=False)
class Chunk:
    """A run of neighboring landmarks.

    Attributes:
        text: exactly `document_text[start:end]`.
        start, end: the span.
        vector: (D,) float32, unit length: normalized mean of the raw landmark states.
        first_landmark, last_landmark: the landmark range, both inclusive.
        n_tokens: content tokens.
    """

    text: str
    start: int
    end: int
    vector: Floats
    first_landmark: int
    last_landmark: int
    n_tokens: int


@dataclass(frozen=True)
class Passage:
    """A stretch of a stored document that answers a query.

    Attributes:
        text: exactly `document_text[start:end]`.
        start, end: the span in the document.
        line: 1-based line of `start` in the document.
        score: see `Retriever.search` for the range; higher is better.
        document_id, metadata: those of the document (a fresh metadata dict per passage).
        first_landmark, last_landmark: the landmark range inside the document, inclusive.
        best_start, best_end: span of the best landmark, cut to the passage.
    """

    text: str
    start: int
    end: int
    line: int
    score: float
    document_id: str
    metadata: dict[str, object]
    first_landmark: int
    last_landmark: int
    best_start: int
    best_end: int


@dataclass(frozen=True)
class DocumentHit:
    """A document found by a query.

    Attributes:
        document_id, metadata: those of the document (a fresh metadata dict per hit).
        score: MaxSim of the query and the landmarks of the document's best segment, in
            `document` mode the cosine of both vectors, in [-1, 1]; in `hybrid` mode the fused
            score, in [0, 1].
    """

    document_id: str
    score: float
    metadata: dict[str, object]
