"""`LMKRetriever`: passages with exact offsets."""

from lmk_rag.errors import require_extra

require_extra("llama_index.core", "llama-index", "llama_index.retrievers.lmk")

from llama_index.retrievers.lmk.base import LMKRetriever  # noqa: E402  # after the check above

__all__ = ["LMKRetriever"]
