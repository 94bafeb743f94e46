"""What the first stage keeps of the full MaxSim top 10, on sets of long documents.

    make recall DATA=folder-with-sets

A set is a folder in BEIR form (corpus.jsonl.gz, queries.jsonl.gz). Every document is encoded once;
embeddings are kept in --cache, so that another run is quick. For each query, the ten best
documents by MaxSim over all landmarks are compared with the first 50, 100 and 200 candidates of a
first stage: the document vectors alone, or the sections that the store keeps (means of up to 8
landmarks).
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from lmk_rag import Document, DocumentEmbedding, LandmarkEncoder
from lmk_rag.scoring import best_per_group, row_scores
from lmk_rag.store.points import DOCUMENT, LANDMARKS, SECTIONS, document_points

CANDIDATES = (50, 100, 200)
SETS = ("qmsum_long", "leval_long", "peps_long", "xquad_article/en")


def read_jsonl(path: Path) -> list[dict[str, str]]:
    """Read a gzipped file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def text_of(record: dict[str, str]) -> str:
    """Join title and text, as BEIR sets are read."""
    return f"{record['title']}\n{record['text']}" if record.get("title") else record["text"]


def embed(encoder: LandmarkEncoder, texts: list[str], cache: Path) -> list[DocumentEmbedding]:
    """Encode texts, or read what an earlier run kept; rows are kept in half precision."""
    layouts = [encoder.lay_out(text) for text in track(texts, "laying out", transient=True)]
    counts = [len(layout.spans) for layout in layouts]
    if not cache.exists():
        stream = encoder.iter_documents(texts)
        found = list(track(stream, "encoding", total=len(texts), transient=True))
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.savez(
            cache,
            vector=np.stack([e.vector for e in found]),
            landmarks=np.concatenate([e.landmarks for e in found]).astype(np.float16),
            norms=np.concatenate([e.norms for e in found]),
        )
    with np.load(cache) as kept:
        vectors, rows, norms = (kept[name] for name in ("vector", "landmarks", "norms"))
    if len(vectors) != len(texts) or len(rows) != sum(counts):
        raise SystemExit(f"{cache} is of other texts or settings; delete it and run again")
    embeddings = []
    for i, (layout, end) in enumerate(zip(layouts, np.cumsum(counts), strict=True)):
        own = slice(end - counts[i], end)
        embeddings.append(
            DocumentEmbedding(
                vector=vectors[i],
                landmarks=rows[own].astype(np.float32),
                norms=norms[own],
                spans=layout.spans,
                landmark_tokens=layout.landmark_tokens,
                n_windows=len(layout.windows),
            )
        )
    return embeddings


class Rows:
    """One vector name of all points, stacked."""

    def __init__(self, parts: list[np.ndarray]) -> None:
        parts = [np.atleast_2d(part) for part in parts]
        self.first = np.cumsum([0, *map(len, parts[:-1])])
        self.rows = np.concatenate(parts)

    def best(self, query: np.ndarray) -> np.ndarray:
        """Return the MaxSim of each point."""
        return best_per_group(row_scores(query, self.rows), self.first)


def measure(folder: Path, encoder: LandmarkEncoder, cache: Path) -> dict[str, object]:
    """Measure one set."""
    corpus = read_jsonl(folder / "corpus.jsonl.gz")
    queries = read_jsonl(folder / "queries.jsonl.gz")
    texts = [text_of(record) for record in corpus]
    embeddings = embed(encoder, texts, cache)
    points = []
    for record, text, embedding in zip(corpus, texts, embeddings, strict=True):
        points += document_points(Document(record["_id"], text), {}, embedding, "r")
    owner = np.array([point.payload["document_id"] for point in points])
    stages = {
        name: Rows([point.vectors[name] for point in points])
        for name in (DOCUMENT, SECTIONS, LANDMARKS)
    }
    recall = {name: dict.fromkeys(CANDIDATES, 0.0) for name in (DOCUMENT, SECTIONS)}
    for query in encoder.encode_queries([q["text"] for q in queries]):
        best = _distinct(owner[np.argsort(-stages[LANDMARKS].best(query), kind="stable")])[:10]
        for name in recall:
            order = np.argsort(-stages[name].best(query), kind="stable")
            for count in CANDIDATES:
                kept = set(owner[order[:count]])
                recall[name][count] += sum(id_ in kept for id_ in best) / len(best)
    return {
        "documents": len(corpus),
        "queries": len(queries),
        "points": len(points),
        "tokens": sum(e.n_tokens for e in embeddings),
        "landmarks": len(stages[LANDMARKS].rows),
        "sections": len(stages[SECTIONS].rows),
        "recall": {
            name: {str(n): total / len(queries) for n, total in by_count.items()}
            for name, by_count in recall.items()
        },
    }


def _distinct(ids: np.ndarray) -> list[str]:
    return list(dict.fromkeys(ids.tolist()))


def report(results: dict[str, dict], encoder: LandmarkEncoder) -> str:
    """Write the results as Markdown."""
    lines = [
        "# What the first stage keeps",
        "",
        "Recall of the full MaxSim top 10 (documents) among the first 50, 100 and 200 candidates,",
        "mean over queries.",
        "Made by `make recall`; the figures are in `stage1_recall.json`.",
        "",
        f"`{encoder!r}`",
        "",
        "| set | documents | tokens | queries | first stage | rows | @50 | @100 | @200 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        head = f"| {name} | {found['documents']:,} | {found['tokens']:,} | {found['queries']:,}"
        for stage in (DOCUMENT, SECTIONS):
            rows = found["points"] if stage == DOCUMENT else found["sections"]
            recall = " | ".join(f"{found['recall'][stage][str(n)]:.3f}" for n in CANDIDATES)
            lines.append(f"{head} | {stage} | {rows:,} | {recall} |")
            head = "| | | |"
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--cache", type=Path, default=Path("runs/embeddings"))
    parser.add_argument("--output", type=Path, help="write stage1_recall.md and .json here")
    options = parser.parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"there is no folder {options.data}; name one with evaluation sets")
    encoder = LandmarkEncoder()
    results = {}
    for name in options.sets:
        cache = options.cache / encoder.fingerprint / f"{name.replace('/', '_')}.npz"
        results[name] = measure(options.data / name, encoder, cache)
    text = report(results, encoder)
    Console().print(text, markup=False, highlight=False)
    if options.output:
        (options.output / "stage1_recall.md").write_text(text, "utf-8")
        (options.output / "stage1_recall.json").write_text(json.dumps(results, indent=2), "utf-8")


if __name__ == "__main__":
    main()
