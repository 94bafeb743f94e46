"""The same long documents through LlamaIndex and LangChain, as their users do it and with lmk-rag.

    .venv/bin/python benchmarks/frameworks_side_by_side.py --data ../shared/data/eval

Six ways, one run, the same base weights (all-MiniLM-L6-v2), the same documents and queries:

- LlamaIndex: SentenceSplitter and its QdrantVectorStore; LMKNodeParser and LMKVectorStore
- LangChain: 256-token pieces and its QdrantVectorStore; LMKVectorStore over whole documents

The frameworks' own Hugging Face adapters pin other versions of sentence-transformers than this
environment has, so their part is played by sentence-transformers itself behind each framework's
embedding class: the same `encode` that those adapters call. Documents are ranked by their best
piece (nDCG@10); the time of a query is the median over all queries, embedding included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document as LCDocument
from langchain_core.embeddings import Embeddings
from langchain_qdrant import QdrantVectorStore as LCQdrant
from llama_index.core import Document as LIDocument
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.node_parser import SentenceSplitter
from llama_index.vector_stores.qdrant import QdrantVectorStore as LIQdrant
from qdrant_client import QdrantClient, models
from rich.console import Console
from rich.table import Table
from sentence_transformers import SentenceTransformer
from stage1_recall import read_jsonl, text_of

from langchain_lmk import LMKEmbeddings, LMKVectorStore
from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.node_parser.lmk import LMKNodeParser
from llama_index.vector_stores.lmk import LMKVectorStore as LILMKVectorStore
from lmk_rag.checkpoint import default_model

Search = Callable[[str], list[str]]
_PIECES = 50  # enough pieces to name ten documents


class LCPlain(Embeddings):
    """What langchain-huggingface does: `encode` of a SentenceTransformer."""

    def __init__(self, model: SentenceTransformer) -> None:
        self.model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts."""
        return self.model.encode(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        """Embed a query."""
        return self.model.encode([text])[0].tolist()


class LIPlain(BaseEmbedding):
    """What llama-index-embeddings-huggingface does: `encode` of a SentenceTransformer."""

    st: Any = None

    def _get_query_embedding(self, query: str) -> list[float]:
        return self.st.encode([query])[0].tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.st.encode([text])[0].tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self.st.encode(texts).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


@dataclass
class Way:
    """What one way cost and gave."""

    name: str
    index_s: float
    points: int
    vectors: int
    query_ms: float
    ndcg: float


def llama_index_stock(model: SentenceTransformer, texts: dict[str, str]) -> tuple[int, int, Search]:
    """SentenceSplitter (256 tokens, 32 overlap) and the stock Qdrant store."""
    client = QdrantClient(":memory:")
    tokenizer = model.tokenizer
    index = VectorStoreIndex.from_documents(
        [LIDocument(text=text, id_=id_) for id_, text in texts.items()],
        storage_context=StorageContext.from_defaults(
            vector_store=LIQdrant(collection_name="stock", client=client)
        ),
        transformations=[
            SentenceSplitter(chunk_size=240, chunk_overlap=32, tokenizer=tokenizer.tokenize)
        ],
        embed_model=LIPlain(st=model, embed_batch_size=128),
    )
    retriever = index.as_retriever(similarity_top_k=_PIECES)
    count = client.count("stock").count
    return count, count, lambda q: [n.node.ref_doc_id for n in retriever.retrieve(q)]


def llama_index_lmk(texts: dict[str, str]) -> tuple[int, int, Search]:
    """LMKNodeParser and LMKVectorStore."""
    embed_model = LMKEmbedding()
    vector_store = LILMKVectorStore(embed_model=embed_model)
    index = VectorStoreIndex.from_documents(
        [LIDocument(text=text, id_=id_) for id_, text in texts.items()],
        storage_context=StorageContext.from_defaults(vector_store=vector_store),
        transformations=[LMKNodeParser(embed_model=embed_model)],
        embed_model=embed_model,
    )
    retriever = index.as_retriever(similarity_top_k=_PIECES)
    infos = list(vector_store.store.documents())
    return (
        sum(info.n_segments for info in infos),
        sum(info.n_landmarks for info in infos),
        lambda q: [n.node.ref_doc_id for n in retriever.retrieve(q)],
    )


def langchain_stock(model: SentenceTransformer, texts: dict[str, str]) -> tuple[int, int, Search]:
    """Pieces of 256 tokens that overlap by 32, and the stock Qdrant store."""
    client = QdrantClient(":memory:")
    client.create_collection(
        "stock", models.VectorParams(size=384, distance=models.Distance.COSINE)
    )
    store = LCQdrant(client, "stock", embedding=LCPlain(model))
    pieces = [
        LCDocument(piece, metadata={"document": id_})
        for id_, text in texts.items()
        for piece in _token_pieces(model, text)
    ]
    store.add_documents(pieces)
    count = client.count("stock").count
    return (
        count,
        count,
        lambda q: [d.metadata["document"] for d in store.similarity_search(q, k=_PIECES)],
    )


def langchain_lmk(texts: dict[str, str]) -> tuple[int, int, Search]:
    """Whole documents into LMKVectorStore."""
    store = LMKVectorStore(LMKEmbeddings())
    store.add_documents([LCDocument(text, id=id_) for id_, text in texts.items()])
    infos = list(store.store.documents())
    return (
        sum(info.n_segments for info in infos),
        sum(info.n_landmarks for info in infos),
        lambda q: [d.id or "" for d in store.similarity_search(q, k=10)],
    )


def _token_pieces(model: SentenceTransformer, text: str) -> list[str]:
    # RecursiveCharacterTextSplitter lives in a package that is not needed otherwise; what it
    # gives from_huggingface_tokenizer is runs of tokens of this size.
    offsets = model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = offsets["offset_mapping"]
    return [
        text[spans[at][0] : spans[min(at + 240, len(spans)) - 1][1]]
        for at in range(0, max(1, len(spans) - 32), 208)
    ]


def ndcg_at_10(ranked: Sequence[str], relevant: dict[str, float]) -> float:
    """Return nDCG@10 with linear gains."""
    gains = [relevant.get(id_, 0.0) for id_ in list(dict.fromkeys(ranked))[:10]]
    best = sorted(relevant.values(), reverse=True)[:10]
    discount = 1 / np.log2(np.arange(10) + 2)
    return float(np.dot(gains, discount[: len(gains)]) / np.dot(best, discount[: len(best)]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the set")
    parser.add_argument("--set", default="peps_long")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--output", type=Path, help="write frameworks_side_by_side.json here")
    options = parser.parse_args()
    folder = options.data / options.set
    corpus = read_jsonl(folder / "corpus.jsonl.gz")[: options.documents]
    texts = {record["_id"]: text_of(record) for record in corpus}
    relevant: dict[str, dict[str, float]] = {}
    for line in (folder / "qrels.tsv").read_text("utf-8").splitlines()[1:]:
        query, document, score = line.split("\t")
        if document in texts:
            relevant.setdefault(query, {})[document] = float(score)
    queries = {q["_id"]: q["text"] for q in read_jsonl(folder / "queries.jsonl.gz")}
    queries = {id_: queries[id_] for id_ in list(relevant)[: options.queries]}
    model = SentenceTransformer(str(default_model()), device="cpu")

    ways = []
    for name, build in (
        ("LlamaIndex, stock", lambda: llama_index_stock(model, texts)),
        ("LlamaIndex, lmk-rag", lambda: llama_index_lmk(texts)),
        ("LangChain, stock", lambda: langchain_stock(model, texts)),
        ("LangChain, lmk-rag", lambda: langchain_lmk(texts)),
    ):
        begin = time.perf_counter()
        points, vectors, search = build()
        index_s = time.perf_counter() - begin
        search(next(iter(queries.values())))
        times, scores = [], []
        for id_, query in queries.items():
            begin = time.perf_counter()
            found = search(query)
            times.append(time.perf_counter() - begin)
            scores.append(ndcg_at_10(found, relevant[id_]))
        ways.append(
            Way(
                name,
                index_s,
                points,
                vectors,
                1e3 * statistics.median(times),
                float(np.mean(scores)),
            )
        )
        Console().print(ways[-1])
    table = Table(title=f"{options.set}: {len(texts)} documents, {len(queries)} queries")
    for column in ("", "index, s", "points", "vectors", "query, ms", "nDCG@10"):
        table.add_column(column, justify="right")
    for way in ways:
        table.add_row(
            way.name, f"{way.index_s:.0f}", f"{way.points:,}", f"{way.vectors:,}",
            f"{way.query_ms:.0f}", f"{way.ndcg:.3f}",
        )  # fmt: skip
    Console().print(table)
    if options.output:
        path = options.output / "frameworks_side_by_side.json"
        path.write_text(json.dumps([asdict(way) for way in ways], indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
