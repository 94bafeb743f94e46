"""`LMKNodeParser`: a `LandmarkChunker` where LlamaIndex expects a `NodeParser`."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from llama_index.core.bridge.pydantic import BeforeValidator, ConfigDict, Field, field_validator
from llama_index.core.node_parser import NodeParser
from llama_index.core.node_parser.interface import IdFuncCallable
from llama_index.core.node_parser.node_utils import build_nodes_from_splits, default_id_func
from llama_index.core.schema import BaseNode, Document, MetadataMode, TextNode

from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.embeddings.lmk.landmarks import KEY, pack
from lmk_rag import DocumentEmbedding, LandmarkChunker

_NAMESPACE = uuid.UUID("0f7b1c0a-3a0e-5d2b-9c55-0c6c5f1f8e21")


def stable_id(i: int, doc: BaseNode) -> str:
    """Return the id of a document's node `i`: the same at every ingestion."""
    return str(uuid.uuid5(_NAMESPACE, f"{doc.node_id}\x1f{i}"))


def _embed_model(value: object) -> object:
    return LMKEmbedding.from_dict(dict(value)) if isinstance(value, Mapping) else value


class LMKNodeParser(NodeParser):
    """Cut documents where landmarks end, at the best paragraph or sentence end in reach.

    A document is encoded whole, so that every node's vector knows its surroundings; node vectors
    and landmarks come out of that one pass and nothing is embedded again later. Metadata is not
    encoded.

    Args:
        embed_model: the encoder; give the index and the vector store the same.
        chunk_size: the most tokens in a node (a single landmark may hold more). A very large one
            keeps documents whole, which suits `LMKRetriever`.
        include_landmarks: let nodes bring their landmarks along for `LMKVectorStore`, in the
            metadata entry "lmk_landmarks" (see `llama_index.embeddings.lmk.landmarks`). It is
            kept from embedding and prompt texts, and the store takes it out; other vector stores
            have no use for it.
        include_metadata, include_prev_next_rel, callback_manager: as in every node parser.
        id_func: makes node ids; the default gives the same ids at every ingestion.

    Examples:
        ```python
        from llama_index.node_parser.lmk import LMKNodeParser

        nodes = LMKNodeParser(chunk_size=256).get_nodes_from_documents(documents)
        nodes[0].start_char_idx, nodes[0].end_char_idx, nodes[0].embedding
        ```

    Nodes are cut, never changed: `node.text == document.text[start_char_idx:end_char_idx]`.
    Together they are the document, but for stretches of white space alone; a blank document has
    none.
    """

    model_config = ConfigDict(extra="forbid")

    embed_model: Annotated[LMKEmbedding, BeforeValidator(_embed_model)] = Field(
        default_factory=LMKEmbedding, description="The encoder."
    )
    chunk_size: int = Field(default=256, gt=0, description="The most tokens in a node.")
    include_landmarks: bool = Field(default=True, description="Let nodes bring landmarks along.")
    id_func: IdFuncCallable = Field(default=stable_id, description="Makes node ids.")

    @field_validator("id_func", mode="before")
    @classmethod
    def _known_id_func(cls, value: object) -> object:
        if value is None:
            return stable_id
        if not isinstance(value, Mapping):
            return value
        known = {function.__name__: function for function in (stable_id, default_id_func)}
        name = value.get("id_func_name")
        if name not in known:
            raise ValueError(f"id_func {name!r} can't be read from a dict; pass the function")
        return known[name]

    @classmethod
    def class_name(cls) -> str:
        """Return the name used in serialized form."""
        return "LMKNodeParser"

    async def aget_nodes_from_documents(
        self, documents: Sequence[Document], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        """As `get_nodes_from_documents`, off the event loop."""
        return await asyncio.to_thread(
            self.get_nodes_from_documents, documents, show_progress, **kwargs
        )

    def _parse_nodes(
        self,
        nodes: Sequence[BaseNode],
        show_progress: bool = False,
        **kwargs: Any,  # noqa: ARG002  # pipelines hand on whatever they were given
    ) -> list[BaseNode]:
        texts = [(node, node.get_content(MetadataMode.NONE)) for node in nodes]
        texts = [(node, text) for node, text in texts if text.strip()]
        embeddings = self.embed_model.encoder.iter_documents(
            [text for _, text in texts], show_progress=show_progress
        )
        return [
            node
            for (parent, text), embedding in zip(texts, embeddings, strict=True)
            for node in self._nodes(parent, text, embedding)
        ]

    async def _aparse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        return await asyncio.to_thread(self._parse_nodes, nodes, show_progress, **kwargs)

    def _nodes(self, parent: BaseNode, text: str, embedding: DocumentEmbedding) -> list[TextNode]:
        encoder = self.embed_model.encoder
        chunker = LandmarkChunker(encoder, chunk_tokens=self.chunk_size)
        chunks = [chunk for chunk in chunker.chunk(text, embedding) if chunk.text.strip()]
        nodes = build_nodes_from_splits(
            [chunk.text for chunk in chunks], parent, id_func=self.id_func
        )
        for node, chunk in zip(nodes, chunks, strict=True):
            node.start_char_idx, node.end_char_idx = chunk.start, chunk.end
            node.embedding = chunk.vector.tolist()
            if self.include_landmarks:
                node.metadata[KEY] = pack(chunk, embedding, encoder.fingerprint)
                node.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, KEY]
                node.excluded_llm_metadata_keys = [*node.excluded_llm_metadata_keys, KEY]
        return nodes

    def _postprocess_parsed_nodes(
        self, nodes: list[BaseNode], parent_doc_map: dict[str, Document]
    ) -> list[BaseNode]:
        # The base class searches for each node's text and so moves repeated ones, and it copies
        # a node's metadata into its neighbors' relations, where landmarks have no place.
        kept = [(node, _offsets(node), node.metadata.pop(KEY, None)) for node in nodes]
        nodes = super()._postprocess_parsed_nodes(nodes, parent_doc_map)
        for node, offsets, landmarks in kept:
            node.start_char_idx, node.end_char_idx = offsets  # type: ignore[attr-defined]
            node.metadata = copy.deepcopy(node.metadata)  # else nested values are shared
            node.metadata.pop(KEY, None)  # that of a parent parsed by us
            if landmarks is not None:
                node.metadata[KEY] = landmarks
        return nodes


def _offsets(node: BaseNode) -> tuple[int | None, int | None]:
    assert isinstance(node, TextNode)
    return node.start_char_idx, node.end_char_idx
