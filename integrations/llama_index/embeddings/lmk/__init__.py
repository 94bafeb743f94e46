"""`LMKEmbedding`: the landmark encoder as a LlamaIndex embedding model."""

from lmk_rag.errors import require_extra

require_extra("llama_index.core", "llama-index", "llama_index.embeddings.lmk")

from llama_index.embeddings.lmk.base import LMKEmbedding  # noqa: E402  # after the check above

__all__ = ["LMKEmbedding"]
