"""Exact search for local mode: all rows in one array, scored by one matrix product.

Local mode computes a multi-vector query point by point in Python, and its prefetch saves
nothing. So the rows are kept here beside it, filled on the first search and kept up to date by
the store's own writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from lmk_rag.scoring import best_per_group, row_scores
from lmk_rag.store.backend import Found
from lmk_rag.store.metadata import Json
from lmk_rag.types import Floats, Ints


class MemoryIndex:
    """The vectors of one local collection. The backend's lock guards it."""

    def __init__(self, records: Iterable[tuple[str, Json, dict[str, Floats]]]) -> None:
        self._ids: dict[str, tuple[str, str]] = {}  # point: document, revision
        self._rows: dict[str, dict[str, Floats]] = {}  # vector name: point: rows
        self._stacked: dict[str, tuple[list[str], Floats, Ints]] = {}
        self.put(records)

    def __len__(self) -> int:
        return len(self._ids)

    def n_rows(self, using: str) -> int:
        """Return how many rows of a vector there are."""
        return sum(len(rows) for rows in self._rows.get(using, {}).values())

    def put(self, records: Iterable[tuple[str, Json, dict[str, Floats]]]) -> None:
        """Add or replace points: id, payload, vectors."""
        for id_, payload, vectors in records:
            self._ids[id_] = (str(payload["document_id"]), str(payload["revision"]))
            for name, rows in vectors.items():
                self._rows.setdefault(name, {})[id_] = np.atleast_2d(np.asarray(rows, np.float32))
        self._stacked.clear()

    def remove(self, document_ids: Collection[str], keep: Collection[str] = ()) -> None:
        """Drop the points of some documents, but for the revisions in `keep`."""
        gone = [i for i, (doc, rev) in self._ids.items() if doc in document_ids and rev not in keep]
        for id_ in gone:
            del self._ids[id_]
            for rows in self._rows.values():
                rows.pop(id_, None)
        self._stacked.clear()

    def rows(self, id_: str, using: str) -> Floats:
        """Return the rows of one point."""
        return self._rows[using][id_]

    def search(
        self,
        query: Floats,
        *,
        using: str,
        limit: int,
        per_document: int,
        allowed: Collection[str] | None,
        prefetch: tuple[str, int] | None,
    ) -> list[Found]:
        """Find the best points; the arguments are those of `Backend.search`.

        Args:
            allowed: ids of the points a filter leaves, or None for all.
        """
        if prefetch is not None:
            ids, scores = self._scores(query, prefetch[0], allowed)
            allowed = {ids[i] for i in np.argsort(-scores, kind="stable")[: prefetch[1]]}
        ids, scores = self._scores(query, using, allowed)
        per: dict[str, list[Found]] = {}
        for i in np.argsort(-scores, kind="stable"):
            document_id = self._ids[ids[i]][0]
            if document_id not in per and len(per) == limit:
                continue
            found = per.setdefault(document_id, [])
            if len(found) < per_document:
                found.append(Found(ids[i], document_id, float(scores[i])))
        return [hit for hits in per.values() for hit in hits]

    def _scores(
        self, query: Floats, using: str, allowed: Collection[str] | None
    ) -> tuple[list[str], Floats]:
        if allowed is not None:
            by_id = self._rows.get(using, {})
            ids, rows, first = _stack({id_: by_id[id_] for id_ in by_id if id_ in allowed})
        else:
            if using not in self._stacked:
                self._stacked[using] = _stack(self._rows.get(using, {}))
            ids, rows, first = self._stacked[using]
        return ids, best_per_group(row_scores(query, rows), first) if ids else rows[:0, 0]


def _stack(by_id: dict[str, Floats]) -> tuple[list[str], Floats, Ints]:
    if not by_id:
        return [], np.zeros((0, 1), np.float32), np.zeros(0, np.int64)
    sizes = [len(rows) for rows in by_id.values()]
    first = np.concatenate(([0], np.cumsum(sizes[:-1]))).astype(np.int64)
    return list(by_id), np.concatenate(list(by_id.values())), first
