"""What a local collection holds, by document, and exact search over its vectors.

Local mode tests filters and computes multi-vector queries point by point in Python, and its
prefetch saves nothing. So ids are kept here beside it, and the rows of each vector in one array
from its first search on, scored by one matrix product. The store's own writes keep both right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from lmk_rag.lexical import WordVector
from lmk_rag.scoring import max_sim
from lmk_rag.store.filters import FieldIs
from lmk_rag.store.operations import Found, Revisions, collect_revisions
from lmk_rag.store.points import LANDMARKS
from lmk_rag.store.postings import Postings
from lmk_rag.types import Floats, Ints, QueryEmbedding


class _Entry(NamedTuple):
    document_id: str
    revision: str
    segment: int
    n_segments: int
    n_landmarks: int  # of the document


ENTRY_FIELDS = _Entry._fields


class MemoryIndex:
    """One local collection. The backend's lock guards it."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}  # by point
        self._points: dict[str, dict[str, None]] = {}  # by document, in order
        self._rows: dict[str, dict[str, Floats]] = {}  # by vector name and point
        self._stacked: dict[str, tuple[list[str], Floats, Ints]] = {}
        self._postings: dict[str, Postings] = {}  # by name of the sparse vector

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._entries

    @property
    def n_landmarks(self) -> int:
        """Landmarks of all documents."""
        return sum(entry.n_landmarks for entry in self._entries.values() if entry.segment == 0)

    def put(
        self,
        id_: str,
        payload: Mapping[str, Any],
        vectors: Mapping[str, Floats],
        words: Mapping[str, WordVector] = MappingProxyType({}),
    ) -> None:
        """Add or replace a point."""
        entry = _Entry._make(payload[name] for name in ENTRY_FIELDS)
        self._entries[id_] = entry
        self._points.setdefault(entry.document_id, {})[id_] = None
        for name, by_id in self._rows.items():
            by_id.pop(id_, None)
            if name in vectors:
                by_id[id_] = _as_rows(vectors[name])
        for name, postings in self._postings.items():
            postings.put(id_, words.get(name))
        self._stacked.clear()

    def remove(self, ids: Iterable[str]) -> None:
        """Drop points."""
        for id_ in ids:
            document_id = self._entries.pop(id_).document_id
            del self._points[document_id][id_]
            if not self._points[document_id]:
                del self._points[document_id]
            for by_id in self._rows.values():
                by_id.pop(id_, None)
            for postings in self._postings.values():
                postings.remove(id_)
        self._stacked.clear()

    def select(self, which: FieldIs) -> list[str]:
        """Return the ids of the points of some documents or revisions."""
        wanted = set(which.values)
        if which.name == "document_id":
            return [id_ for value in wanted for id_ in self._points.get(str(value), ())]
        return [id_ for id_, entry in self._entries.items() if getattr(entry, which.name) in wanted]

    def is_first(self, id_: str) -> bool:
        """Whether a point is the first segment of its document, by which that is listed."""
        return self._entries[id_].segment == 0

    def revisions(self, document_ids: Iterable[str]) -> Revisions:
        """Return what is stored of some documents."""
        entries = (self._entries[id_] for d in document_ids for id_ in self._points.get(d, ()))
        return collect_revisions(entry[:4] for entry in entries)

    def has_vectors(self, name: str) -> bool:
        """Whether the rows of a vector were loaded."""
        return name in self._rows

    def load(self, name: str, rows: Iterable[tuple[str, Floats]]) -> None:
        """Take in the rows of a vector, of every point that has it."""
        self._rows[name] = {id_: _as_rows(vector) for id_, vector in rows}

    def rows(self, id_: str, using: str) -> Floats:
        """Return the rows of one point."""
        return self._rows[using][id_]

    def search(
        self,
        query: QueryEmbedding,
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
        return self._grouped(ids, scores, limit, per_document)

    def has_words(self, name: str) -> bool:
        """Whether the words of a sparse vector were loaded."""
        return name in self._postings

    def load_words(self, name: str, vectors: Iterable[tuple[str, WordVector]]) -> None:
        """Take in the words of every point that has any."""
        self._postings[name] = Postings(vectors)

    def search_sparse(
        self, query: WordVector, *, using: str, limit: int, allowed: Collection[str] | None
    ) -> list[Found]:
        """Find the best points by words; see `Backend.search_sparse`, and `search`."""
        ids, scores = self._postings[using].search(query, allowed)
        return self._grouped(ids, scores, limit, 1)

    def _grouped(
        self, ids: list[str], scores: Floats, limit: int, per_document: int
    ) -> list[Found]:
        per: dict[str, list[Found]] = {}
        places = 0  # that the documents found so far can still fill
        for i in np.argsort(-scores, kind="stable"):
            document_id = self._entries[ids[i]].document_id
            if document_id not in per:
                if len(per) == limit:
                    continue
                per[document_id] = []
                places += min(per_document, len(self._points[document_id]))
            if len(per[document_id]) < per_document:
                per[document_id].append(Found(ids[i], document_id, float(scores[i])))
                places -= 1
                if places == 0 and len(per) == limit:
                    break
        return [hit for hits in per.values() for hit in hits]

    def _scores(
        self, query: QueryEmbedding, using: str, allowed: Collection[str] | None
    ) -> tuple[list[str], Floats]:
        by_id = self._rows[using]
        asked = query.rows if using == LANDMARKS else query.vector[None]
        if not by_id:
            return [], np.zeros(0, np.float32)
        if allowed is not None and 2 * len(allowed) < len(by_id):
            chosen = {id_: by_id[id_] for id_ in by_id if id_ in allowed}
            if not chosen:  # nothing is allowed, or only later segments by the document vector
                return [], np.zeros(0, np.float32)
            ids, rows, first = _stack(chosen)
            return ids, max_sim(asked, rows, first)
        if using not in self._stacked:
            ids, rows, first = self._stacked[using] = _stack(by_id)
            ends = np.append(first[1:], len(rows)).tolist()
            for id_, start, end in zip(ids, first.tolist(), ends, strict=True):
                by_id[id_] = rows[start:end]  # views, so that memory holds them once
        ids, rows, first = self._stacked[using]
        scores = max_sim(asked, rows, first)
        if allowed is None:
            return ids, scores
        kept = [i for i, id_ in enumerate(ids) if id_ in allowed]
        return [ids[i] for i in kept], scores[kept]


def _as_rows(vector: Floats) -> Floats:
    return np.atleast_2d(np.asarray(vector, np.float32))


def _stack(by_id: dict[str, Floats]) -> tuple[list[str], Floats, Ints]:
    sizes = [len(rows) for rows in by_id.values()]
    first = np.concatenate(([0], np.cumsum(sizes[:-1]))).astype(np.int64)
    return list(by_id), np.concatenate(list(by_id.values())), first
