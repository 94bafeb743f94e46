"""What the first stage keeps of the full MaxSim top 10, on sets of long documents.

    make recall DATA=folder-with-sets

A set is a folder in BEIR form (corpus.jsonl.gz, queries.jsonl.gz, qrels.tsv). Every document is
encoded once; vectors are kept in --cache, which `lmk-rag eval` can share. For each query, the ten
best documents by MaxSim of the query's parts and all landmarks are compared with the documents of
the first 100, 200 and 400 candidates of a first stage: the document vectors alone, or the segments
by the sections that the store keeps (means of up to 8 landmarks).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from long_sets import LONG
from rich.console import Console

from lmk_rag import LandmarkEncoder
from lmk_rag.evaluation import load_set
from lmk_rag.evaluation.cache import ArrayCache
from lmk_rag.evaluation.encodings import Rows, encode_landmarks
from lmk_rag.scoring import max_sim
from lmk_rag.store.points import DOCUMENT, LANDMARKS, SECTIONS, document_points

CANDIDATES = (100, 200, 400)


def measure(folder: Path, encoder: LandmarkEncoder, cache: ArrayCache) -> dict[str, object]:
    """Measure one set."""
    data = load_set(folder)
    ours = encode_landmarks(encoder, data.texts, cache, show_progress=True)
    asked = encoder.encode_query_parts(list(data.queries.values()))
    queries = np.stack([query.vector for query in asked])
    points = [
        point
        for document, embedding in zip(data.documents, ours.embeddings, strict=True)
        for point in document_points(document, {}, embedding, "r")
    ]
    position = {document.id: i for i, document in enumerate(data.documents)}
    owner = np.array([position[str(point.payload["document_id"])] for point in points])
    sections = [point.vectors[SECTIONS] for point in points]
    first = np.cumsum([0, *map(len, sections[:-1])])
    landmarks = np.cumsum([0, *(len(point.vectors[LANDMARKS]) for point in points[:-1])])
    documents = np.flatnonzero(np.diff(owner, prepend=-1))
    best = np.stack(
        [
            np.argsort(-np.maximum.reduceat(scores, documents), kind="stable")[:10]
            for scores in (max_sim(query.rows, ours.rows.vectors, landmarks) for query in asked)
        ]
    )
    stages = {  # (queries, candidates) scores, and the document of each candidate
        DOCUMENT: (queries @ ours.documents.T, np.arange(len(data.documents))),
        SECTIONS: (Rows(np.concatenate(sections), first).best(queries), owner),
    }
    recall = {}
    for name, (scores, whose) in stages.items():
        order = whose[np.argsort(-scores, axis=1, kind="stable")]
        recall[name] = {str(count): kept(best, order[:, :count]) for count in CANDIDATES}
    return {
        "documents": len(data.documents),
        "queries": len(data.queries),
        "segments": len(points),
        "tokens": sum(e.n_tokens for e in ours.embeddings),
        "landmarks": sum(e.n_landmarks for e in ours.embeddings),
        "sections": sum(map(len, sections)),
        "recall": recall,
    }


def kept(best: np.ndarray, found: np.ndarray) -> float:
    """Return the share of (queries, 10) best documents among those (queries, candidates) found."""
    return float(np.mean([np.isin(*pair).mean() for pair in zip(best, found, strict=True)]))


def report(results: dict[str, dict], encoder: LandmarkEncoder) -> str:
    """Write the results as Markdown."""
    counts = ", ".join(str(n) for n in CANDIDATES)
    lines = [
        "# What the first stage keeps",
        "",
        f"Recall of the full MaxSim top 10 (documents) among the documents of the first {counts}",
        "candidates, mean over queries. Candidates are documents by their one vector, or segments",
        "of at most 1,024 tokens by their best section.",
        "Made by `make recall`; the figures are in `stage1_recall.json`.",
        "",
        f"`{encoder!r}`",
        "",
        "| set | documents | tokens | queries | first stage | candidates | rows | "
        + " | ".join(f"@{n}" for n in CANDIDATES)
        + " |",
        "|---" * (7 + len(CANDIDATES)) + "|",
    ]
    for name, found in results.items():
        head = f"| {name} | {found['documents']:,} | {found['tokens']:,} | {found['queries']:,}"
        for stage, candidates, rows in (
            (DOCUMENT, found["documents"], found["documents"]),
            (SECTIONS, found["segments"], found["sections"]),
        ):
            recall = " | ".join(f"{found['recall'][stage][str(n)]:.3f}" for n in CANDIDATES)
            lines.append(f"{head} | {stage} | {candidates:,} | {rows:,} | {recall} |")
            head = "| | | |"
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--sets", nargs="+", default=LONG)
    parser.add_argument("--cache", type=Path, default=Path("runs/vectors"))
    parser.add_argument("--output", type=Path, help="write stage1_recall.md and .json here")
    options = parser.parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"there is no folder {options.data}; name one with evaluation sets")
    results = {}
    with LandmarkEncoder() as encoder:
        for name in options.sets:
            results[name] = measure(options.data / name, encoder, ArrayCache(options.cache))
        text = report(results, encoder)
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
    if options.output:
        (options.output / "stage1_recall.md").write_text(text, "utf-8")
        (options.output / "stage1_recall.json").write_text(
            json.dumps(results, indent=2) + "\n", "utf-8"
        )


if __name__ == "__main__":
    main()
