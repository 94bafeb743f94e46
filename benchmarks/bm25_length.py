"""BM25 alone by the length that counts as usual: what `lmk_rag.lexical.AVERAGE` rests on.

    .venv/bin/python benchmarks/bm25_length.py --data folder-with-sets --output benchmarks

A set is a folder in BEIR form (corpus.jsonl.gz, queries.jsonl.gz, qrels.tsv). BM25's length
normalization compares a document with an average. The store has to settle on one before it knows
the documents; this compares constants with the true average of each set, through the store's own
tokenizer, vectors and postings. No model is loaded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console

from lmk_rag.evaluation import judge, load_set
from lmk_rag.evaluation.metrics import means
from lmk_rag.evaluation.runs import Run
from lmk_rag.lexical import query_vector, terms
from lmk_rag.store.postings import Postings

AVERAGES = (256, 512, 1_024, 2_048, 4_096, 8_192)
SETS = ("qmsum_long", "leval_long", "peps_long", "xquad_article/en", "xquad_article/zh")


def measure(folder: Path) -> tuple[int, int, dict[str, float]]:
    """Return the documents and the average length of a set, and nDCG@10 by average."""
    data = load_set(folder)
    queries = {id_: query_vector(text) for id_, text in data.queries.items()}
    found = {document.id: terms(document.text) for document in data.documents}
    lengths = {document.id: len(document.text) for document in data.documents}
    true = round(np.mean([len(one.indices) for one in found.values()]))
    scores = {}
    for average in (*AVERAGES, true):
        postings = Postings(
            (id_, one.vector(0, lengths[id_], average=average)) for id_, one in found.items()
        )
        run = {}
        for id_, query in queries.items():
            ids, values = postings.search(query, None)
            best = np.argsort(-values, kind="stable")[:10]
            run[id_] = {ids[i]: float(values[i]) for i in best}
        judged = means(judge(Run("bm25", run), data.qrels))
        scores["true" if average == true else str(average)] = judged["nDCG@10"]
    return len(data.documents), true, scores


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--output", type=Path, help="write bm25_length.md here")
    options = parser.parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"there is no folder {options.data}; name one with evaluation sets")
    head = ["set", "documents", "terms each", *(f"{a:,}" for a in AVERAGES), "true average"]
    lines = [
        "# The length that BM25 counts as usual",
        "",
        "nDCG@10 of BM25 alone (k1 1.2, b 0.75) over whole documents, by the average length that",
        "it compares with, in terms. Made by `python benchmarks/bm25_length.py --data FOLDER`.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    for name in options.sets:
        documents, true, scores = measure(options.data / name)
        values = " | ".join(f"{score:.3f}" for score in scores.values())
        lines.append(f"| {name} | {documents:,} | {true:,} | {values} |")
        Console().print(lines[-1], markup=False, highlight=False)
    if options.output:
        (options.output / "bm25_length.md").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
