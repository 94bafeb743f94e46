"""Documents and their vectors in Qdrant."""

from lmk_rag.store.candidates import Skipped
from lmk_rag.store.filters import And, Eq, Exists, Filter, In, Not, Or, Range
from lmk_rag.store.ingest import AddReport
from lmk_rag.store.opening import read_config
from lmk_rag.store.qdrant import DocumentInfo, QdrantStore
from lmk_rag.store.schema import CollectionOptions, DocumentEncoder

__all__ = [
    "AddReport",
    "And",
    "CollectionOptions",
    "DocumentEncoder",
    "DocumentInfo",
    "Eq",
    "Exists",
    "Filter",
    "In",
    "Not",
    "Or",
    "QdrantStore",
    "Range",
    "Skipped",
    "read_config",
]
