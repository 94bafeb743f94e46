"""Embeddings between LlamaIndex and the store: those that nodes and queries bring, or none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode, MetadataMode

from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.embeddings.lmk.landmarks import unpack
from lmk_rag import DocumentEmbedding, QueryEmbedding
from lmk_rag.errors import InputError
from lmk_rag.plain_encoder import PlainEncoder
from lmk_rag.queries import checked
from lmk_rag.store import DocumentEncoder

_ROUNDING = 1e-3  # of a cosine of 1: what bfloat16 and batches of another shape make of it


def encoder_of(model: BaseEmbedding) -> DocumentEncoder:
    """Return an embedding model in the shape the store expects."""
    if isinstance(model, LMKEmbedding):
        return model.encoder
    return PlainEncoder(
        model.get_text_embedding_batch,
        lambda queries: [model.get_query_embedding(query) for query in queries],
        name=f"{model.class_name()} {model.model_name}",
    )


def embeddings_of(
    nodes: Sequence[BaseNode], encoder: DocumentEncoder
) -> list[DocumentEmbedding | None]:
    """Return what each node brings along, or None where the store is to encode its text.

    Raises:
        InputError: an embedding of another width, or landmarks of another encoder.
        NonFiniteError: an embedding with NaN or infinity, or of zeros only.
    """
    for node in nodes:
        if node.embedding is not None and len(node.embedding) != encoder.dim:
            raise InputError(
                f"node {node.node_id!r} has an embedding {len(node.embedding)} wide; the store's "
                f"embed_model makes {encoder.dim}: give index and store the same one"
            )
    if isinstance(encoder, PlainEncoder):
        return [_one_row(node) for node in nodes]
    return [unpack(node, encoder.fingerprint) for node in nodes]


def query_of(
    encoder: DocumentEncoder, text: str | None, embedding: Sequence[float] | None
) -> str | QueryEmbedding:
    """Return what to search with: the embedding, or the text where there is none.

    An index sends the text along with its embedding. Where the encoder makes that embedding of
    that text, the text's parts are known too, for another forward pass; an embedding of something
    else, as of a made-up answer (HyDE), or of several windows, stands alone.
    """
    if embedding is None:
        if text is None:
            raise InputError("the query has neither an embedding nor a text")
        return encoder.encode_query_parts([text])[0] if text.strip() else text
    given = checked(np.asarray(embedding), encoder.dim)
    if isinstance(encoder, PlainEncoder) or not (text or "").strip():
        return given
    (own,) = encoder.encode_query_parts([str(text)])
    return own if own.vector @ given.vector > 1 - _ROUNDING else given


def _one_row(node: BaseNode) -> DocumentEmbedding | None:
    if node.embedding is None:
        return None
    vectors = [node.embedding]
    name = f"the embedding of node {node.node_id}"
    given = PlainEncoder(lambda _: vectors, lambda _: vectors, name=name)
    return given.encode_documents([node.get_content(MetadataMode.NONE)])[0]
