"""What the words of hybrid search should weigh: nDCG@10 by rule and weight.

    .venv/bin/python benchmarks/hybrid_weights.py --data folder-with-sets --output benchmarks

A set is a folder in BEIR form (corpus.jsonl.gz, queries.jsonl.gz, qrels.tsv). Landmarks and words
are asked once, as hybrid search asks them, and joined by every rule and weight. Vectors are kept in
--cache, which `lmk-rag eval` can share.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from long_sets import LONG
from rich.console import Console

from lmk_rag import DocumentHit, LandmarkEncoder, QdrantStore, Retriever
from lmk_rag.evaluation import judge, load_set
from lmk_rag.evaluation.cache import ArrayCache
from lmk_rag.evaluation.encodings import encode_landmarks
from lmk_rag.evaluation.metrics import means
from lmk_rag.evaluation.runs import Run
from lmk_rag.fusion import Fusion, fuse
from lmk_rag.store.operations import Found

WEIGHTS = (0.0, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 1.0)
FUSIONS = (*(Fusion("weighted", words=weight) for weight in WEIGHTS), Fusion("rrf", words=0.5))
SETS = (*LONG, "passkey_long")


def measure(folder: Path, encoder: LandmarkEncoder, cache: ArrayCache) -> list[float]:
    """Return nDCG@10 of a set by fusion."""
    data = load_set(folder)
    ours = encode_landmarks(encoder, data.texts, cache, show_progress=True)
    embeddings = encoder.encode_query_parts(list(data.queries.values()))
    runs: list[dict[str, dict[str, float]]] = [{} for _ in FUSIONS]
    with QdrantStore("weights", encoder=encoder) as store:
        store.add_encoded(zip(data.documents, ours.embeddings, strict=True))
        retriever, n = Retriever(store), len(data.documents)
        for (id_, text), embedding in zip(data.queries.items(), embeddings, strict=True):
            near = scores_of(retriever.search_documents(embedding, k=n, mode="exact"))
            words = scores_of(store.search_words(text, limit=n))
            for run, fusion in zip(runs, FUSIONS, strict=True):
                run[id_] = dict(list(fuse(near, words, fusion).items())[:10])
    return [means(judge(Run("hybrid", run), data.qrels))["nDCG@10"] for run in runs]


def scores_of(hits: Iterable[Found | DocumentHit]) -> dict[str, float]:
    """Return the score of each document that was found."""
    return {hit.document_id: hit.score for hit in hits}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--cache", type=Path, default=Path("runs/vectors"))
    parser.add_argument("--output", type=Path, help="write hybrid_weights.md here")
    options = parser.parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"there is no folder {options.data}; name one with evaluation sets")
    head = ["set", *(f"{fusion.words:g}" for fusion in FUSIONS[:-1]), "by ranks, 0.5"]
    lines = [
        "# What words weigh in hybrid search",
        "",
        "nDCG@10 of hybrid search by the weight of the words, all documents and queries. 0 is",
        "landmarks alone, 1 words alone; the last column joins ranks instead of scores.",
        "Made by `python benchmarks/hybrid_weights.py --data FOLDER`.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    rows = []
    with LandmarkEncoder() as encoder:
        for name in options.sets:
            row = measure(options.data / name, encoder, ArrayCache(options.cache))
            rows += [row] if name in LONG else []
            lines.append(f"| {name} | {' | '.join(f'{score:.3f}' for score in row)} |")
            Console().print(lines[-1], markup=False, highlight=False, soft_wrap=True)
    if rows:
        overall = " | ".join(f"{score:.3f}" for score in np.mean(rows, axis=0))
        lines.append(f"| mean of long sets | {overall} |")
    if options.output:
        (options.output / "hybrid_weights.md").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
