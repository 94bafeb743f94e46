"""Ways to make a default model, trained on the same data and measured on the same documents.

    .venv/bin/python benchmarks/variants.py --data ../shared/data --runs runs/variants \
        --output benchmarks

Variants are trained one after the other, each from all-MiniLM-L6-v2; a run that was stopped goes on
with the same command. The default model and its untrained base stand in the table for comparison.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from long_sets import Row, first_documents, measured, write_rows
from rich.console import Console

from lmk_rag import LandmarkConfig
from lmk_rag.checkpoint import default_model, minilm
from lmk_rag.training import Recipe, Weights, train
from lmk_rag.training.watch import read_log

GRANULARITY = 32  # that all are read with, whatever the default is: landmark tokens take room


def recipes(base: Recipe) -> dict[str, Recipe]:
    """Return the variants by name: what differs from the default model's recipe."""
    tokens = replace(
        base,
        pooling="lmk",
        config=replace(base.config, granularity=GRANULARITY, max_length=512),
        # A landmark token learns its stretch first: the contrast would drown the distillation.
        weights=Weights(vector=2.0, landmark=1.5, scores=0.1, part_scores=0.1, contrast=0.0),
        granularities=(16, 32, 64, 128, 256),
        piece=6_000,
        max_queries=8,
        steps=420,
        batch_tokens=5_200,
        learning_rate=1.5e-4,
        warmup_steps=40,
        whitening=None,
    )
    rotary = replace(
        tokens, rotary=True, config=replace(tokens.config, max_length=8_192), learning_rate=2e-4
    )
    return {"landmark tokens": tokens, "landmark tokens, rotary": rotary}


def cost(log: Path) -> Row:
    """Return what a run read and took, by its log."""
    last = read_log(log)[-1]
    return {"M tokens": round(last["tokens"] / 1e6, 2), "minutes": round(last["seconds"] / 60, 1)}


def main() -> None:
    """Train, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with pairs, texts, eval")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of variants; default: all")
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--output", type=Path, help="write variants.json and variants.md here")
    options = parser.parse_args()
    sets = first_documents(
        options.data / "eval", documents=options.documents, queries=options.queries
    )
    title = (
        f"nDCG@10 of variants: the first {options.documents} documents and at most "
        f"{options.queries} queries of each set, with a landmark per {GRANULARITY} tokens"
    )
    config = LandmarkConfig(granularity=GRANULARITY)
    untrained: Row = {"M tokens": 0, "minutes": 0}
    rows = [
        {"variant": "default model"}
        | cost(default_model() / "log.jsonl")
        | measured(None, config, sets),
        {"variant": "its base, untrained"} | untrained | measured(minilm("variants"), config, sets),
    ]
    for name, recipe in recipes(Recipe.read(default_model() / "recipe.json")).items():
        if options.only and name not in options.only:
            continue
        output = options.runs / name.replace(", ", "-").replace(" ", "-")
        folder = train(recipe, options.data, output, show_progress=True).folder
        rows.append({"variant": name} | cost(output / "log.jsonl") | measured(folder, None, sets))
        Console().print(rows[-1])
        if options.output:
            write_rows(options.output / "variants.json", title, rows)


if __name__ == "__main__":
    main()
