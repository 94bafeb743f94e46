"""BM25 alone by how documents are cut: what the size of a segment and BM25's usual length rest on.

    .venv/bin/python benchmarks/bm25_segments.py --data folder-with-sets --output benchmarks

A set is a folder in BEIR form (corpus.jsonl.gz, queries.jsonl.gz, qrels.tsv). Texts are cut as the
store cuts them, at paragraph ends, into segments of at most so many tokens; a document's score is
that of its best segment. Through the store's own tokenizer, vectors and postings. No vectors are
made.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console

from lmk_rag import LandmarkEncoder
from lmk_rag.chunker import end_grades
from lmk_rag.evaluation import judge, load_set
from lmk_rag.evaluation.metrics import means
from lmk_rag.evaluation.runs import Run
from lmk_rag.lexical import Terms, query_vector, terms
from lmk_rag.spans import group_stretches
from lmk_rag.store.postings import Postings
from lmk_rag.types import Ints

# Tokens in a segment at most, and the length in terms that counts as usual.
SETTINGS = (
    (256, 128),
    (512, 256),
    (1_024, 256),
    (1_024, 512),
    (1_024, 1_024),
    (2_048, 1_024),
    (4_096, 2_048),
    (None, 1_024),
    (None, None),  # whole documents, and the true average
)
SETS = (
    "qmsum_long",
    "leval_long",
    "peps_long",
    "xquad_article/en",
    "gesetze_de_long",
    "xquad_article/zh",
    "passkey_long",
)


def cuts_of(text: str, spans: Ints, tokens: Ints, limit: int | None) -> list[tuple[int, int]]:
    """Return the characters of each segment of a text."""
    if limit is None:
        return [(0, len(text))]
    groups = group_stretches(tokens, end_grades(text, spans), limit)
    return [(int(spans[first, 0]), int(spans[end - 1, 1])) for first, end in groups]


def measure(folder: Path, encoder: LandmarkEncoder) -> list[float]:
    """Return nDCG@10 of a set by setting."""
    data = load_set(folder)
    queries = {id_: query_vector(text) for id_, text in data.queries.items()}
    found: dict[str, Terms] = {d.id: terms(d.text) for d in data.documents}
    laid_out = {d.id: encoder.lay_out(d.text) for d in data.documents}
    true = round(np.mean([len(one.indices) for one in found.values()]))
    scores = []
    for limit, average in SETTINGS:
        segments = {}
        owner = {}
        for document in data.documents:
            layout = laid_out[document.id]
            cuts = cuts_of(document.text, layout.spans, layout.landmark_tokens, limit)
            for start, end in cuts:
                id_ = f"{document.id}\x1f{start}"
                owner[id_] = document.id
                segments[id_] = found[document.id].vector(start, end, average=average or true)
        postings = Postings(segments.items())
        run = {}
        for id_, query in queries.items():
            ids, values = postings.search(query, None)
            best: dict[str, float] = {}
            for i in np.argsort(-values, kind="stable"):
                best.setdefault(owner[ids[i]], float(values[i]))
                if len(best) == 10:
                    break
            run[id_] = best
        scores.append(means(judge(Run("bm25", run), data.qrels))["nDCG@10"])
    return scores


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--output", type=Path, help="write bm25_segments.md here")
    options = parser.parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"there is no folder {options.data}; name one with evaluation sets")
    head = [
        "set",
        *(
            f"{'whole' if limit is None else limit} / {'true' if average is None else average}"
            for limit, average in SETTINGS
        ),
    ]
    lines = [
        "# BM25 by segment",
        "",
        "nDCG@10 of BM25 alone (k1 1.2, b 0.75) by the most tokens in a segment / the length in",
        "terms that counts as usual; a document's score is that of its best segment. The store",
        "cuts at 1,024 and compares with 512.",
        "Made by `python benchmarks/bm25_segments.py --data FOLDER`.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    with LandmarkEncoder() as encoder:
        for name in options.sets:
            values = " | ".join(f"{score:.3f}" for score in measure(options.data / name, encoder))
            lines.append(f"| {name} | {values} |")
            Console().print(lines[-1], markup=False, highlight=False, soft_wrap=True)
    if options.output:
        (options.output / "bm25_segments.md").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
