"""RAG over long documents with landmark (LMK) pooling.

    text -> landmarks -> encoder -> spans / chunker -> store -> retriever -> passages
            ids and      Document-   character         Qdrant   two stages   Passage
            positions    Embedding   ranges

A landmark stands for every stretch of k tokens: a token after it, or the mean of its states. One
forward pass gives the document's vector (the mean of the landmark states) and a contextual vector
of every stretch (each landmark state).

Importing this package does not import torch; the names below load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import LMKError
from lmk_rag.types import (
    Chunk,
    Document,
    DocumentEmbedding,
    DocumentHit,
    Passage,
    QueryEmbedding,
)

if TYPE_CHECKING:
    from lmk_rag.chunker import LandmarkChunker
    from lmk_rag.encoder import LandmarkEncoder
    from lmk_rag.retriever import Retriever
    from lmk_rag.store import QdrantStore

__version__ = "0.1.0"

__all__ = [
    "Chunk",
    "Document",
    "DocumentEmbedding",
    "DocumentHit",
    "LMKError",
    "LandmarkChunker",
    "LandmarkConfig",
    "LandmarkEncoder",
    "Passage",
    "QdrantStore",
    "QueryEmbedding",
    "Retriever",
]

_LAZY = {
    "LandmarkChunker": "lmk_rag.chunker",
    "LandmarkEncoder": "lmk_rag.encoder",
    "QdrantStore": "lmk_rag.store",
    "Retriever": "lmk_rag.retriever",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'lmk_rag' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))
