"""`LMKNodeParser`: documents into nodes along their landmarks, encoded once."""

from lmk_rag.errors import require_extra

require_extra("llama_index.core", "llama-index", "llama_index.node_parser.lmk")

from llama_index.node_parser.lmk.base import LMKNodeParser  # noqa: E402  # after the check above

__all__ = ["LMKNodeParser"]
