"""`LMKTextSplitter`: documents into pieces that end at landmarks, with exact offsets."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.documents import BaseDocumentTransformer, Document

from langchain_lmk.embeddings import LMKEmbeddings
from lmk_rag import LandmarkChunker


class LMKTextSplitter(BaseDocumentTransformer):
    """Cut texts where landmarks end, at the best paragraph or sentence end in reach.

    Instantiate:
        ```python
        from langchain_lmk import LMKEmbeddings, LMKTextSplitter

        splitter = LMKTextSplitter(LMKEmbeddings(), chunk_tokens=256)
        ```

    Split:
        ```python
        pieces = splitter.split_documents(documents)
        pieces[0].metadata["start_index"], pieces[0].metadata["end_index"]
        ```

    Pieces are cut, never changed: `piece.page_content == source[start_index:end_index]`, and
    together they are the source, but for pieces of white space alone. Offsets count from the
    beginning of the `page_content` that was given, also where that is a piece of something else.
    A blank text has no pieces. Metadata is copied for every piece; ids are not kept, because
    pieces of one document can't share one.

    The model does not run for this: where landmarks stand depends on the tokens alone.

    Args:
        embeddings: whose tokenizer and settings place the landmarks; None: the default model's.
        chunk_tokens: the most tokens in a piece (a single landmark may hold more).
    """

    def __init__(self, embeddings: LMKEmbeddings | None = None, *, chunk_tokens: int = 256) -> None:
        encoder = (embeddings or LMKEmbeddings()).encoder
        self._chunker = LandmarkChunker(encoder, chunk_tokens=chunk_tokens)

    def split_text(self, text: str) -> list[str]:
        """Return the pieces of a text."""
        return [piece.page_content for piece in self._pieces(text, {})]

    def create_documents(
        self, texts: Iterable[str], metadatas: Iterable[dict[str, Any]] | None = None
    ) -> list[Document]:
        """Return the pieces of all texts; `metadatas`, if given, has one dict per text."""
        texts = list(texts)
        metadatas = [{} for _ in texts] if metadatas is None else list(metadatas)
        return [
            piece
            for text, metadata in zip(texts, metadatas, strict=True)
            for piece in self._pieces(text, metadata)
        ]

    def split_documents(self, documents: Iterable[Document]) -> list[Document]:
        """Return the pieces of all documents, which stay as they are."""
        return [
            piece
            for document in documents
            for piece in self._pieces(document.page_content, document.metadata)
        ]

    def transform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """As `split_documents`; takes no options."""
        if kwargs:
            raise TypeError(f"transform_documents takes no options, got {', '.join(kwargs)}")
        return self.split_documents(documents)

    def _pieces(self, text: str, metadata: dict[str, Any]) -> list[Document]:
        return [
            Document(
                page_content=text[start:end],
                metadata={**copy.deepcopy(metadata), "start_index": start, "end_index": end},
            )
            for start, end in self._chunker.spans(text)
            if not text[start:end].isspace() and start < end
        ]
