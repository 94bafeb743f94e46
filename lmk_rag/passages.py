"""Find the best stretches of a segment: around its best landmarks, out to sentence ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmk_rag.boundaries import edge_strength
from lmk_rag.scoring import max_sim, row_scores
from lmk_rag.types import Floats, Ints, QueryEmbedding

_SENTENCE, _LINE = 2, 1  # grades of `edge_strength`
_ONE_GROUP = np.zeros(1, np.int64)
_MARGIN = 200  # characters of context that tell a sentence end from an abbreviation


@dataclass(frozen=True)
class Stretch:
    """A run of landmarks with the span that reads best.

    Attributes:
        start, end: characters of the segment's text, without white space at either end.
        best_start, best_end: the best landmark's span, within the former.
        first, last: landmarks of the segment, both inclusive.
        score: MaxSim of the query and the stretch's landmarks.
    """

    start: int
    end: int
    best_start: int
    best_end: int
    first: int
    last: int
    score: float


def best_stretches(
    text: str,
    spans: Ints,
    tokens: Ints,
    rows: Floats,
    query: QueryEmbedding,
    *,
    budget: int,
    n: int,
) -> list[Stretch]:
    """Return up to `n` stretches that share no landmark, the one of the best landmark first.

    Args:
        text: the segment's text.
        spans: (L, 2) characters of `text` per landmark.
        tokens: (L,) content tokens per landmark.
        rows: (L, D) unit-length landmark vectors.
        query: its vector finds the best landmarks, its rows score what grew around them.
        budget: the most tokens in a stretch (a single landmark may hold more).
        n: how many.
    """
    scores = row_scores(query.vector, rows)
    free = np.ones(len(scores), np.bool_)
    found: list[Stretch] = []
    for best in np.argsort(-scores, kind="stable").tolist():
        if len(found) == n:
            break
        if not free[best]:
            continue
        strength = _strength_near(text, spans, tokens, best, budget)
        broken = [bool(strength[at] < _LINE) for at in spans[best]]
        first, last = _grow(best, scores, tokens, free, budget, broken)
        free[first : last + 1] = False
        bounds = (int(spans[first, 0]), int(spans[last, 1]))
        core = _strip(text, int(spans[best, 0]), int(spans[best, 1]))
        start, end = _strip(text, *_to_sentences(strength, bounds, core))
        if start == end:  # white space only: nothing to show
            continue
        inside = (min(max(core[0], start), end), min(max(core[1], start), end))
        score = float(max_sim(query.rows, rows[first : last + 1], _ONE_GROUP)[0])
        found.append(Stretch(start, end, *inside, first, last, score))
    return found


def _strength_near(
    text: str, spans: Ints, tokens: Ints, best: int, budget: int
) -> NDArray[np.int8]:
    """Return `edge_strength`, worked out only where a stretch around `best` can reach."""
    total = np.concatenate(([0], np.cumsum(tokens)))
    first = int(np.searchsorted(total, total[best] - budget, side="left"))
    last = int(np.searchsorted(total, total[best + 1] + budget, side="right")) - 2
    start, end = int(spans[first, 0]), int(spans[max(best, last), 1])
    begin, stop = max(0, start - _MARGIN), min(len(text), end + _MARGIN)
    strength = np.zeros(len(text) + 1, np.int8)
    strength[start : end + 1] = edge_strength(text[begin:stop])[start - begin : end + 1 - begin]
    return strength


def _grow(
    best: int, scores: Floats, tokens: Ints, free: np.ndarray, budget: int, broken: list[bool]
) -> tuple[int, int]:
    """Take in neighbors until the budget is spent.

    First those that finish the best landmark's last and first sentence, where `broken` says that
    the landmark's start or end breaks one; then the better of the two each time.
    """
    first = last = best
    spent = int(tokens[best])
    while True:
        options = [
            (rank, float(scores[i]), i)
            for rank, i in (
                (1 if broken[0] and first == best else 0, first - 1),
                (2 if broken[1] and last == best else 0, last + 1),
            )
            if 0 <= i < len(scores) and free[i] and spent + tokens[i] <= budget
        ]
        if not options:
            return first, last
        *_, taken = max(options)
        spent += int(tokens[taken])
        first, last = min(first, taken), max(last, taken)


def _to_sentences(
    strength: np.ndarray, bounds: tuple[int, int], core: tuple[int, int]
) -> tuple[int, int]:
    """Draw both ends in to the outermost sentence end, or line end, that keeps the core whole."""
    (start, end), (core_start, core_end) = bounds, core
    for grade in (_SENTENCE, _LINE):
        begins = np.flatnonzero(strength[start : core_start + 1] >= grade)
        if len(begins):
            start += int(begins[0])
            break
    for grade in (_SENTENCE, _LINE):
        ends = np.flatnonzero(strength[core_end : end + 1] >= grade)
        if len(ends):
            end = core_end + int(ends[-1])
            break
    return start, end


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    if not piece.strip():
        return start, start
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())
