"""`LMKVectorStore`: nodes in Qdrant with all their landmarks."""

from lmk_rag.errors import require_extra

require_extra("llama_index.core", "llama-index", "llama_index.vector_stores.lmk")

from llama_index.vector_stores.lmk.base import LMKVectorStore  # noqa: E402  # after the check

__all__ = ["LMKVectorStore"]
