"""The same long documents through LlamaIndex and LangChain, as their users do it and with lmk-rag.

    .venv/bin/python -m pip install --group bench --constraint constraints.txt
    .venv/bin/python benchmarks/frameworks_side_by_side.py --data ../shared/data/eval

Four ways, one run, the same base weights (all-MiniLM-L6-v2) in float32, the same documents and
queries:

- LlamaIndex: SentenceSplitter, HuggingFaceEmbedding and QdrantVectorStore;
  LMKNodeParser, LMKEmbedding and LMKVectorStore
- LangChain: RecursiveCharacterTextSplitter, HuggingFaceEmbeddings and QdrantVectorStore;
  LMKEmbeddings and LMKVectorStore over whole documents

Pieces have 240 tokens and share 32 with their neighbor, so that none exceeds the model's 256.
Documents are ranked by their best piece (nDCG@10); the time of a query is the median over all
queries, embedding included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from langchain_core.documents import Document as LCDocument
from langchain_huggingface import HuggingFaceEmbeddings
from langchain_qdrant import QdrantVectorStore as LCQdrant
from langchain_text_splitters import RecursiveCharacterTextSplitter
from llama_index.core import Document as LIDocument
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.vector_stores.qdrant import QdrantVectorStore as LIQdrant
from qdrant_client import QdrantClient, models
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from langchain_lmk import LMKEmbeddings, LMKVectorStore
from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.node_parser.lmk import LMKNodeParser
from llama_index.vector_stores.lmk import LMKVectorStore as LILMKVectorStore
from lmk_rag.checkpoint import minilm
from lmk_rag.evaluation.metrics import judge, means
from lmk_rag.evaluation.runs import Run
from lmk_rag.evaluation.sets import limit, load_set

Search = Callable[[str], list[str]]
_PIECES = 50  # enough pieces to name ten documents
_TOKENS, _SHARED = 240, 32


@dataclass
class Way:
    """What one way cost and gave."""

    name: str
    index_s: float
    points: int
    vectors: int
    query_ms: float
    ndcg: float


def llama_index_stock(texts: dict[str, str]) -> tuple[int, int, Search]:
    """SentenceSplitter, HuggingFaceEmbedding and the stock Qdrant store."""
    client = QdrantClient(":memory:")
    embed_model = HuggingFaceEmbedding(
        model_name=str(minilm("the benchmark")), device="cpu", embed_batch_size=128
    )
    tokenizer = AutoTokenizer.from_pretrained(minilm("the benchmark"))
    index = VectorStoreIndex.from_documents(
        [LIDocument(text=text, id_=id_) for id_, text in texts.items()],
        storage_context=StorageContext.from_defaults(
            vector_store=LIQdrant(collection_name="stock", client=client)
        ),
        transformations=[
            SentenceSplitter(
                chunk_size=_TOKENS, chunk_overlap=_SHARED, tokenizer=tokenizer.tokenize
            )
        ],
        embed_model=embed_model,
    )
    retriever = index.as_retriever(similarity_top_k=_PIECES)
    count = client.count("stock").count
    return count, count, lambda q: [n.node.ref_doc_id for n in retriever.retrieve(q)]


def llama_index_lmk(texts: dict[str, str]) -> tuple[int, int, Search]:
    """LMKNodeParser and LMKVectorStore."""
    embed_model = LMKEmbedding(model_name=str(minilm("the benchmark")), dtype="float32")
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


def langchain_stock(texts: dict[str, str]) -> tuple[int, int, Search]:
    """RecursiveCharacterTextSplitter, HuggingFaceEmbeddings and the stock Qdrant store."""
    client = QdrantClient(":memory:")
    client.create_collection(
        "stock", models.VectorParams(size=384, distance=models.Distance.COSINE)
    )
    embeddings = HuggingFaceEmbeddings(
        model_name=str(minilm("the benchmark")),
        model_kwargs={"device": "cpu"},
        encode_kwargs={"batch_size": 128},
    )
    store = LCQdrant(client, "stock", embedding=embeddings)
    splitter = RecursiveCharacterTextSplitter.from_huggingface_tokenizer(
        AutoTokenizer.from_pretrained(minilm("the benchmark")),
        chunk_size=_TOKENS,
        chunk_overlap=_SHARED,
    )
    store.add_documents(
        splitter.split_documents(
            [LCDocument(text, metadata={"document": id_}) for id_, text in texts.items()]
        )
    )
    count = client.count("stock").count
    return (
        count,
        count,
        lambda q: [d.metadata["document"] for d in store.similarity_search(q, k=_PIECES)],
    )


def langchain_lmk(texts: dict[str, str]) -> tuple[int, int, Search]:
    """Whole documents into LMKVectorStore."""
    store = LMKVectorStore(LMKEmbeddings(model=minilm("the benchmark"), dtype="float32"))
    store.add_documents([LCDocument(text, id=id_) for id_, text in texts.items()])
    infos = list(store.store.documents())
    return (
        sum(info.n_segments for info in infos),
        sum(info.n_landmarks for info in infos),
        lambda q: [d.id or "" for d in store.similarity_search(q, k=10)],
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the set")
    parser.add_argument("--set", default="peps_long")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--output", type=Path, help="write frameworks_side_by_side.json here")
    options = parser.parse_args()
    data = limit(
        load_set(options.data / options.set), documents=options.documents, queries=options.queries
    )
    texts = {document.id: document.text for document in data.documents}
    queries = data.queries

    ways = []
    for name, build in (
        ("LlamaIndex, stock", lambda: llama_index_stock(texts)),
        ("LlamaIndex, lmk-rag", lambda: llama_index_lmk(texts)),
        ("LangChain, stock", lambda: langchain_stock(texts)),
        ("LangChain, lmk-rag", lambda: langchain_lmk(texts)),
    ):
        begin = time.perf_counter()
        points, vectors, search = build()
        index_s = time.perf_counter() - begin
        search(next(iter(queries.values())))
        times, ranked = [], {}
        for id_, query in queries.items():
            begin = time.perf_counter()
            found = search(query)
            times.append(time.perf_counter() - begin)
            order = list(dict.fromkeys(found))
            ranked[id_] = {document: -float(rank) for rank, document in enumerate(order)}
        ways.append(
            Way(
                name,
                index_s,
                points,
                vectors,
                1e3 * statistics.median(times),
                means(judge(Run(name, ranked), data.qrels))["nDCG@10"],
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
