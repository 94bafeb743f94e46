"""A recipe's sources: files in, training examples out."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TypeVar

from lmk_rag.errors import TrainingDataError
from lmk_rag.training.examples import (
    Example,
    Pair,
    concatenate,
    from_pairs,
    from_texts,
    read_pairs,
    read_texts,
)
from lmk_rag.training.recipe import Recipe, Source

_Row = TypeVar("_Row")


def read_source(source: Source, data: Path, recipe: Recipe) -> tuple[list[Example], list[Pair]]:
    """Read the examples of one source, and all of its pairs, also those not drawn."""
    pairs = read_pairs(data / source.pairs) if source.pairs else []
    if source.texts is not None:
        texts = _drawn(read_texts(data / source.texts), source, recipe)
        examples = from_texts(texts, pairs, length=recipe.piece, source=source.name)
    elif source.join > 1:
        drawn = _drawn(pairs, source, recipe)
        examples = concatenate(drawn, source.join, source.name, recipe.seed)
    else:
        examples = from_pairs(_drawn(pairs, source, recipe), source.name)
    if not examples:
        raise TrainingDataError(
            f"source {source.name!r} gives no example: {len(pairs)} pairs, join {source.join}"
        )
    if pairs and not any(example.queries for example in examples):
        raise TrainingDataError(
            f"source {source.name!r}: none of the {len(pairs)} positives of {source.pairs} begins "
            f"in a text of {source.texts}; expected texts that hold them, letter by letter"
        )
    return examples, pairs


def _drawn(rows: list[_Row], source: Source, recipe: Recipe) -> list[_Row]:
    """Return at most `source.limit` rows, drawn with the seed, in their order."""
    if source.limit is None or source.limit >= len(rows):
        return rows
    draw = random.Random(f"{recipe.seed}:{source.name}")  # noqa: S311  # not for secrets
    return [rows[i] for i in sorted(draw.sample(range(len(rows)), source.limit))]
