"""Local mode: qdrant-client stores, and `MemoryIndex` finds."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from qdrant_client import QdrantClient, models

from lmk_rag.lexical import WordVector
from lmk_rag.store.backend import ClientBackend
from lmk_rag.store.filters import FieldIs
from lmk_rag.store.memory import ENTRY_FIELDS, MemoryIndex
from lmk_rag.store.metadata import Json
from lmk_rag.store.operations import Found, Record, Revisions, Where
from lmk_rag.store.points import Point
from lmk_rag.types import QueryEmbedding

_EXACT_ROWS = 1_000_000  # a tenth of a second at 384 wide, for a query of eight rows

# Stores on one client share its vectors, as they share its lock.
_INDEXES: weakref.WeakKeyDictionary[QdrantClient, dict[str, MemoryIndex]]
_INDEXES = weakref.WeakKeyDictionary()


class LocalBackend:
    """A collection in a folder or in memory; the methods are those of `Backend`."""

    is_local = True

    def __init__(self, inner: ClientBackend) -> None:
        self._inner = inner

    @property
    def writing(self) -> AbstractContextManager[Any]:
        """Hold this over writes that belong together."""
        return self._inner.writing

    def read_metadata(self) -> Json | None:
        """Return the collection's metadata, or None if there is no such collection."""
        return self._inner.read_metadata()

    def create(self, settings: dict[str, Any]) -> None:
        """Create the collection."""
        with self._inner.lock:
            _INDEXES.get(self._inner.client, {}).pop(self._inner.collection, None)
            self._inner.create(settings)

    def index(self, fields: Mapping[str, models.PayloadSchemaType]) -> None:
        """Do nothing: filters are tested point by point."""

    def revisions(self, document_ids: Sequence[str]) -> Revisions:
        """Return what is stored of some documents."""
        with self._inner.lock:
            return self._index().revisions(document_ids)

    def upsert(self, points: Sequence[Point]) -> None:
        """Write points."""
        with self._inner.lock:
            index = self._index()
            self._inner.upsert(points)
            for point in points:
                index.put(point.id, point.payload, point.vectors, point.words)

    def delete(self, which: FieldIs) -> None:
        """Delete points by document or revision.

        The client deletes one after the other: a document cut short is listed until its end.
        """
        with self._inner.lock:
            index = self._index()
            ids = sorted(index.select(which), key=index.is_first)
            self._inner.delete_points(ids)
            index.remove(ids)

    def count(self, where: Where = None) -> int:
        """Count points."""
        with self._inner.lock:
            ids = self._ids(where)
            return len(self._index()) if ids is None else len(ids)

    def scroll(
        self, where: Where, *, fields: Sequence[str], vectors: Sequence[str] = ()
    ) -> Iterator[Record]:
        """Yield all points that fulfill `where`, as they were when the first was asked for."""
        with self._inner.lock:
            ids = self._ids(where)
            if ids is None:
                records = list(self._inner.scroll(None, fields=fields, vectors=vectors))
            else:
                records = list(self._inner.fetch(ids, fields=fields, vectors=vectors).values())
        yield from records

    def fetch(
        self,
        ids: Sequence[str],
        *,
        fields: Sequence[str] | None = None,
        vectors: Sequence[str] = (),
    ) -> dict[str, Record]:
        """Return the named points that exist, vectors from memory where they are there."""
        with self._inner.lock:
            index = self._index()
            here = [id_ for id_ in ids if id_ in index]
            if not all(index.has_vectors(name) for name in vectors):
                return self._inner.fetch(here, fields=fields, vectors=vectors)
            return {
                id_: Record(id_, record.payload, {name: index.rows(id_, name) for name in vectors})
                for id_, record in self._inner.fetch(here, fields=fields).items()
            }

    def search(
        self,
        query: QueryEmbedding,
        *,
        using: str,
        limit: int,
        per_document: int = 1,
        where: Where = None,
        prefetch: tuple[str, int] | None = None,
    ) -> list[Found]:
        """Find the best points; see `Backend.search`."""
        with self._inner.lock:
            index = self._index()
            ids = self._ids(where)
            for name in {using, prefetch[0] if prefetch else using}:
                if not index.has_vectors(name):
                    records = self._inner.scroll(None, fields=(), vectors=(name,))
                    index.load(
                        name, ((r.id, r.vectors[name]) for r in records if name in r.vectors)
                    )
            return index.search(
                query,
                using=using,
                limit=limit,
                per_document=per_document,
                allowed=None if ids is None else set(ids),
                prefetch=prefetch,
            )

    def search_sparse(
        self, query: WordVector, *, using: str, limit: int, where: Where = None
    ) -> list[Found]:
        """Find points by words; see `Backend.search_sparse`."""
        with self._inner.lock:
            index = self._index()
            ids = self._ids(where)
            if not index.has_words(using):
                records = self._inner.scroll(None, fields=(), vectors=(using,))
                index.load_words(
                    using, ((r.id, r.words[using]) for r in records if using in r.words)
                )
            allowed = None if ids is None else set(ids)
            return index.search_sparse(query, using=using, limit=limit, allowed=allowed)

    def exact_is_quick(self) -> bool:
        """Whether comparing every landmark costs little."""
        with self._inner.lock:
            return self._index().n_landmarks <= _EXACT_ROWS

    def close(self) -> None:
        """Let the folder go."""
        self._inner.close()

    def _ids(self, where: Where) -> list[str] | None:
        """Return the points that fulfill `where`, or None for all."""
        if where is None:
            return None
        if not isinstance(where, FieldIs):
            # Only filters on metadata go to Qdrant, which tests each point in Python.
            return [record.id for record in self._inner.scroll(where, fields=("segment",))]
        ids = self._index().select(where)
        if where.also is None or not ids:
            return ids
        allowed = set(self._ids(where.also) or ())
        return [id_ for id_ in ids if id_ in allowed]

    def _index(self) -> MemoryIndex:
        indexes = _INDEXES.setdefault(self._inner.client, {})
        index = indexes.get(self._inner.collection)
        # Someone may have written through the client itself: the count would tell.
        if index is None or len(index) != self._inner.count():
            index = indexes[self._inner.collection] = MemoryIndex()
            for record in self._inner.scroll(None, fields=ENTRY_FIELDS):
                index.put(record.id, record.payload, {})
        return index
