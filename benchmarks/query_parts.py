"""What reading a query in parts gives: nDCG@10 by the tokens in a part.

    .venv/bin/python benchmarks/query_parts.py --data folder-with-sets --output benchmarks

A set is a folder in BEIR form (corpus.jsonl.gz, queries.jsonl.gz, qrels.tsv). Documents are scored
as exact search scores them: MaxSim of the query and each segment, of which the best counts. The
first column has no parts, only the query's vector: the best landmark counts. Vectors are kept in
--cache, which `lmk-rag eval` can share.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from long_sets import LONG
from rich.console import Console

from lmk_rag import LandmarkEncoder, QueryEmbedding
from lmk_rag.evaluation import judge, load_set
from lmk_rag.evaluation.cache import ArrayCache
from lmk_rag.evaluation.encodings import encode_landmarks
from lmk_rag.evaluation.metrics import means
from lmk_rag.evaluation.runs import run_of
from lmk_rag.queries import in_parts, vector_only
from lmk_rag.scoring import max_sim
from lmk_rag.store.points import LANDMARKS, document_points

TOKENS = (None, 1, 2, 4, 8)  # of a part; None: no parts


def encode(
    encoder: LandmarkEncoder, texts: Sequence[str], tokens: int | None
) -> list[QueryEmbedding]:
    """Encode queries with parts of so many tokens."""
    if tokens is None:
        return [vector_only(vector) for vector in encoder.encode_queries(texts)]
    config = replace(encoder.config, granularity=tokens, boundary="token")
    with LandmarkEncoder(config=config) as finer:
        return [in_parts(embedding) for embedding in finer.encode_documents(texts)]


def measure(folder: Path, encoder: LandmarkEncoder, cache: ArrayCache, limit: int) -> list[float]:
    """Return nDCG@10 of a set by tokens in a part."""
    data = load_set(folder)
    asked = dict(list(data.queries.items())[:: max(1, len(data.queries) // limit)])
    ours = encode_landmarks(encoder, data.texts, cache, show_progress=True)
    sizes, documents = [], []  # landmarks of each segment, and the first segment of each document
    for document, embedding in zip(data.documents, ours.embeddings, strict=True):
        documents.append(len(sizes))
        points = document_points(document, {}, embedding, "r")
        sizes += [len(point.vectors[LANDMARKS]) for point in points]
    segments = np.cumsum(sizes) - sizes
    found = []
    for tokens in TOKENS:
        scores = np.stack(
            [
                np.maximum.reduceat(max_sim(query.rows, ours.rows.vectors, segments), documents)
                for query in encode(encoder, list(asked.values()), tokens)
            ]
        )
        run = run_of("parts", scores, list(asked), [document.id for document in data.documents])
        qrels = {id_: data.qrels[id_] for id_ in asked}
        found.append(means(judge(run, qrels))["nDCG@10"])
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--sets", nargs="+", default=LONG)
    parser.add_argument("--queries", type=int, default=500, help="about so many of each set")
    parser.add_argument("--cache", type=Path, default=Path("runs/vectors"))
    parser.add_argument("--output", type=Path, help="write query_parts.md here")
    options = parser.parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"there is no folder {options.data}; name one with evaluation sets")
    names = ["none" if tokens is None else str(tokens) for tokens in TOKENS]
    lines = [
        "# Queries in parts",
        "",
        "nDCG@10 of exact search by the tokens in a part of the query: all documents and about",
        f"{options.queries} queries of each set. With none, the query's vector alone is compared.",
        "Made by `python benchmarks/query_parts.py --data FOLDER`.",
        "",
        f"| set | {' | '.join(names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    rows = []
    with LandmarkEncoder() as encoder:
        for name in options.sets:
            cache = ArrayCache(options.cache)
            rows.append(measure(options.data / name, encoder, cache, options.queries))
            lines.append(f"| {name} | {' | '.join(f'{score:.3f}' for score in rows[-1])} |")
            Console().print(lines[-1], markup=False, highlight=False, soft_wrap=True)
    overall = " | ".join(f"{score:.3f}" for score in np.mean(rows, axis=0))
    lines.append(f"| mean | {overall} |")
    if options.output:
        (options.output / "query_parts.md").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
