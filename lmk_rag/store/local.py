"""Search in local mode, over a `MemoryIndex` that all stores on one client share."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence

from qdrant_client import QdrantClient

from lmk_rag.store.backend import Backend, Found, Where
from lmk_rag.store.memory import MemoryIndex, records_of
from lmk_rag.store.points import LANDMARKS, SECTIONS, Point
from lmk_rag.types import Floats

_INDEXES: weakref.WeakKeyDictionary[QdrantClient, dict[str, MemoryIndex]]
_INDEXES = weakref.WeakKeyDictionary()


class LocalSearch:
    """The part of `Backend.search` that local mode does badly."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def put(self, points: Sequence[Point]) -> None:
        """Follow a write."""
        with self._backend.lock:
            index = self._built()
            if index is not None:
                index.put((point.id, point.payload, point.vectors) for point in points)

    def remove(self, document_ids: Collection[object], keep: Collection[str] = ()) -> None:
        """Follow a deletion."""
        with self._backend.lock:
            index = self._built()
            if index is not None:
                index.remove({str(id_) for id_ in document_ids}, keep)

    def rows(self, id_: str) -> Floats:
        """Return the landmark rows of a point."""
        with self._backend.lock:
            return self._index().rows(id_, LANDMARKS)

    def n_rows(self) -> int:
        """Return how many landmark rows the collection has."""
        with self._backend.lock:
            return self._index().n_rows(LANDMARKS)

    def search(
        self,
        query: Floats,
        *,
        using: str,
        limit: int,
        per_document: int = 1,
        where: Where = None,
        prefetch: tuple[str, int] | None = None,
    ) -> list[Found]:
        """Find the best points; see `Backend.search`."""
        if using not in (LANDMARKS, SECTIONS) or (prefetch and prefetch[0] != SECTIONS):
            return self._backend.search(
                query,
                using=using,
                limit=limit,
                per_document=per_document,
                where=where,
                prefetch=prefetch,
            )
        with self._backend.lock:
            allowed = None
            if where is not None:
                allowed = {r.id for r in self._backend.scroll(where, fields=("segment",))}
            return self._index().search(
                query,
                using=using,
                limit=limit,
                per_document=per_document,
                allowed=allowed,
                prefetch=prefetch,
            )

    def _built(self) -> MemoryIndex | None:
        return _INDEXES.get(self._backend.client, {}).get(self._backend.collection)

    def _index(self) -> MemoryIndex:
        index = self._built()
        # Someone may have written through the client itself: the count would tell.
        if index is None or len(index) != self._backend.count():
            fields, vectors = ("document_id", "revision"), (LANDMARKS, SECTIONS)
            records = self._backend.scroll(None, fields=fields, vectors=vectors)
            index = MemoryIndex(records_of(records))
            _INDEXES.setdefault(self._backend.client, {})[self._backend.collection] = index
        return index
