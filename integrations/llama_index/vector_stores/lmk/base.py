"""`LMKVectorStore`: a `QdrantStore` where LlamaIndex expects a vector store."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    SerializeAsAny,
    field_serializer,
)
from llama_index.core.embeddings.loading import load_embed_model
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from qdrant_client import models

from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.vector_stores.lmk.embeddings import (
    embeddings_of,
    encoder_of,
    query_of,
)
from llama_index.vector_stores.lmk.filters import build_filter
from llama_index.vector_stores.lmk.mmr import diverse
from llama_index.vector_stores.lmk.nodes import NODE_ID, SOURCE_ID, to_document, to_node
from lmk_rag import QdrantStore, Retriever
from lmk_rag.errors import ConfigError, InputError, refuse_options
from lmk_rag.fusion import CANDIDATES, Fusion
from lmk_rag.store import And, CollectionOptions, Eq, Skipped

_LOG = logging.getLogger(__name__)
_OPENING = threading.RLock()
_PAGE = 256  # nodes asked for at once
_CLIENT_LOCATION = "client://pass-qdrant_client-again"  # no place: opening it says what is missing
_MODES = (
    VectorStoreQueryMode.DEFAULT,
    VectorStoreQueryMode.MMR,
    VectorStoreQueryMode.HYBRID,
)


def _embed_model(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    ours = value.get("class_name") == LMKEmbedding.class_name()
    return LMKEmbedding.from_dict(dict(value)) if ours else load_embed_model(dict(value))


def _with_indexes(options: CollectionOptions) -> CollectionOptions:
    """Let a server index what deletions, upserts and id filters of LlamaIndex go by."""
    own = dict.fromkeys((NODE_ID, SOURCE_ID), models.PayloadSchemaType.KEYWORD)
    return replace(options, payload_indexes=own | dict(options.payload_indexes))


def _location(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


class LMKVectorStore(BasePydanticVectorStore):
    """Keep nodes in Qdrant, with all their landmarks, and find them by their best one.

    Args:
        collection_name: made if it is not there; one made by another model is refused.
        embed_model: what made, or makes, the vectors: the same as the index's. With
            `LMKEmbedding`, nodes keep their landmarks: those of `LMKNodeParser` bring them
            along, the text of others is encoded when they are added. With any other model a
            node has the one vector that came with it.
        location: ":memory:", a folder, or the URL of a Qdrant server.
        qdrant_client: a `qdrant_client.QdrantClient` of yours instead; it stays yours to close.
        api_key: for a server; None: the environment's QDRANT_API_KEY. Not part of dicts.
        options, prefer_grpc, timeout: as in `lmk_rag.QdrantStore`.
        fusion: as in `lmk_rag.Retriever`, for the query mode HYBRID.

    Examples:
        ```python
        from llama_index.core import StorageContext, VectorStoreIndex
        from llama_index.embeddings.lmk import LMKEmbedding
        from llama_index.node_parser.lmk import LMKNodeParser
        from llama_index.vector_stores.lmk import LMKVectorStore

        embed_model = LMKEmbedding()
        vector_store = LMKVectorStore(embed_model=embed_model, location="./index")
        index = VectorStoreIndex.from_documents(
            documents,
            storage_context=StorageContext.from_defaults(vector_store=vector_store),
            transformations=[LMKNodeParser(embed_model=embed_model)],
            embed_model=embed_model,
        )
        ```

    The store opens on first use; pickles and dicts hold settings, so that a copy opens the same
    folder or server, and a copy of ":memory:" is empty; a copy of one on `qdrant_client` needs a
    client again. Async methods run the same code in a
    thread. Nodes come back as they were stored, without their embedding.
    """

    model_config = ConfigDict(extra="forbid")

    stores_text: bool = True
    is_embedding_query: bool = True
    collection_name: str = "llama_index"
    embed_model: Annotated[SerializeAsAny[BaseEmbedding], BeforeValidator(_embed_model)] = Field(
        default_factory=LMKEmbedding
    )
    location: Annotated[str, BeforeValidator(_location)] = ":memory:"
    qdrant_client: Any = Field(default=None, exclude=True, repr=False)
    api_key: SecretStr | None = Field(default=None, exclude=True)
    options: CollectionOptions | None = None
    prefer_grpc: bool = False
    timeout: int = 60
    fusion: Fusion | None = None

    _store: QdrantStore | None = PrivateAttr(default=None)

    @classmethod
    def class_name(cls) -> str:
        """Return the name used in serialized form."""
        return "LMKVectorStore"

    @field_serializer("location")
    def _serialized_location(self, location: str) -> str:
        # Else a copy of a store on a client would open an empty one in memory, and say nothing.
        return location if self.qdrant_client is None else _CLIENT_LOCATION

    @property
    def store(self) -> QdrantStore:
        """The store underneath, opened on first use."""
        if self._store is not None:
            return self._store
        with _OPENING:
            if self._store is None:
                self._store = QdrantStore(
                    self.collection_name,
                    encoder=encoder_of(self.embed_model),
                    location=self.location,
                    client=self.qdrant_client,
                    api_key=self.api_key.get_secret_value() if self.api_key else None,
                    options=_with_indexes(self.options or CollectionOptions()),
                    prefer_grpc=self.prefer_grpc,
                    timeout=self.timeout,
                )
            return self._store

    @property
    def client(self) -> QdrantStore:
        """As `store`."""
        return self.store

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Store nodes; one that is there already is replaced, if it has changed.

        Returns:
            their ids, in order. A blank node is not stored, which is logged.

        Raises:
            InputError: a node can't be stored (metadata that JSON can't hold, an embedding of
                another width, landmarks of another encoder), and then none is; or one can't be
                encoded, and then others are.
        """
        refuse_options("LMKVectorStore", kwargs)
        embeddings = embeddings_of(nodes, self.store.encoder)
        documents = [to_document(*pair) for pair in zip(nodes, embeddings, strict=True)]
        problems = list(self.store.check(documents))
        _refuse_faults(problems)
        if problems:
            _LOG.warning("%d nodes have no text and are not stored", len(problems))
        pairs = list(zip(documents, embeddings, strict=True))
        given = [(document, embedding) for document, embedding in pairs if embedding is not None]
        _refuse_faults(self.store.add_encoded(given).skipped)
        bare = [document for document, embedding in pairs if embedding is None]
        _refuse_faults(self.store.add(bare).skipped)
        return [document.id for document in documents]

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """As `add`, off the event loop."""
        return await asyncio.to_thread(self.add, nodes, **kwargs)

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a source document; an unknown one changes nothing."""
        refuse_options("LMKVectorStore", delete_kwargs)
        if not isinstance(ref_doc_id, str):
            raise InputError(f"ref_doc_id is {ref_doc_id!r}; expected a string")
        self.store.delete_where(Eq(SOURCE_ID, ref_doc_id))

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """As `delete`, off the event loop."""
        await asyncio.to_thread(self.delete, ref_doc_id, **delete_kwargs)

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete the nodes that have one of the ids, if given, and fulfill the filters, if given.

        Raises:
            InputError: neither is given, or filters without a condition; `clear` deletes
                everything.
        """
        refuse_options("LMKVectorStore", delete_kwargs)
        if filters is not None and not filters.filters:
            raise InputError("the filters hold no condition; use clear() to delete all nodes")
        if node_ids is None and filters is None:
            raise InputError("neither node_ids nor filters given; use clear() to delete all nodes")
        self.store.delete(self._ids(node_ids, filters))

    async def adelete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """As `delete_nodes`, off the event loop."""
        await asyncio.to_thread(self.delete_nodes, node_ids, filters, **delete_kwargs)

    def clear(self) -> None:
        """Delete all nodes; the collection stays."""
        self.store.delete_where(And())

    async def aclear(self) -> None:
        """As `clear`, off the event loop."""
        await asyncio.to_thread(self.clear)

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return the nodes that have one of the ids and fulfill the filters; all if none given."""
        ids = self._ids(node_ids, filters)
        pages = (self.store.get(ids[at : at + _PAGE]) for at in range(0, len(ids), _PAGE))
        return [to_node(document.metadata, document.text) for page in pages for document in page]

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """As `get_nodes`, off the event loop."""
        return await asyncio.to_thread(self.get_nodes, node_ids, filters)

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Find nodes by their landmarks; similarities are in [-1, 1], in HYBRID in [0, 1].

        Args:
            query: in DEFAULT, MMR or HYBRID mode. Its embedding counts, else its text is encoded;
                where the embedding is that of the text, as an index makes it, the text's parts
                are looked for too (see `lmk_rag.Retriever`).
                All of filters, doc_ids and node_ids must hold (node_ids=[], which an index passes
                when it has no say, is none). HYBRID looks for the words of `query_str` as well;
                `alpha` is the weight of the landmarks (None: as `fusion` has it), `hybrid_top_k`
                counts before `similarity_top_k`, and `sparse_top_k` is how many nodes are
                taken by words, 400 at least.
            **kwargs: `mmr_prefetch_factor`: nodes that MMR chooses from, per node asked for.

        Raises:
            NotImplementedError: another mode, or a filter that can't be applied exactly.
            InputError: no query, one of another width, `similarity_top_k` below 1, or HYBRID
                without `query_str`.
            ConfigError: `alpha` is outside [0, 1].
        """
        factor = kwargs.pop("mmr_prefetch_factor", 4.0)
        refuse_options("LMKVectorStore", kwargs)
        if query.mode not in _MODES:
            raise NotImplementedError(
                "LMKVectorStore knows the query modes default, mmr and hybrid, not "
                f"{query.mode.value!r}"
            )
        mmr, hybrid = (query.mode is mode for mode in _MODES[1:])
        k = query.similarity_top_k
        asked = query_of(self.store.encoder, query.query_str, query.query_embedding)
        if hybrid and not (query.query_str or "").strip() and query.query_embedding is not None:
            raise InputError(
                "the query has an embedding only, and hybrid mode needs its words too; give "
                "query_str, or use the default mode"
            )
        if mmr and k > 0:
            wanted = max(k, int(k * factor))
        else:
            wanted = query.hybrid_top_k if hybrid and query.hybrid_top_k is not None else k
        hits = self._retriever(query).search_documents(
            asked,
            k=wanted,
            mode="hybrid" if hybrid else "auto",
            words=query.query_str if hybrid else None,
            filter=build_filter(
                query.filters, doc_ids=query.doc_ids, node_ids=query.node_ids or None
            ),
        )
        found = {hit.document_id: hit.score for hit in hits}
        if mmr and found:
            assert not isinstance(asked, str), "a blank text finds nothing"
            found = diverse(self.store, asked.vector, list(found), k, query.mmr_threshold)
        stored = self.store.get(list(found))
        return VectorStoreQueryResult(
            nodes=[to_node(document.metadata, document.text) for document in stored],
            similarities=[found[document.id] for document in stored],
            ids=[document.id for document in stored],
        )

    def _retriever(self, query: VectorStoreQuery) -> Retriever:
        fusion = self.fusion or Fusion()
        if query.mode is VectorStoreQueryMode.HYBRID and query.alpha is not None:
            if not 0 <= query.alpha <= 1:
                raise ConfigError(f"alpha is {query.alpha!r}; expected a number from 0 to 1")
            fusion = replace(fusion, words=1 - query.alpha)
        candidates = max(CANDIDATES, query.sparse_top_k or 0)
        return Retriever(self.store, candidates=candidates, fusion=fusion)

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """As `query`, off the event loop."""
        return await asyncio.to_thread(self.query, query, **kwargs)

    def close(self) -> None:
        """Let the folder or connection go; the next use opens it again."""
        with _OPENING:
            if self._store is not None:
                self._store.close()
                self._store = None

    def _ids(self, node_ids: list[str] | None, filters: MetadataFilters | None) -> list[str]:
        if node_ids is not None and filters is None:
            return node_ids
        where = build_filter(filters, node_ids=node_ids)
        return [info.id for info in self.store.documents(where)]

    def __getstate__(self) -> dict[str, Any]:
        if self.qdrant_client is not None:
            raise TypeError("a store on a client of yours can't be pickled; give it a location")
        bare = self.model_copy()
        bare.__pydantic_private__ = None  # an open store is no setting
        return super(LMKVectorStore, bare).__getstate__()


def _refuse_faults(problems: Iterable[Skipped]) -> None:
    for problem in problems:
        if problem.is_error:
            raise InputError(f"node {problem.document_id!r} is not stored: {problem.reason}")
