"""`LMKRetriever`: a `Retriever` where LlamaIndex expects one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_index.core.callbacks import CallbackManager
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import (
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index.vector_stores.lmk import LMKVectorStore
from llama_index.vector_stores.lmk.embeddings import query_of
from llama_index.vector_stores.lmk.filters import build_filter
from llama_index.vector_stores.lmk.nodes import to_node
from lmk_rag import Passage, Retriever
from lmk_rag.config import PER_DOCUMENT
from lmk_rag.fusion import CANDIDATES
from lmk_rag.retriever import Mode

BEST_START, BEST_END = "lmk_best_start", "lmk_best_end"
_NAMESPACE = uuid.UUID("5b7e5b8e-6f0d-5a43-8a7b-2d7d5b1f3c90")


class LMKRetriever(BaseRetriever):
    """Find the passages that answer a query: the best landmarks, merged out to sentence ends.

    Args:
        vector_store: whose nodes are searched. A passage lies within one of them, so that nodes
            may be large, whole documents even (`LMKNodeParser(chunk_size=1_000_000)`).
        similarity_top_k: the most passages.
        filters, doc_ids: which nodes count.
        passage_tokens, per_node, mode, candidates: as in `lmk_rag.Retriever`, where `per_node` is
            called `per_document`. Hybrid mode looks for the words of `query_str`, whatever the
            texts to embed are, and fuses as `vector_store.fusion` says.
        callback_manager, verbose: as in every retriever.

    Examples:
        ```python
        from llama_index.retrievers.lmk import LMKRetriever

        retriever = LMKRetriever(vector_store=vector_store, similarity_top_k=5)
        for passage in retriever.retrieve("when does the valve open?"):
            print(passage.score, passage.node.start_char_idx, passage.text)
        ```

    A passage is a node with its own, stable id. `start_char_idx` and `end_char_idx` count in the
    source document, where the stored node has offsets; SOURCE is that document, PARENT the stored
    node. On top of its metadata, "lmk_best_start" and "lmk_best_end" tell where in the passage's
    text the best landmark lies. Scores lie in [-1, 1], in hybrid mode in [0, 1].
    """

    def __init__(
        self,
        vector_store: LMKVectorStore,
        *,
        similarity_top_k: int = 5,
        filters: MetadataFilters | None = None,
        doc_ids: Sequence[str] | None = None,
        passage_tokens: int = 256,
        per_node: int = PER_DOCUMENT,
        mode: Mode = "auto",
        candidates: int = CANDIDATES,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(callback_manager=callback_manager, verbose=verbose)
        self.vector_store = vector_store
        self.similarity_top_k = similarity_top_k
        self.filters = filters
        self.doc_ids = doc_ids
        self.passage_tokens = passage_tokens
        self.per_node = per_node
        self.mode: Mode = mode
        self.candidates = candidates

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        retriever = Retriever(
            self.vector_store.store, candidates=self.candidates, fusion=self.vector_store.fusion
        )
        passages = retriever.search(
            self._query(query_bundle),
            k=self.similarity_top_k,
            filter=build_filter(self.filters, doc_ids=self.doc_ids),
            mode=self.mode,
            passage_tokens=self.passage_tokens,
            per_document=self.per_node,
            words=query_bundle.query_str if self.mode == "hybrid" else None,
        )
        return [_with_score(passage) for passage in passages]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def _query(self, bundle: QueryBundle) -> Any:
        """Return what to search with: see `query_of`; of several texts the mean of their vectors.

        A blank text stays as it is: it finds nothing.
        """
        if bundle.embedding is not None:
            encoder = self.vector_store.store.encoder
            return query_of(encoder, bundle.query_str, bundle.embedding)
        texts = [text for text in bundle.embedding_strs if text.strip()]
        if len(texts) < 2:
            return "".join(texts)
        vector = self.vector_store.embed_model.get_agg_embedding_from_queries(texts)
        return np.asarray(vector, np.float32)


def _with_score(passage: Passage) -> NodeWithScore:
    stored = to_node(passage.metadata, passage.text)
    start = getattr(stored, "start_char_idx", None)
    if start is None and stored.source_node is None:
        start = 0  # the node is the document
    parent = RelatedNodeInfo(
        node_id=stored.node_id, node_type=stored.get_type(), metadata=stored.metadata
    )
    ours = {BEST_START: passage.best_start, BEST_END: passage.best_end}
    node = TextNode(
        id_=str(uuid.uuid5(_NAMESPACE, f"{stored.node_id}\x1f{passage.start}\x1f{passage.end}")),
        text=passage.text,
        start_char_idx=None if start is None else start + passage.start,
        end_char_idx=None if start is None else start + passage.end,
        metadata=stored.metadata
        | {key: position - passage.start for key, position in ours.items()},
        excluded_embed_metadata_keys=[*stored.excluded_embed_metadata_keys, *ours],
        excluded_llm_metadata_keys=[*stored.excluded_llm_metadata_keys, *ours],
        metadata_template=stored.metadata_template,
        metadata_seperator=stored.metadata_separator,
        relationships={
            NodeRelationship.SOURCE: stored.source_node or parent,
            NodeRelationship.PARENT: parent,
        },
    )
    return NodeWithScore(node=node, score=passage.score)
