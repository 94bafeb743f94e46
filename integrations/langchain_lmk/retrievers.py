"""`LMKRetriever`: passages with their span, line and score."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
from pydantic import ConfigDict

from lmk_rag import Passage, QdrantStore, Retriever
from lmk_rag.config import PER_DOCUMENT
from lmk_rag.fusion import CANDIDATES, Fusion
from lmk_rag.retriever import Mode


class LMKRetriever(BaseRetriever):
    """Find the passages that answer a query: the best landmarks, out to sentence ends.

    Key init args:
        store: a `lmk_rag.QdrantStore`, or that of a vector store: `vector_store.store`.
        k: the most passages.
        filter, mode, passage_tokens, per_document: as in `lmk_rag.Retriever.search`.
        candidates, fusion: as in `lmk_rag.Retriever`.

    Instantiate:
        ```python
        from langchain_lmk import LMKEmbeddings, LMKRetriever, LMKVectorStore

        vector_store = LMKVectorStore(LMKEmbeddings(), location="./index")
        retriever = LMKRetriever(store=vector_store.store, k=5)
        ```

    Use:
        ```python
        passages = retriever.invoke("when does the valve open?")
        passages = await retriever.ainvoke("when does the valve open?", k=3)
        ```

    A passage's metadata is its document's, and on top of it `document_id`, `start` and `end`
    (characters of the document), `line` (from 1), `score` (higher is better: from -1 to 1,
    in hybrid mode from 0 to 1; see `lmk_rag.Retriever.search`),
    `best_start` and `best_end` (the landmark that matched best). `source` is the document's own,
    or its id where it has none.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    store: QdrantStore
    k: int = 5
    filter: Any = None  # a lmk_rag.store.Filter; the store refuses anything else
    mode: Mode = "auto"
    passage_tokens: int = 256
    per_document: int = PER_DOCUMENT
    candidates: int = CANDIDATES
    fusion: Fusion | None = None

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002
        **options: Any,
    ) -> list[Document]:
        settings = {
            "k": self.k,
            "filter": self.filter,
            "mode": self.mode,
            "passage_tokens": self.passage_tokens,
            "per_document": self.per_document,
        }
        retriever = Retriever(self.store, candidates=self.candidates, fusion=self.fusion)
        return [_document(passage) for passage in retriever.search(query, **settings | options)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return await asyncio.to_thread(
            self._get_relevant_documents, query, run_manager=run_manager.get_sync(), **options
        )

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        params = super()._get_ls_params(**kwargs)
        params["ls_vector_store_provider"] = type(self.store).__name__
        params["ls_embedding_provider"] = type(self.store.encoder).__name__
        params["ls_embedding_model"] = self.store.encoder.name
        return params


def _document(passage: Passage) -> Document:
    return Document(
        page_content=passage.text,
        metadata={
            "source": passage.document_id,
            **passage.metadata,
            "document_id": passage.document_id,
            "start": passage.start,
            "end": passage.end,
            "line": passage.line,
            "score": passage.score,
            "best_start": passage.best_start,
            "best_end": passage.best_end,
        },
    )
