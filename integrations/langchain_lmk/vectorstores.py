"""`LMKVectorStore`: a `QdrantStore` where LangChain expects a `VectorStore`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import run_in_executor
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from qdrant_client import QdrantClient

import lmk_rag
from langchain_lmk.embeddings import LMKEmbeddings
from lmk_rag.errors import InputError, refuse_options
from lmk_rag.fusion import Fusion
from lmk_rag.plain_encoder import PlainEncoder
from lmk_rag.queries import checked
from lmk_rag.retriever import Mode
from lmk_rag.store import CollectionOptions, DocumentEncoder, Filter
from lmk_rag.types import DocumentHit, Floats, QueryEmbedding


class LMKVectorStore(VectorStore):
    """Keep documents in Qdrant, with all their landmarks, and find them by their best one.

    Setup:
        pip install 'lmk-rag[langchain]'

    Key init args:
        embedding: `LMKEmbeddings`; or any other `Embeddings`, which gives one vector a document.
        collection_name: made if it is not there; one made by another model is refused. Of other
            `Embeddings` class, width and `model`, `model_name` or `model_id` tell models apart.
        location: ":memory:", a folder, or the URL of a Qdrant server. Ignored with `client`.
        client, api_key, options, prefer_grpc, timeout: as in `lmk_rag.QdrantStore`.
        fusion: as in `lmk_rag.Retriever`.

    Instantiate:
        ```python
        from langchain_lmk import LMKEmbeddings, LMKVectorStore

        vector_store = LMKVectorStore(LMKEmbeddings(), location="./index")
        ```

    Add Documents:
        ```python
        ids = vector_store.add_documents([Document("a text of any length", id="a")])
        ```

    Delete Documents:
        ```python
        vector_store.delete(["a"])
        ```

    Search:
        ```python
        vector_store.similarity_search("which text?", k=4)
        vector_store.similarity_search_with_score("which text?")  # higher is better, -1 to 1
        vector_store.similarity_search("part AB-1234", mode="hybrid")  # by words as well
        ```

    Search with filter:
        ```python
        from lmk_rag.store import And, Eq, Range

        where = And(Eq("lang", "en"), Range("year", gte=2020))
        vector_store.similarity_search("pump", filter=where)
        ```

    Async:
        Every method has its `a...` twin, which runs the same code in a thread.

    Use as Retriever:
        ```python
        vector_store.as_retriever(search_type="mmr", search_kwargs={"k": 4})
        vector_store.as_retriever(search_kwargs={"mode": "hybrid"})
        ```

    Found documents equal the stored ones. For passages with their offsets, and for closing a
    folder, use `store`: `LMKRetriever(store=vector_store.store)`, `vector_store.store.close()`.
    """

    def __init__(
        self,
        embedding: Embeddings,
        *,
        collection_name: str = "langchain",
        location: str | Path = ":memory:",
        client: QdrantClient | None = None,
        api_key: str | None = None,
        options: CollectionOptions | None = None,
        prefer_grpc: bool = False,
        timeout: int = 60,
        fusion: Fusion | None = None,
    ) -> None:
        self._embedding = embedding
        self.store = lmk_rag.QdrantStore(
            collection_name,
            encoder=_encoder(embedding),
            location=location,
            client=client,
            api_key=api_key,
            options=options,
            prefer_grpc=prefer_grpc,
            timeout=timeout,
        )
        self._retriever = lmk_rag.Retriever(self.store, fusion=fusion)

    @property
    def embeddings(self) -> Embeddings:
        """What was given as `embedding`."""
        return self._embedding

    def add_documents(
        self,
        documents: Iterable[Document],
        *,
        ids: Sequence[str | None] | None = None,
        batch_size: int | None = None,  # noqa: ARG002  # `index` passes it
        **kwargs: Any,
    ) -> list[str]:
        """Store documents; what is stored already and unchanged is not encoded again.

        Args:
            documents: any iterable; they are not changed.
            ids: any non-empty strings; they count before the documents' own, and None (or no id
                at all) gets a new one.
            batch_size: not used: batches are made by tokens and bytes, whatever comes in.
            **kwargs: none are known.

        Returns:
            the ids, in the order of the documents.

        Raises:
            InputError: names the first document that can't be stored: one with a blank text or
                metadata that JSON can't hold, and then none is stored; or one that can't be
                encoded, and then the others are.
        """
        refuse_options("LMKVectorStore", kwargs)
        documents = list(documents)
        own = [document.id for document in documents] if ids is None else list(ids)
        _check_length("ids", own, documents)
        named = [
            lmk_rag.Document(
                str(uuid.uuid4()) if id_ is None else id_, document.page_content, document.metadata
            )
            for id_, document in zip(own, documents, strict=True)
        ]
        for index, document in enumerate(named):
            for problem in self.store.check([document]):
                raise InputError(f"document {index} ({problem.document_id!r}): {problem.reason}")
        stored_ids = [document.id for document in named]
        for problem in self.store.add(named).skipped:
            index = stored_ids.index(problem.document_id)
            raise InputError(f"document {index} is not stored: {problem.reason}")
        return stored_ids

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: Iterable[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Store texts, with one dict of metadata each if given; otherwise as `add_documents`."""
        texts = list(texts)
        listed = list(repeat({}, len(texts))) if metadatas is None else list(metadatas)
        _check_length("metadatas", listed, texts)
        documents = [
            Document(page_content=text, metadata=metadata or {})
            for text, metadata in zip(texts, listed, strict=True)
        ]
        return self.add_documents(documents, ids=ids, **kwargs)

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        embedding: Embeddings,
        metadatas: Iterable[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> LMKVectorStore:
        """Make a store, with the constructor's options, and store texts in it."""
        made = cls(embedding, **kwargs)
        made.add_texts(texts, metadatas, ids=ids)
        return made

    def delete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by id; unknown ids change nothing, and None is refused."""
        refuse_options("LMKVectorStore", kwargs)
        self.store.delete(ids)  # type: ignore[arg-type]  # it refuses None, in its own words
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents that are stored, in the order asked."""
        return [
            Document(id=found.id, page_content=found.text, metadata=dict(found.metadata))
            for found in self.store.get(ids)
        ]

    def similarity_search(
        self,
        query: str,
        k: int = 4,
        filter: Filter | None = None,  # noqa: A002  # the ecosystem's name for it
        *,
        mode: Mode = "auto",
        **kwargs: Any,
    ) -> list[Document]:
        """Find documents, best first; `mode` as in `lmk_rag.Retriever`."""
        found = self.similarity_search_with_score(query, k, filter, mode=mode, **kwargs)
        return [document for document, _ in found]

    def similarity_search_with_score(
        self,
        query: str,
        k: int = 4,
        filter: Filter | None = None,  # noqa: A002
        *,
        mode: Mode = "auto",
        **kwargs: Any,
    ) -> list[tuple[Document, float]]:
        """Find documents, best first, with their scores as in `lmk_rag.DocumentHit`."""
        refuse_options("LMKVectorStore", kwargs)
        hits = self._retriever.search_documents(query, k=k, filter=filter, mode=mode)
        return self._documents(hits)

    def similarity_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = 4,
        filter: Filter | None = None,  # noqa: A002
        *,
        mode: Mode = "auto",
        words: str | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Find documents by the vector of a query, best first; hybrid mode needs `words` too."""
        refuse_options("LMKVectorStore", kwargs)
        hits = self._retriever.search_documents(
            _array(embedding), k=k, filter=filter, mode=mode, words=words
        )
        return [document for document, _ in self._documents(hits)]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,  # noqa: A002
        *,
        mode: Mode = "auto",
        **kwargs: Any,
    ) -> list[Document]:
        """Find documents that differ from each other; 0 is all difference, 1 all relevance."""
        if not query.strip():
            return []  # as every other search
        refuse_options("LMKVectorStore", kwargs)
        (embedding,) = self.store.encoder.encode_query_parts([query])
        return self._diverse(
            embedding,
            k=k,
            fetch_k=fetch_k,
            lambda_mult=lambda_mult,
            where=filter,
            mode=mode,
            words=query if mode == "hybrid" else None,
        )

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,  # noqa: A002
        *,
        mode: Mode = "auto",
        words: str | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """As `max_marginal_relevance_search`, by the vector of a query.

        The mode decides which `fetch_k` documents are chosen from; relevance is cosine.
        """
        refuse_options("LMKVectorStore", kwargs)
        return self._diverse(
            checked(_array(embedding), self.store.encoder.dim),
            k=k,
            fetch_k=fetch_k,
            lambda_mult=lambda_mult,
            where=filter,
            mode=mode,
            words=words,
        )

    def _diverse(
        self,
        query: QueryEmbedding,
        *,
        k: int,
        fetch_k: int,
        lambda_mult: float,
        where: Filter | None,
        mode: Mode,
        words: str | None,
    ) -> list[Document]:
        hits = self._retriever.search_documents(
            query, k=fetch_k if 0 < k < fetch_k else k, filter=where, mode=mode, words=words
        )
        vectors = self.store.document_vectors([hit.document_id for hit in hits])
        hits = [hit for hit in hits if hit.document_id in vectors]
        rows = [vectors[hit.document_id].tolist() for hit in hits]
        chosen = maximal_marginal_relevance(query.vector, rows, lambda_mult=lambda_mult, k=k)
        return [document for document, _ in self._documents([hits[i] for i in chosen])]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        found = self.similarity_search_with_score(query, k, **kwargs)
        # Fused scores lie between 0 and 1 already.
        relevance = float if kwargs.get("mode") == "hybrid" else self._select_relevance_score_fn()
        return [(document, relevance(score)) for document, score in found]

    async def _asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        return await run_in_executor(
            None, self._similarity_search_with_relevance_scores, query, k, **kwargs
        )

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda score: (score + 1) / 2

    def _documents(self, hits: list[DocumentHit]) -> list[tuple[Document, float]]:
        found = {d.id: d for d in self.get_by_ids([hit.document_id for hit in hits])}
        return [(found[h.document_id], h.score) for h in hits if h.document_id in found]


def _encoder(embedding: Embeddings) -> DocumentEncoder:
    if isinstance(embedding, LMKEmbeddings):
        return embedding.encoder
    return PlainEncoder(
        embedding.embed_documents,
        lambda queries: [embedding.embed_query(query) for query in queries],
        name=f"{type(embedding).__name__} {_model_of(embedding)}".strip(),
    )


def _model_of(embedding: object) -> str:
    """Return what a model is called, "" where nothing says so; some keep the model itself there."""
    while hasattr(embedding, "underlying_embeddings"):  # of a cache
        embedding = embedding.underlying_embeddings
    names = (getattr(embedding, name, None) for name in ("model", "model_name", "model_id"))
    return next((str(name) for name in names if isinstance(name, str | Path) and str(name)), "")


def _array(vector: Sequence[float]) -> Floats:
    return np.asarray(vector, np.float32)


def _check_length(name: str, given: Sequence[object], items: Sequence[object]) -> None:
    if len(given) != len(items):
        raise InputError(f"{len(given)} {name} for {len(items)} documents; expected one each")
