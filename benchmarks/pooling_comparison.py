"""Poolings under one recipe: lmk, cls, mean and MultiCLS, trained alike, by document length.

    .venv/bin/python benchmarks/pooling_comparison.py --data ../shared/data --runs runs/poolings \
        --output benchmarks

Each pooling starts from all-MiniLM-L6-v2 converted to rotary positions and sees the same batches
of texts of at most 512 tokens. The document vector alone is compared, over windows of 8,192
tokens. A run that was stopped goes on with the same command.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from long_sets import LONG
from rich.console import Console
from sentence_transformers import SentenceTransformer

from lmk_rag.devices import choose_dtype
from lmk_rag.evaluation.metrics import by_length, judge, means
from lmk_rag.evaluation.runs import run_of
from lmk_rag.evaluation.sets import RetrievalSet, limit, load_set
from lmk_rag.training import Recipe, Weights, train
from lmk_rag.training.precision import cast_parameters
from lmk_rag.training.recipe import Source

_POOLINGS = ("lmk", "cls", "mean", "multicls")


def recipe_of(recipe: Recipe, pooling: str, steps: int, seed: int) -> Recipe:
    """Return the default model's recipe, shortened, rotary, and with one pooling."""
    return replace(
        recipe,
        pooling=pooling,
        rotary=True,
        steps=steps,
        seed=seed,
        config=replace(recipe.config, granularity=32, max_length=8_192),  # as it was measured
        piece=1_800,
        sources=tuple(short(source) for source in recipe.sources),
        # Landmark objectives need landmarks: what is compared is the document vector.
        weights=Weights(vector=2.0, landmark=0.0, scores=0.3, contrast=0.0),
        granularities=(16, 32, 64, 128),
        batch_tokens=5_200,
        whitening=None,  # it would follow any pooling, and there is none for multicls
        learning_rate=2e-4,  # a converted model has far to go
    )


def short(source: Source) -> Source:
    """Keep the documents of a source within 512 tokens."""
    return replace(source, join=min(source.join, 4))


def ndcg_by_length(
    model: SentenceTransformer, data: RetrievalSet
) -> tuple[float, list[tuple[str, int, float]]]:
    """Return nDCG@10, and (tokens, queries, nDCG@10) by length of the relevant document."""
    documents = encode(model, data.texts)
    queries = encode(model, list(data.queries.values()))
    ids = [document.id for document in data.documents]
    run = run_of("document", queries @ documents.T, list(data.queries), ids)
    per_query = judge(run, data.qrels)
    tokens = model.tokenizer(data.texts, add_special_tokens=False, verbose=False)["input_ids"]
    lengths = dict(zip(ids, map(len, tokens), strict=True))
    groups = by_length(data, lengths, per_query)
    return means(per_query)["nDCG@10"], [
        (group.name, group.queries, group.scores["nDCG@10"]) for group in groups
    ]


def encode(model: SentenceTransformer, texts: Sequence[str]) -> np.ndarray:
    """Encode, a few texts at a time: some fill the whole window."""
    vectors: np.ndarray = model.encode(list(texts), batch_size=4, normalize_embeddings=True)
    return vectors


def main() -> None:
    """Train, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with pairs, texts, eval")
    parser.add_argument("--recipe", type=Path, default=Path("lmk_rag/default_model/recipe.json"))
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--output", type=Path, help="write pooling_comparison.json and .png here")
    options = parser.parse_args()
    base = Recipe.read(options.recipe)
    sets = [
        limit(
            load_set(options.data / "eval" / name),
            documents=options.documents,
            queries=options.queries,
        )
        for name in LONG[:3]
    ]
    found = {}
    for pooling in _POOLINGS:
        recipe = recipe_of(base, pooling, options.steps, options.seed)
        folder = train(recipe, options.data, options.runs / pooling, show_progress=True).folder
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = SentenceTransformer(str(folder), trust_remote_code=True)
        cast_parameters(model, choose_dtype("auto", model.device))
        found[pooling] = {data.label: ndcg_by_length(model, data) for data in sets}
        Console().print(
            pooling, {label: round(score, 3) for label, (score, _) in found[pooling].items()}
        )
        if options.output:
            path = options.output / "pooling_comparison.json"
            path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    if options.output:
        plot(found, options.output / "pooling_comparison.png")


def plot(found: dict, path: Path) -> None:
    """Draw quality by document length, one panel per set."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labels = list(next(iter(found.values())))
    figure = Figure(figsize=(5 * len(labels), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, label in zip(figure.subplots(1, len(labels)), labels, strict=True):
        for pooling, of in found.items():
            groups = of[label][1]
            axes.plot(
                [name for name, _, _ in groups], [s for _, _, s in groups], ".-", label=pooling
            )
        axes.set_title(label.replace(" (", "\n("))
        axes.set(xlabel="tokens of the relevant document", ylim=(0, 1))
        axes.tick_params(axis="x", rotation=45)
        axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
