"""BM25 alone by how documents are cut: what the size of a segment and BM25's usual length rest on.

    .venv/bin/python benchmarks/bm25_segments.py --data folder-with-sets --output benchmarks

A set is a folder in BEIR form (corpus.jsonl.gz, queries.jsonl.gz, qrels.tsv). Texts are cut as the
store cuts them, at the best ends of landmarks (of 32 tokens here), into segments of at most so many
tokens; a document's score is that of its best segment. Through the store's own tokenizer, vectors
and postings. No vectors are made.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from long_sets import LONG
from rich.console import Console

from lmk_rag import LandmarkConfig, LandmarkEncoder
from lmk_rag.chunker import end_grades
from lmk_rag.evaluation import judge, load_set
from lmk_rag.evaluation.metrics import means
from lmk_rag.evaluation.runs import run_of
from lmk_rag.lexical import Bm25, Terms, query_vector, terms
from lmk_rag.spans import group_stretches
from lmk_rag.store.postings import Postings
from lmk_rag.types import Ints

TEXTBOOK = 1.2, 0.75  # k1 and b


@dataclass(frozen=True)
class Setting:
    """A way to count words.

    Attributes:
        limit: the most tokens in a segment; None: whole documents.
        average: the length, in words, that counts as usual; None: the set's true average.
        pairs: whether words that stand together are a term too.
        document_average: likewise of a document, whose score is added; None: no such score.
        segment, document: k1 and b of either.
    """

    limit: int | None
    average: int | None
    pairs: bool = False
    document_average: int | None = None
    segment: tuple[float, float] = TEXTBOOK
    document: tuple[float, float] = TEXTBOOK

    def __str__(self) -> str:
        limit = "whole" if self.limit is None else self.limit
        name = f"{limit} / {self.average or 'true'}{_shown(self.segment)}"
        name += ", pairs" * self.pairs
        if self.document_average is None:
            return name
        return f"{name}, document / {self.document_average}{_shown(self.document)}"


def _shown(rule: tuple[float, float]) -> str:
    return "" if rule == TEXTBOOK else f" ({rule[0]:g} {rule[1]:g})"


SETTINGS = (
    Setting(256, 128),
    Setting(512, 256),
    Setting(1_024, 256),
    Setting(1_024, 512),
    Setting(1_024, 1_024),
    Setting(2_048, 1_024),
    Setting(4_096, 2_048),
    Setting(None, 1_024),
    Setting(None, None),
    Setting(1_024, 512, pairs=True),
    Setting(1_024, 512, document_average=8_192),
    Setting(1_024, 512, pairs=True, document_average=4_096),
    Setting(1_024, 512, pairs=True, document_average=8_192),
)
RULES = tuple(
    Setting(1_024, 512, pairs=True, document_average=8_192, segment=segment, document=document)
    for segment, document in (
        (TEXTBOOK, TEXTBOOK),
        (TEXTBOOK, (2.0, 0.82)),
        ((0.9, 0.4), (2.0, 0.82)),
        ((0.9, 0.6), (2.0, 0.9)),
        ((0.9, 0.6), (2.0, 0.82)),
    )
)
SETS = (
    *LONG,
    "gesetze_de_long",
    "xquad_article/zh",
    "passkey_long",
    "scifact",
    "cranfield",
    "obliqa",
)


def cuts_of(text: str, spans: Ints, tokens: Ints, limit: int | None) -> list[tuple[int, int]]:
    """Return the characters of each segment of a text."""
    if limit is None:
        return [(0, len(text))]
    groups = group_stretches(tokens, end_grades(text, spans), limit)
    return [(int(spans[first, 0]), int(spans[end - 1, 1])) for first, end in groups]


def measure(folder: Path, encoder: LandmarkEncoder, settings: Sequence[Setting]) -> list[float]:
    """Return nDCG@10 of a set by setting."""
    data = load_set(folder)
    found: dict[str, Terms] = {d.id: terms(d.text) for d in data.documents}
    laid_out = {d.id: encoder.lay_out(d.text) for d in data.documents}
    true = round(np.mean([len(one.indices) for one in found.values()]))
    scores = []
    for setting in settings:
        parts = [(setting.limit, Bm25(*setting.segment, setting.average or true))]
        if setting.document_average is not None:
            parts.append((None, Bm25(*setting.document, setting.document_average)))
        totals = np.zeros((len(data.queries), len(data.documents)), np.float32)
        for limit, rule in parts:
            segments, owners = [], []
            for owner, document in enumerate(data.documents):
                layout, own = laid_out[document.id], found[document.id]
                cuts = cuts_of(document.text, layout.spans, layout.landmark_tokens, limit)
                segments += [own.vector(*cut, rule, pairs=setting.pairs) for cut in cuts]
                owners += [owner] * len(cuts)
            postings = Postings((str(i), segment) for i, segment in enumerate(segments))
            for row, text in zip(totals, data.queries.values(), strict=True):
                ids, values = postings.search(query_vector(text, pairs=setting.pairs), None)
                best = np.zeros_like(row)
                np.maximum.at(best, np.array(owners)[np.array(ids, np.int64)], values)
                row += best
        totals[totals == 0] = -np.inf  # not found
        run = run_of("bm25", totals, list(data.queries), [d.id for d in data.documents])
        scores.append(means(judge(run, data.qrels))["nDCG@10"])
    return scores


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--rules", action="store_true", help="by k1 and b instead of lengths")
    parser.add_argument(
        "--output", type=Path, help="write bm25_segments.md, or bm25_rules.md, here"
    )
    options = parser.parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"there is no folder {options.data}; name one with evaluation sets")
    settings, name_of = (RULES, "bm25_rules") if options.rules else (SETTINGS, "bm25_segments")
    head = ["set", *map(str, settings)]
    lines = [
        "# BM25 by segment",
        "",
        "nDCG@10 of BM25 alone by the most tokens in a segment / the length in words that counts",
        "as usual; a document's score is that of its best segment. Where it says pairs, words that",
        "stand together are a term too, and count half; where it says document, the whole",
        "document's score is added. k1 and b are 1.2 and 0.75 where none stand in brackets.",
        "Segments end where landmarks of 32 tokens do.",
        f"Made by `python benchmarks/bm25_segments.py --data FOLDER{' --rules' * options.rules}`.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    with LandmarkEncoder(config=LandmarkConfig(granularity=32)) as encoder:
        for name in options.sets:
            values = " | ".join(
                f"{score:.3f}" for score in measure(options.data / name, encoder, settings)
            )
            lines.append(f"| {name} | {values} |")
            Console().print(lines[-1], markup=False, highlight=False, soft_wrap=True)
    if options.output:
        (options.output / f"{name_of}.md").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
