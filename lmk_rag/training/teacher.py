"""`Teacher`: another encoder's vectors of whole texts and of any stretch of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmk_rag.config import LandmarkConfig
from lmk_rag.encoder import LandmarkEncoder
from lmk_rag.errors import ConfigError
from lmk_rag.types import DocumentEmbedding, Floats, Ints


class Teacher:
    """Read texts with an encoder that pools token states, and give vectors to learn from.

    Args:
        model: folder or hub id; None: the default model. Its pooling has to be the mean.
        max_length: window in tokens; None: the model's own.
        overlap: context that a window repeats from the one before.
        device: as for `LandmarkEncoder`.

    Raises:
        ConfigError: it pools otherwise.
    """

    def __init__(
        self,
        model: str | Path | None,
        *,
        max_length: int | None = None,
        overlap: int = 32,
        device: str = "auto",
    ) -> None:
        # One landmark per token: a stretch of any granularity is then a sum of rows.
        config = LandmarkConfig(
            granularity=1, boundary="token", max_length=max_length, overlap=overlap
        )
        self.encoder = LandmarkEncoder(model, config=config, device=device)
        if self.encoder.pooling != "mean":
            raise ConfigError(
                f"the teacher {self.encoder.name!r} pools by {self.encoder.pooling}; vectors of "
                "stretches are means of its token states, so it has to pool by the mean"
            )

    def documents(self, texts: Sequence[str], spans: Sequence[Ints]) -> tuple[Floats, list[Floats]]:
        """Encode documents.

        Args:
            texts: B documents.
            spans: for each, (L, 2) character ranges of its landmarks.

        Returns:
            (B, D) unit-length vectors, and for each document (L, D) rows: the mean of the
            teacher's token states in each range. A range without a token gets a zero row.
        """
        embeddings = self.encoder.encode_documents(texts)
        vectors = np.stack([embedding.vector for embedding in embeddings])
        rows = [rows_of(e, of) for e, of in zip(embeddings, spans, strict=True)]
        return vectors, rows

    def queries(self, texts: Sequence[str]) -> Floats:
        """Encode queries to (B, D) unit-length vectors."""
        return self.encoder.encode_queries(texts)


def rows_of(tokens: DocumentEmbedding, spans: Ints) -> Floats:
    """Average the states of the tokens that begin in each range.

    Args:
        tokens: one landmark per token.
        spans: (L, 2) ranges in order that don't overlap.

    Returns:
        (L, D) float32, not normalized; zeros where a range holds no token.
    """
    states = tokens.landmarks * tokens.norms[:, None]
    cuts = np.searchsorted(tokens.spans[:, 0], spans.ravel(), side="left").reshape(-1, 2)
    total = np.concatenate((np.zeros((1, states.shape[1])), np.cumsum(states, 0, np.float64)))
    counts = np.maximum(cuts[:, 1] - cuts[:, 0], 1)
    means = (total[cuts[:, 1]] - total[cuts[:, 0]]) / counts[:, None]
    return np.asarray(means, np.float32)
