"""Qdrant Edge: the server's own engine inside this process, for folders (extra `edge`).

Unlike local mode it reads vectors from disk as they are needed, takes both stages in one query,
and keeps no pickles. A collection is one shard, in a folder of its own beside a JSON file that
holds what a server keeps as the collection's metadata.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from qdrant_client import models

from lmk_rag.errors import StoreError, require_extra
from lmk_rag.lexical import WordVector
from lmk_rag.store.edge_filters import FLAGS, bool_flags, to_edge
from lmk_rag.store.filters import FieldIs, translate
from lmk_rag.store.metadata import Json
from lmk_rag.store.operations import (
    Found,
    Record,
    Revisions,
    Where,
    query_rows,
    read_record,
    store_locked,
    stored_revisions,
)
from lmk_rag.store.points import Point
from lmk_rag.types import QueryEmbedding

_PAGE = 256
_EXACT_POINTS = 10_000
_POINTS_PER_DOCUMENT = 8  # a guess that saves another search where documents are long
_SUFFIX = ".edge"


def edge_files(folder: Path, collection: str) -> tuple[Path, Path]:
    """Return the shard's folder and the metadata file of a collection."""
    name = quote(collection, safe="") + _SUFFIX
    return folder / name, folder / f"{name}.json"


def read_edge_metadata(folder: Path, collection: str) -> Json | None:
    """Return a collection's metadata without opening it, or None if it is not there."""
    path = edge_files(folder, collection)[1]
    if not path.is_file():
        return None
    try:
        metadata: Json = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"the store at {folder} can't be opened: {path.name}: {error}") from error
    return metadata


def holds_edge(folder: Path) -> bool:
    """Whether a folder holds collections of this engine."""
    return any(folder.glob(f"*{_SUFFIX}.json"))


class EdgeBackend:
    """A collection in a folder; the methods are those of `Backend`.

    Raises:
        MissingExtraError: the engine is not installed.
        StoreLockedError: another process or store holds the collection.
    """

    is_local = True

    def __init__(self, folder: Path, collection: str) -> None:
        self._edge: ModuleType = require_extra("qdrant_edge", "edge", f"the store at {folder}")
        self._folder, self._collection = folder, collection
        self._path, self._metadata_path = edge_files(folder, collection)
        self.writing: AbstractContextManager[Any] = threading.RLock()
        self._shard: Any = None
        if self._metadata_path.is_file():
            self._shard = self._load()

    def read_metadata(self) -> Json | None:
        """Return the collection's metadata, or None if there is no such collection."""
        return read_edge_metadata(self._folder, self._collection)

    def create(self, settings: dict[str, Any]) -> None:
        """Create the collection; the metadata file comes last and makes it whole."""
        edge = self._edge
        vectors = {name: self._params(v) for name, v in settings["vectors_config"].items()}
        sparse = edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)
        words = dict.fromkeys(settings["sparse_vectors_config"], sparse)
        config = edge.EdgeConfig(vectors=vectors, sparse_vectors=words)
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            begun = any(self._path.iterdir())  # by a run that was killed; nothing is in it yet
        except OSError as error:
            raise StoreError(f"the store at {self._folder} can't be made: {error}") from error
        if begun:
            self._shard = self._load()
        else:
            self._shard = self._call(edge.EdgeShard.create, str(self._path), config)
        for name in ("document_id", "revision", FLAGS):
            self._index(name, edge.PayloadSchemaType.Keyword)
        self._index("segment", edge.PayloadSchemaType.Integer)
        self._shard.flush()
        partial = self._metadata_path.with_suffix(".partial")
        partial.write_text(json.dumps(settings["metadata"], ensure_ascii=False), "utf-8")
        partial.replace(self._metadata_path)

    def index(self, fields: Mapping[str, models.PayloadSchemaType]) -> None:
        """Do nothing: our own are made with the collection, which is not there before."""

    def revisions(self, document_ids: Sequence[str]) -> Revisions:
        """Return what is stored of some documents."""
        return stored_revisions(self, document_ids)

    def upsert(self, points: Sequence[Point]) -> None:
        """Write points; a write-ahead log keeps them if the process dies."""
        edge_points = [
            self._edge.Point(
                point.id,
                {name: vector.tolist() for name, vector in point.vectors.items()}
                | {name: self._sparse(words) for name, words in point.words.items()},
                point.payload | {FLAGS: bool_flags(point.payload["metadata"])},
            )
            for point in points
        ]
        self._update(self._edge.UpdateOperation.upsert_points(edge_points))

    def delete(self, which: FieldIs) -> None:
        """Delete points by document or revision."""
        condition = to_edge(self._edge, translate(which))
        self._update(self._edge.UpdateOperation.delete_points_by_filter(condition))

    def count(self, where: Where = None) -> int:
        """Count points exactly."""
        request = self._edge.CountRequest(exact=True, filter=self._condition(where))
        return int(self._call(self._shard.count, request))

    def scroll(
        self, where: Where, *, fields: Sequence[str], vectors: Sequence[str] = ()
    ) -> Iterator[Record]:
        """Yield all points that fulfill `where`, a page at a time."""
        condition, offset = self._condition(where), None
        while True:
            request = self._edge.ScrollRequest(
                offset=offset,
                limit=_PAGE,
                filter=condition,
                with_payload=list(fields) or False,
                with_vector=list(vectors) or False,
            )
            records, offset = self._call(self._shard.scroll, request)
            yield from map(_record, records)
            if offset is None:
                return

    def fetch(
        self,
        ids: Sequence[str],
        *,
        fields: Sequence[str] | None = None,
        vectors: Sequence[str] = (),
    ) -> dict[str, Record]:
        """Return the named points that exist, with some payload fields or (None) all."""
        if not ids:
            return {}
        payload = True if fields is None else list(fields)
        found = self._call(self._shard.retrieve, list(ids), payload, list(vectors) or False)
        return {record.id: record for record in map(_record, found)}

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
        """Find the best points; see `Backend.search`.

        The engine has no grouping by document: more is asked for until there are enough.
        """
        stages = None
        if prefetch is not None:
            first = self._nearest(query, prefetch[0])
            condition = self._condition(where)
            stages = [self._edge.Prefetch(limit=prefetch[1], query=first, filter=condition)]
        found = self._grouped(
            self._nearest(query, using), where, limit, per_document, prefetches=stages
        )
        return [replace(hit, score=min(max(hit.score, -1.0), 1.0)) for hit in found]

    def search_sparse(
        self, query: WordVector, *, using: str, limit: int, where: Where = None
    ) -> list[Found]:
        """Find points by words; see `Backend.search_sparse`."""
        edge = self._edge
        # The engine counts over its index otherwise, where deleted points stay for a while.
        corpus = edge.Filter(must=[edge.HasVectorCondition(using)])
        params = edge.SearchParams(idf=edge.IdfParams(corpus=corpus))
        nearest = edge.Query.Nearest(self._sparse(query), using=using)
        return self._grouped(nearest, where, limit, 1, params=params)

    def _grouped(
        self,
        query: Any,
        where: Where,
        limit: int,
        per_document: int,
        *,
        prefetches: list[Any] | None = None,
        params: Any = None,
    ) -> list[Found]:
        condition = self._condition(where)
        total, narrowed = self.count(where), False
        asked = min(total, limit * per_document * _POINTS_PER_DOCUMENT + _PAGE // 4)
        while True:
            request = self._edge.QueryRequest(
                limit=max(asked, 1),
                query=query,
                prefetches=prefetches,
                filter=condition,
                params=params,
                with_payload=["document_id"],
            )
            hits = self._call(self._shard.query, request)
            groups: dict[str, list[Found]] = {}
            for hit in hits:
                id_ = str(hit.payload["document_id"])
                groups.setdefault(id_, []).append(Found(str(hit.id), id_, float(hit.score)))
            best = list(groups.values())[:limit]
            exhausted = len(hits) < asked or asked >= total
            if exhausted or (len(best) == limit and per_document == 1):
                return [found for group in best for found in group[:per_document]]
            if len(best) == limit and not narrowed:  # the documents are known, not all their points
                ids = tuple(group[0].document_id for group in best)
                also = where.also if isinstance(where, FieldIs) else where
                narrow = FieldIs("document_id", ids, also=also)
                condition, total, narrowed = self._condition(narrow), self.count(narrow), True
            asked = min(total, asked * 4)

    def exact_is_quick(self) -> bool:
        """Whether comparing every landmark costs little."""
        return self.count() <= _EXACT_POINTS

    def close(self) -> None:
        """Let the folder go."""
        if self._shard is not None:
            self._shard.close()
            self._shard = None

    def _load(self) -> Any:
        try:
            return self._edge.EdgeShard.load(str(self._path))
        except Exception as error:  # the engine raises nothing more specific
            if "WouldBlock" in str(error):
                raise store_locked(self._folder) from None
            raise StoreError(f"the store at {self._folder} can't be opened: {error}") from error

    def _params(self, params: models.VectorParams) -> Any:
        edge = self._edge
        if params.quantization_config is not None:
            raise StoreError("quantization of a folder is not supported; use a Qdrant server")
        half = params.datatype == models.Datatype.FLOAT16
        graph = params.hnsw_config
        return edge.EdgeVectorParams(
            size=params.size,
            distance=edge.Distance.Dot
            if params.distance == models.Distance.DOT
            else edge.Distance.Cosine,
            datatype=edge.VectorStorageDatatype.Float16 if half else None,
            memory=edge.Memory.Cold if params.on_disk else None,
            multivector_config=edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
            if params.multivector_config
            else None,
            hnsw_config=None
            if graph is None
            else edge.HnswIndexConfig(
                m=16 if graph.m is None else graph.m,
                ef_construct=graph.ef_construct or 100,
                full_scan_threshold=graph.full_scan_threshold or 10_000,
            ),
        )

    def _index(self, name: str, kind: Any) -> None:
        self._update(self._edge.UpdateOperation.create_field_index(name, kind))

    def _nearest(self, query: QueryEmbedding, using: str) -> Any:
        return self._edge.Query.Nearest(query_rows(query, using), using=using)

    def _sparse(self, vector: WordVector) -> Any:
        return self._edge.SparseVector(vector.indices.tolist(), vector.values.tolist())

    def _condition(self, where: Where) -> Any:
        return None if where is None else to_edge(self._edge, translate(where))

    def _update(self, operation: Any) -> None:
        self._call(self._shard.update, operation)

    def _call(self, method: Any, *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception as error:  # the engine raises nothing more specific
            raise StoreError(f"Qdrant Edge, collection {self._collection!r}: {error}") from error


def _record(record: Any) -> Record:
    found = read_record(record)
    found.payload.pop(FLAGS, None)
    return found
