"""`PlainEncoder`: any function that embeds texts, in the shape the store expects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import InputError, NonFiniteError
from lmk_rag.queries import vector_only
from lmk_rag.types import DocumentEmbedding, Floats, QueryEmbedding

Embed = Callable[[list[str]], Sequence[Sequence[float]]]


class PlainEncoder:
    """Give each text one landmark: the vector of the whole text.

    For embedding models without landmarks (another library's, a remote one), so that one store
    serves both.

    Args:
        embed_documents, embed_queries: lists of texts to lists of vectors of one width.
        name: goes into the fingerprint; two models need two names.
    """

    def __init__(self, embed_documents: Embed, embed_queries: Embed, *, name: str) -> None:
        self._embed_documents = embed_documents
        self._embed_queries = embed_queries
        self.name = name
        self.dim: int = _rows(embed_queries, ["width"], name).shape[1]
        self.config = LandmarkConfig()
        self.batch_tokens = 4_096
        self.fingerprint = hashlib.sha256(f"plain:{name}:{self.dim}".encode()).hexdigest()[:16]

    def encode_documents(self, texts: list[str]) -> list[DocumentEmbedding]:
        """Encode documents, in order; landmarks (1, D), and one span over the whole text.

        Raises:
            InputError: the function gave another number or width of vectors.
            NonFiniteError: it gave NaN, infinity or a zero vector; names the index.
        """
        return [
            DocumentEmbedding(
                vector=vector,
                landmarks=vector[None],
                norms=np.ones(1, np.float32),
                spans=np.array([[0, len(text)]], np.int64),
                landmark_tokens=np.array([len(text.split())], np.int64),
                n_windows=1,
            )
            for text, vector in zip(texts, self._unit(self._embed_documents, texts), strict=True)
        ]

    def encode_queries(self, texts: list[str]) -> Floats:
        """Encode queries to (B, D) float32 unit-length rows; errors as `encode_documents`."""
        return self._unit(self._embed_queries, texts)

    def encode_query_parts(self, texts: list[str]) -> list[QueryEmbedding]:
        """Encode queries; they have no parts, only their vectors."""
        return [vector_only(vector) for vector in self.encode_queries(texts)]

    def _unit(self, embed: Embed, texts: list[str]) -> Floats:
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        rows = _rows(embed, texts, self.name)
        if rows.shape[1] != self.dim:
            raise InputError(
                f"{self.name!r} gave vectors of width {rows.shape[1]}; expected {self.dim}"
            )
        peaks = np.abs(rows).max(axis=1, keepdims=True)
        bad = np.flatnonzero(~np.isfinite(peaks) | (peaks == 0))
        if len(bad):
            raise NonFiniteError(f"{self.name!r} gave NaN, infinity or zeros for text {bad[0]}")
        rows = rows / peaks  # so that no square overflows
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def _rows(embed: Embed, texts: list[str], name: str) -> NDArray[np.float64]:
    """Call the function and return its (B, D) answer."""
    try:
        rows = np.asarray(embed(texts), np.float64)
    except ValueError as error:
        raise InputError(f"{name!r} gave no vectors of one width: {error}") from error
    if rows.ndim != 2 or rows.shape[0] != len(texts) or rows.shape[1] == 0:
        raise InputError(
            f"{name!r} gave an answer of shape {rows.shape} for {len(texts)} texts; expected one "
            "vector for each"
        )
    return rows
