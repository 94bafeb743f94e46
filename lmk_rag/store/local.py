"""Local mode: qdrant-client stores, and `MemoryIndex` searches."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from qdrant_client import QdrantClient

from lmk_rag.store.backend import ClientBackend, Found, Record, Where
from lmk_rag.store.memory import MemoryIndex
from lmk_rag.store.metadata import Json
from lmk_rag.store.points import LANDMARKS, SECTIONS, Point
from lmk_rag.types import Floats

_EXACT_ROWS = 1_000_000  # a tenth of a second at 384 wide

# Stores on one client share its vectors, as they share its lock.
_INDEXES: weakref.WeakKeyDictionary[QdrantClient, dict[str, MemoryIndex]]
_INDEXES = weakref.WeakKeyDictionary()


class LocalBackend:
    """A collection in a folder or in memory; the methods are those of `Backend`."""

    is_local = True

    def __init__(self, inner: ClientBackend) -> None:
        self._inner = inner

    def read_metadata(self) -> Json | None:
        """Return the collection's metadata, or None if there is no such collection."""
        return self._inner.read_metadata()

    def create(self, settings: dict[str, Any]) -> None:
        """Create the collection."""
        self._inner.create(settings)

    def upsert(self, points: Sequence[Point]) -> None:
        """Write points."""
        with self._inner.lock:
            index = self._built()
            self._inner.upsert(points)
            if index is not None:
                index.put((point.id, point.payload, point.vectors) for point in points)

    def delete(self, document_ids: Sequence[str], *, keep: Sequence[str] = ()) -> None:
        """Delete all points of some documents, but for the revisions in `keep`."""
        with self._inner.lock:
            index = self._built()
            self._inner.delete(document_ids, keep=keep)
            if index is not None:
                index.remove(set(document_ids), set(keep))

    def count(self, where: Where = None) -> int:
        """Count points."""
        return self._inner.count(where)

    def scroll(
        self, where: Where, *, fields: Sequence[str], vectors: Sequence[str] = ()
    ) -> Iterator[Record]:
        """Yield all points that fulfill `where`, a page at a time."""
        return self._inner.scroll(where, fields=fields, vectors=vectors)

    def fetch(self, ids: Sequence[str], *, vectors: Sequence[str] = ()) -> dict[str, Record]:
        """Return the named points that exist, vectors from memory."""
        with self._inner.lock:
            found = self._inner.fetch(ids)
            if not vectors:
                return found
            index = self._index()
            return {
                id_: Record(id_, record.payload, {name: index.rows(id_, name) for name in vectors})
                for id_, record in found.items()
            }

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
        if using not in (LANDMARKS, SECTIONS):  # one vector per point: Qdrant itself is quick
            return self._inner.search(
                query, using=using, limit=limit, per_document=per_document, where=where
            )
        with self._inner.lock:
            allowed = None
            if where is not None:
                allowed = {record.id for record in self.scroll(where, fields=("segment",))}
            return self._index().search(
                query,
                using=using,
                limit=limit,
                per_document=per_document,
                allowed=allowed,
                prefetch=prefetch,
            )

    def exact_is_quick(self) -> bool:
        """Whether comparing every landmark costs little."""
        with self._inner.lock:
            return self._index().n_rows(LANDMARKS) <= _EXACT_ROWS

    def close(self) -> None:
        """Let the folder go."""
        self._inner.close()

    def _built(self) -> MemoryIndex | None:
        return _INDEXES.get(self._inner.client, {}).get(self._inner.collection)

    def _index(self) -> MemoryIndex:
        index = self._built()
        # Someone may have written through the client itself: the count would tell.
        if index is None or len(index) != self._inner.count():
            records = self._inner.scroll(
                None, fields=("document_id", "revision"), vectors=(LANDMARKS, SECTIONS)
            )
            index = MemoryIndex((record.id, record.payload, record.vectors) for record in records)
            _INDEXES.setdefault(self._inner.client, {})[self._inner.collection] = index
        return index
