"""Quality and speed of a model by window, granularity and boundary rule.

    .venv/bin/python benchmarks/settings.py --data ../shared/data/eval --output benchmarks

One setting is changed at a time, from the model's own. nDCG@10 of the document vector and of the
best landmark, and tokens per second while encoding, over the first documents of long sets.

The default model reads 256 tokens at once. What longer windows give shows one made for them:

    .venv/bin/python benchmarks/settings.py --data ../shared/data/eval --output benchmarks \
        --model runs/variants/landmark-tokens-rotary/model --name settings_rotary \
        --window 1024 --windows 512 1024 2048 8192 --granularities 16 32 64 128 256
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from long_sets import first_documents, measured, write_rows
from rich.console import Console

from lmk_rag import LandmarkConfig, LandmarkEncoder


def settings_of(
    config: LandmarkConfig, windows: list[int], granularities: list[int]
) -> dict[str, LandmarkConfig]:
    """Return the configurations by name, the default one first."""
    named = {"default": config}
    named |= {f"window {n}": replace(config, max_length=n) for n in windows}
    named |= {f"overlap {n}": replace(config, overlap=n) for n in (0, 64)}
    named |= {f"k {n}": replace(config, granularity=n) for n in granularities}
    named |= {name: replace(config, boundary=name) for name in ("token", "word", "sentence")}
    seen: dict[LandmarkConfig, str] = {}
    for name, one in named.items():
        seen.setdefault(one, name)
    return {name: one for one, name in seen.items()}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--model", help="default: the default model")
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--window", type=int, help="what all else is tried at; default: its own")
    parser.add_argument("--windows", type=int, nargs="*", default=[128, 256])
    parser.add_argument("--granularities", type=int, nargs="*", default=[8, 16, 32, 64, 128])
    parser.add_argument("--output", type=Path, help="write NAME.json and NAME.md here")
    parser.add_argument("--name", default="settings")
    options = parser.parse_args()
    sets = first_documents(options.data, documents=options.documents, queries=options.queries)
    with LandmarkEncoder(options.model) as encoder:
        saved, model = encoder.config, options.model or encoder.name
    if options.window:
        saved = replace(saved, max_length=options.window)
    title = (
        f"nDCG@10 and speed of {model} by setting: the first {options.documents} documents and "
        f"at most {options.queries} queries of each set; default is {saved}"
    )
    rows = []
    for setting, config in settings_of(saved, options.windows, options.granularities).items():
        rows.append({"setting": setting} | measured(options.model, config, sets))
        Console().print(rows[-1])
        if options.output:
            write_rows(options.output / f"{options.name}.json", title, rows)


if __name__ == "__main__":
    main()
