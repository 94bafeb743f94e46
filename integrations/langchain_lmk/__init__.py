"""LangChain components over lmk-rag.

LMKTextSplitter    documents -> pieces with exact offsets
LMKEmbeddings      texts -> vectors
LMKVectorStore     documents in Qdrant with their landmarks; finds documents
LMKRetriever       the same store; finds passages with span, line and score

They translate and do nothing else: vectors, spans and scores are those of lmk-rag.
"""

from lmk_rag.errors import require_extra

require_extra("langchain_core", "langchain", "langchain_lmk")

from langchain_lmk.embeddings import LMKEmbeddings  # noqa: E402  # after the check above
from langchain_lmk.retrievers import LMKRetriever  # noqa: E402
from langchain_lmk.splitters import LMKTextSplitter  # noqa: E402
from langchain_lmk.vectorstores import LMKVectorStore  # noqa: E402

__all__ = ["LMKEmbeddings", "LMKRetriever", "LMKTextSplitter", "LMKVectorStore"]
