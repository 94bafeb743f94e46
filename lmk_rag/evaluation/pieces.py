"""Cut texts into isolated pieces of n tokens, as an ordinary pipeline does before encoding."""

from __future__ import annotations

import numpy as np

from lmk_rag.boundaries import word_edges
from lmk_rag.types import Ints


def piece_tokens(text: str, offsets: Ints, *, size: int, overlap: int) -> Ints:
    """Return the (P, 2) token ranges of the pieces, end exclusive; at least one.

    A piece ends at the last word boundary within `size` tokens, and the next begins at the last
    word boundary that leaves it `overlap` tokens of this one. A text without tokens is one piece.

    Args:
        text: the text.
        offsets: (T, 2) characters of each token.
        size: the most tokens in a piece.
        overlap: tokens that a piece repeats from the one before, less than `size`.
    """
    n = len(offsets)
    if n == 0:
        return np.zeros((1, 2), np.int64)
    is_start = np.append(word_edges(text)[offsets[:, 0]], True)
    last_start = np.maximum.accumulate(np.where(is_start, np.arange(n + 1), 0))
    ranges = []
    start = 0
    while True:
        end = min(start + size, n)
        if last_start[end] > start:  # else one word fills the piece and has to be cut
            end = int(last_start[end])
        ranges.append((start, end))
        if end == n:
            return np.array(ranges, np.int64)
        following = int(last_start[max(end - overlap, 0)]) if overlap else end
        start = following if following > start else end


def token_spans(text: str, offsets: Ints, ranges: Ints) -> Ints:
    """Return the (P, 2) characters of token ranges; a range without tokens is the whole text."""
    spans = [
        (int(offsets[first, 0]), int(offsets[end - 1, 1])) if end > first else (0, len(text))
        for first, end in ranges
    ]
    return np.array(spans, np.int64).reshape(-1, 2)
