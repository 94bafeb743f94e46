"""Nodes as documents of the store, and back.

A node is one `lmk_rag.Document`: id and text are the node's. Its metadata hold the user's, for
filters, and the rest of the node as JSON, in the form that LlamaIndex's own stores use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode, RelatedNodeInfo
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from llama_index.embeddings.lmk.landmarks import KEY
from lmk_rag import Document, DocumentEmbedding
from lmk_rag.errors import InputError
from lmk_rag.store.metadata import clean_metadata

# Ours, beside "_node_content" and "_node_type": what deletions and id filters go by, and what
# tells a node whose vector alone has changed.
NODE_ID, SOURCE_ID, VECTOR = "_node_id", "_source_id", "_vector"
# LlamaIndex's names for the source document; an entry of the user's by that name counts.
_SOURCE_ALIASES = ("document_id", "doc_id", "ref_doc_id")


def to_document(node: BaseNode, embedding: DocumentEmbedding | None) -> Document:
    """Turn a node into a document; the node is not changed.

    Args:
        node: any kind of node.
        embedding: what it will be stored with, or None where the store encodes the text.

    Raises:
        InputError: metadata that JSON can't hold; names the node and the key.
    """
    try:
        user = _clean(node.metadata)
        relations = {kind: _clean_relation(info) for kind, info in node.relationships.items()}
    except InputError as error:
        raise InputError(f"node {node.node_id!r}: {error}") from error
    bare = node.model_copy(update={"metadata": user, "relationships": relations, "embedding": None})
    kept = node_to_metadata_dict(bare, remove_text=True)
    metadata = user | {key: kept[key] for key in ("_node_content", "_node_type")}
    metadata[NODE_ID] = node.node_id
    if node.ref_doc_id is not None:
        metadata[SOURCE_ID] = node.ref_doc_id
        metadata = dict.fromkeys(_SOURCE_ALIASES, node.ref_doc_id) | metadata
    if embedding is not None:
        metadata[VECTOR] = hashlib.sha256(embedding.vector.tobytes()).hexdigest()[:16]
    return Document(node.node_id, node.get_content(MetadataMode.NONE), metadata)


def to_node(metadata: Mapping[str, Any], text: str) -> BaseNode:
    """Read a node from a document's metadata and its text."""
    return metadata_dict_to_node(dict(metadata), text=text)


def _clean(metadata: dict[str, Any]) -> dict[str, object]:
    return clean_metadata({key: value for key, value in metadata.items() if key != KEY})


def _clean_relation(
    info: RelatedNodeInfo | list[RelatedNodeInfo],
) -> RelatedNodeInfo | list[RelatedNodeInfo]:
    if isinstance(info, list):
        return [one.model_copy(update={"metadata": _clean(one.metadata)}) for one in info]
    return info.model_copy(update={"metadata": _clean(info.metadata)})
