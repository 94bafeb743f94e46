"""Where stretches begin and end: token cuts, character spans, windows. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmk_rag.boundaries import Marks, sentence_edges, space_marks, word_edges
from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import CheckpointError
from lmk_rag.types import Ints


@dataclass(frozen=True, eq=False)
class Cuts:
    """(L + 1,) token indices and (L + 1,) character positions where stretches begin and end."""

    tokens: Ints
    characters: Ints


def find_cuts(text: str, offsets: Ints, config: LandmarkConfig) -> Cuts:
    """Decide where stretches begin and end.

    Args:
        text: the original string.
        offsets: (T, 2) characters of each content token, as the tokenizer gives them: they may
            overlap, leave gaps or repeat.
        config: granularity and boundary rule.
    """
    n = len(offsets)
    if n == 0:
        return Cuts(np.array([0, 0]), np.array([0, len(text)]))
    if offsets.min() < 0 or offsets.max() > len(text):
        raise CheckpointError(
            f"the tokenizer gave offsets {offsets.min()}..{offsets.max()} for a text of "
            f"{len(text)} characters"
        )
    characters = _cut_characters(text, offsets)
    k = config.granularity
    if config.boundary == "token":
        tokens = np.append(np.arange(0, n, k), n)
    else:
        whole = _whole_characters(offsets)
        words = word_edges(text)[characters] & whole
        sentences = None
        if config.boundary == "sentence":
            sentences = sentence_edges(text)[characters] & whole
        tokens = np.array(_walk(n, k, words, sentences), dtype=np.int64)
    return Cuts(tokens, characters[tokens])


def _cut_characters(text: str, offsets: Ints) -> Ints:
    """Return (T + 1,) the character position of a cut before each token, and of the end.

    Characters that the tokenizer dropped between two tokens stay with the first; a character
    that several tokens share stays with the first of them; leading white space of a token that
    also holds something else stays with the token before.
    """
    starts, ends = offsets[:, 0], np.maximum.accumulate(offsets[:, 1])
    cuts = np.maximum(starts, np.concatenate(([0], ends[:-1])))
    positions = np.append(np.where(space_marks(text), len(text), np.arange(len(text))), len(text))
    next_solid = np.minimum.accumulate(positions[::-1])[::-1]
    cuts = np.where(next_solid[cuts] < ends, next_solid[cuts], cuts)
    cuts[0] = 0
    return np.append(np.maximum.accumulate(cuts), len(text))


def _whole_characters(offsets: Ints) -> Marks:
    """Return (T + 1,) whether a cut before each token, and at the end, splits no character."""
    split = offsets[1:, 0] < np.maximum.accumulate(offsets[:-1, 1])
    return np.concatenate(([True], ~split, [True]))


def _walk(n: int, k: int, words: Marks, sentences: Marks | None) -> list[int]:
    """Return the token cuts for word or sentence boundaries, from 0 to n.

    A word of more than k tokens is cut after k: a landmark never owns more than its share.
    """
    last_word = np.maximum.accumulate(np.where(words, np.arange(n + 1), 0))
    sentence_cuts = np.flatnonzero(sentences) if sentences is not None else np.zeros(0, np.int64)
    cuts = [0]
    while n - cuts[-1] > k:
        here = cuts[-1]
        lo = int(np.searchsorted(sentence_cuts, here, side="right"))
        hi = int(np.searchsorted(sentence_cuts, here + k * 3 // 2, side="right"))
        if lo < hi:
            near = sentence_cuts[lo:hi]
            cuts.append(int(near[np.argmin(np.abs(near - (here + k)))]))
        else:
            cut = int(last_word[here + k])
            cuts.append(cut if cut > here else here + k)
    if cuts[-1] < n:
        cuts.append(n)
    return cuts


def tile(characters: Ints) -> Ints:
    """Turn L + 1 cut positions into (L, 2) spans that tile the text.

    Only where several landmarks fall inside one character (byte-level tokens, k = 1) would a
    span be empty; it then names that character, as its neighbor does.
    """
    starts, ends = characters[:-1].copy(), characters[1:].copy()
    empty = (starts == ends) & (characters[-1] > 0)
    starts[empty] = np.maximum(ends[empty] - 1, 0)
    ends[empty] = starts[empty] + 1
    return np.stack((starts, ends), axis=1)


def window_runs(costs: Ints, tokens: Ints, room: int, overlap: int) -> list[tuple[int, int, int]]:
    """Share whole stretches out over as few windows as hold them, of about even size.

    Even windows leave no short rest without context, pad less in a batch and attend less.

    Returns:
        per window: first context stretch, first stretch of its own, end (exclusive).
    """
    total = np.concatenate(([0], np.cumsum(costs)))
    total_tokens = np.concatenate(([0], np.cumsum(tokens)))
    runs = _fill(total, total_tokens, room, overlap)
    low, high = int(costs.max()), room
    while len(runs) > 1 and low < high:
        middle = (low + high) // 2
        fewer = _fill(total, total_tokens, middle, overlap)
        if len(fewer) > len(runs):
            low = middle + 1
        else:
            high, runs = middle, fewer
    return runs


def _fill(total: Ints, total_tokens: Ints, room: int, overlap: int) -> list[tuple[int, int, int]]:
    """Fill one window after the other, from the running sums of costs and tokens."""
    runs: list[tuple[int, int, int]] = []
    own = 0
    while own < len(total) - 1:
        context = int(np.searchsorted(total_tokens, total_tokens[own] - overlap, side="left"))
        context = min(context, own)
        while total[own + 1] - total[context] > room:
            context += 1
        end = int(np.searchsorted(total, total[context] + room, side="right")) - 1
        runs.append((context, own, end))
        own = end
    return runs


def group_stretches(sizes: Ints, strength: NDArray[np.int8], limit: int) -> list[tuple[int, int]]:
    """Join neighboring stretches into groups of at most `limit`, ending at the best edges.

    A group ends at the strongest edge in the second half of its room, the last of equals. A
    stretch larger than `limit` makes a group of its own.

    Args:
        sizes: (L,) size of each stretch.
        strength: (L,) how good a place its end is to stop; higher is better.
        limit: the most a group may hold.

    Returns:
        (first, end) index pairs, end exclusive, that hold every stretch once.
    """
    total = np.concatenate(([0], np.cumsum(sizes)))
    groups: list[tuple[int, int]] = []
    first = 0
    while first < len(sizes):
        end = int(np.searchsorted(total, total[first] + limit, side="right")) - 1
        end = max(end, first + 1)
        if end < len(sizes):
            half = int(np.searchsorted(total, total[first] + limit / 2, side="left"))
            half = min(max(half, first + 1), end)
            candidates = strength[half - 1 : end]  # ends of stretches half - 1 .. end - 1
            end = end - int(np.argmax(candidates[::-1]))
        groups.append((first, end))
        first = end
    return groups
