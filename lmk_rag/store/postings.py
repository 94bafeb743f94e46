"""Exact BM25 in memory: which points hold a term, and with what weight.

Local mode compares a sparse query with every point in Python. Here the terms of all points lie in
one sorted array from the first search after a write on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmk_rag.lexical import WordVector
from lmk_rag.types import Floats


class _Sorted(NamedTuple):
    ids: list[str]  # points
    indices: NDArray[np.uint32]  # (N,) terms of all points, increasing
    points: NDArray[np.int32]  # (N,) whose: position in `ids`
    values: Floats  # (N,)


class Postings:
    """The words of every point of one collection; points without words are none of its points."""

    def __init__(self, vectors: Iterable[tuple[str, WordVector]]) -> None:
        self._vectors = dict(vectors)
        self._sorted: _Sorted | None = None

    def put(self, id_: str, vector: WordVector | None) -> None:
        """Add or replace a point."""
        self.remove(id_)
        if vector is not None:
            self._vectors[id_] = vector

    def remove(self, id_: str) -> None:
        """Drop a point, if it is there."""
        self._vectors.pop(id_, None)
        self._sorted = None

    def search(
        self, query: WordVector, allowed: Collection[str] | None
    ) -> tuple[list[str], Floats]:
        """Return the points that hold a term of the query with their BM25, in no order.

        Args:
            query: its terms and how often each comes.
            allowed: ids of the points a filter leaves, or None for all. It does not change how
                rare a term is: that is counted over all points, as Qdrant does.
        """
        if not self._vectors:
            return [], np.zeros(0, np.float32)
        if self._sorted is None:
            self._sorted = _sort(self._vectors)
        ids, indices, points, values = self._sorted
        scores = np.zeros(len(ids), np.float64)
        firsts = np.searchsorted(indices, query.indices, side="left").tolist()
        ends = np.searchsorted(indices, query.indices, side="right").tolist()
        for first, end, count in zip(firsts, ends, query.values.tolist(), strict=True):
            scores[points[first:end]] += count * _idf(end - first, len(ids)) * values[first:end]
        kept = [i for i in np.flatnonzero(scores).tolist() if allowed is None or ids[i] in allowed]
        return [ids[i] for i in kept], scores[kept].astype(np.float32)


def _idf(holding: int, total: int) -> float:
    """Return how rare a term is, in Qdrant's form, which is positive for every term."""
    return float(np.log((total - holding + 0.5) / (holding + 0.5) + 1))


def _sort(vectors: dict[str, WordVector]) -> _Sorted:
    indices = np.concatenate([vector.indices for vector in vectors.values()])
    values = np.concatenate([vector.values for vector in vectors.values()])
    sizes = [len(vector) for vector in vectors.values()]
    points = np.repeat(np.arange(len(vectors), dtype=np.int32), sizes)
    order = np.argsort(indices, kind="stable")
    return _Sorted(list(vectors), indices[order], points[order], values[order])
