"""Turn examples into a batch: layouts with drawn granularities, the teacher's targets, and which
candidates are no negatives.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmk_rag.config import Boundary, LandmarkConfig
from lmk_rag.landmarks import LandmarkedText
from lmk_rag.training.examples import Example, Pair, Query
from lmk_rag.training.modules import LandmarkTransformer
from lmk_rag.training.teacher import Teacher
from lmk_rag.types import Ints


@dataclass
class LandmarkCollator:
    """What sentence-transformers' trainer calls to make a batch.

    Every draw depends on the seed, the text and the batch alone, so that a batch is the same
    whenever it is made, after a restart too.

    Attributes:
        examples: what the indices of the dataset point to.
        transformer: lays texts out.
        teacher: gives targets; None for training without distillation.
        known: positives known for each query text, whichever batch they are in.
        granularities, boundaries: to draw from, per text.
        query_granularities: likewise for queries.
        max_queries: queries per document; more are drawn from.
        seed: of the draws.

    A batch has the columns `query` and `document` with the features of `LandmarkTransformer` and

        query_teacher_vectors (Q, D), document_teacher_vectors (B, D)
        document_teacher_rows (B, L, D), document_row_parts (B, L): rows padded with zeros and -2;
            a row outside of all parts has -1
        query_positive_document, query_positive_part (Q,)
        query_blocked_documents (Q, B), query_blocked_parts (Q, P): what is no negative

    `document` counts the documents and, behind them, listed negatives. Without any query in the
    batch there is no `query` column.
    """

    examples: Sequence[Example]
    transformer: LandmarkTransformer
    teacher: Teacher | None
    known: dict[str, set[str]]
    granularities: tuple[int, ...] = (16, 32, 64, 128, 256)
    query_granularities: tuple[int, ...] = (16, 32, 64)
    boundaries: tuple[Boundary, ...] = ("token", "word", "sentence")
    max_queries: int = 8
    seed: int = 0
    valid_label_columns: list[str] = field(default_factory=list)  # the trainer asks for it
    read: list[int] = field(default_factory=list)  # content tokens of each batch made so far

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Make a batch of `{"index": ...}` rows."""
        chosen = [self.examples[row["index"]] for row in rows]
        # A text gets other draws in other company, the same ones whenever this batch is made.
        salt = "-".join(str(row["index"]) for row in rows)
        queries = [
            (document, query)
            for document, example in enumerate(chosen)
            for query in self._some(example, salt)
        ]
        negatives = list(dict.fromkeys(text for _, query in queries for text in query.negatives))
        texts = [example.text for example in chosen] + negatives
        parts = [example.parts for example in chosen] + [((0, len(text)),) for text in negatives]
        layouts = [self._lay_out(text, self.granularities, salt, query=False) for text in texts]
        self.read.append(_content_tokens(layouts))
        batch = {f"document_{k}": v for k, v in self.transformer.collate(layouts).items()}
        spans = [layout.spans for layout in layouts]
        first_part = np.cumsum([0] + [len(own) for own in parts])
        batch["document_row_parts"] = _padded(
            [
                torch.from_numpy(_parts_of(of, own, int(first)))
                for of, own, first in zip(spans, parts, first_part, strict=False)
            ],
            -2,
        )
        if self.teacher is not None:
            vectors, targets = self.teacher.documents(texts, spans)
            batch["document_teacher_vectors"] = torch.from_numpy(vectors)
            batch["document_teacher_rows"] = _padded([torch.from_numpy(t) for t in targets], 0.0)
        if queries:
            part_texts = [
                text[start:end]
                for text, own in zip(texts, parts, strict=True)
                for start, end in own
            ]
            batch |= self._queries(queries, first_part, part_texts, salt)
        return batch

    def _queries(
        self,
        queries: list[tuple[int, Query]],
        first_part: Ints,
        part_texts: list[str],
        salt: str,
    ) -> dict[str, Tensor]:
        texts = [query.text for _, query in queries]
        layouts = [
            self._lay_out(text, self.query_granularities, salt, query=True) for text in texts
        ]
        self.read[-1] += _content_tokens(layouts)
        batch = {f"query_{k}": v for k, v in self.transformer.collate(layouts).items()}
        positive = np.array([first_part[document] + query.part for document, query in queries])
        batch["query_positive_document"] = torch.tensor([document for document, _ in queries])
        batch["query_positive_part"] = torch.from_numpy(positive)
        # A part is no negative if it reads like the positive, or answers the same query elsewhere.
        blocked = torch.tensor(
            [
                [part in self.known.get(text, ()) or part == part_texts[own] for part in part_texts]
                for text, own in zip(texts, positive, strict=True)
            ]
        )
        owner = np.repeat(np.arange(len(first_part) - 1), np.diff(first_part))
        documents = torch.zeros(len(queries), len(first_part) - 1, dtype=torch.bool)
        for part, document in enumerate(owner):
            documents[:, document] |= blocked[:, part]
        batch["query_blocked_parts"] = blocked
        batch["query_blocked_documents"] = documents
        if self.teacher is not None:
            batch["query_teacher_vectors"] = torch.from_numpy(self.teacher.queries(texts))
        return batch

    def _lay_out(
        self, text: str, granularities: Sequence[int], salt: str, *, query: bool
    ) -> LandmarkedText:
        draw = self._draw(text, salt)
        config: LandmarkConfig = replace(
            self.transformer.config,
            granularity=draw.choice(granularities),
            boundary=draw.choice(self.boundaries),
            on_overflow="window",  # what the model will do later is no reason to skip text now
        )
        prompt = config.query_prompt if query else config.document_prompt
        return self.transformer.lay_out(text, prompt=prompt, config=config)

    def _some(self, example: Example, salt: str) -> list[Query]:
        queries = list(example.queries)
        if len(queries) > self.max_queries:
            queries = self._draw(example.text, salt).sample(queries, self.max_queries)
        return queries

    def _draw(self, text: str, salt: str) -> random.Random:
        digest = hashlib.sha256(f"{self.seed}:{salt}:{text}".encode("utf-8", "replace")).digest()
        return random.Random(digest)  # noqa: S311  # not for secrets


def known_positives(examples: Sequence[Example], pairs: Sequence[Pair] = ()) -> dict[str, set[str]]:
    """Collect, for every query text, the parts that answer it anywhere in the data.

    Args:
        examples: what is trained on.
        pairs: all that is known, drawn or not; a part of a page may hold more than the pair it
            was found by, which may still come as a listed negative of another query.
    """
    known: dict[str, set[str]] = {}
    for pair in pairs:
        known.setdefault(pair.query, set()).add(pair.positive)
    for example in examples:
        for query in example.queries:
            start, end = example.parts[query.part]
            known.setdefault(query.text, set()).add(example.text[start:end])
    return known


def _content_tokens(layouts: Sequence[LandmarkedText]) -> int:
    return sum(int(layout.landmark_tokens.sum()) for layout in layouts)


def _parts_of(spans: Ints, parts: Sequence[tuple[int, int]], first: int) -> Ints:
    """Return (L,) the part that holds the middle of each span, counted from `first`, else -1."""
    middles = spans.mean(axis=1)
    found = np.full(len(spans), -1, np.int64)
    for number, (start, end) in enumerate(parts, first):
        found[(start <= middles) & (middles < max(end, start + 1))] = number
    return found


def _padded(rows: Sequence[Tensor], value: float) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)
