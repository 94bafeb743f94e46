"""BM25 over words, by bm25s: the method of keyword search to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lmk_rag.errors import require_extra
from lmk_rag.types import Floats

K1, B = 1.2, 0.75
SETTINGS = (
    f"bm25s, method lucene, k1={K1}, b={B}; lower-cased words of two or more characters, no stop "
    "words, no stemming"
)


def bm25_scores(texts: Sequence[str], queries: Sequence[str]) -> Floats:
    """Score documents for queries, as `SETTINGS` says.

    Returns:
        (queries, documents) float32; -inf where no word is shared.

    Raises:
        MissingExtraError: bm25s is not installed.
    """
    bm25s = require_extra("bm25s", "eval", "BM25")
    words = bm25s.tokenize(list(texts), stopwords=[], show_progress=False)
    if not words.vocab or all(len(ids) == 0 for ids in words.ids):
        return np.full((len(queries), len(texts)), -np.inf, np.float32)
    index = bm25s.BM25(method="lucene", k1=K1, b=B)
    index.index(words, show_progress=False)
    asked = bm25s.tokenize(list(queries), stopwords=[], return_ids=False, show_progress=False)
    scores = np.zeros((len(queries), len(texts)), np.float32)
    for row, query in zip(scores, asked, strict=True):
        known = [word for word in query if word in words.vocab]
        if known:
            row[:] = index.get_scores(known)
    scores[scores <= 0] = -np.inf
    return scores
