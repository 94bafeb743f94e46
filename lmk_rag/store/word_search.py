"""Documents by words: BM25 of the best segment and of the whole document, added.

In its best segment a question's words stand together; over the document none is missed that
stands elsewhere. Both vectors hold the same terms, so a document's share is one sum.
"""

from __future__ import annotations

from dataclasses import replace

from lmk_rag.fusion import CANDIDATES
from lmk_rag.lexical import WordRule, query_vector
from lmk_rag.store.operations import Backend, Found, Where, missing_from
from lmk_rag.store.points import DOCUMENT_WORDS, WORDS


def search_words(
    backend: Backend, rule: WordRule, text: str, *, limit: int, where: Where
) -> list[Found]:
    """Find documents by words, best first.

    Args:
        backend: the collection.
        rule: what it counts of words.
        text: the query; one without words finds nothing.
        limit: documents.
        where: a filter.

    Returns:
        the best segment of each document, with the document's score. Exact as long as every
        document of the answer is among the first 400 (or `limit`) of either ranking.
    """
    query = query_vector(text, pairs=rule.pairs)
    if not query:
        return []
    if rule.document_average is None:
        return backend.search_words(query, using=WORDS, limit=limit, where=where)
    depth = max(limit, CANDIDATES)
    segments = backend.search_words(query, using=WORDS, limit=depth, where=where)
    wholes = backend.search_words(query, using=DOCUMENT_WORDS, limit=depth, where=where)
    # A sum needs both; where only one ranking has a document, ask the other for it.
    lacking = missing_from(segments, wholes, where)
    if lacking.values:
        segments += backend.search_words(
            query, using=WORDS, limit=len(lacking.values), where=lacking
        )
    lacking = missing_from(wholes, segments, where)
    if lacking.values:
        wholes += backend.search_words(
            query, using=DOCUMENT_WORDS, limit=len(lacking.values), where=lacking
        )
    shares = {hit.document_id: hit.score for hit in wholes}
    found = [replace(hit, score=hit.score + shares.get(hit.document_id, 0.0)) for hit in segments]
    return sorted(found, key=lambda hit: -hit.score)[:limit]
