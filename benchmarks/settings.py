"""Quality and speed of the default model by window, granularity and boundary rule.

    .venv/bin/python benchmarks/settings.py --data ../shared/data/eval --output benchmarks

One setting is changed at a time, from the defaults. nDCG@10 of the document vector and of the best
landmark, and tokens per second while encoding, over the first documents of long sets.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from lmk_rag import LandmarkConfig, LandmarkEncoder
from lmk_rag.evaluation.cache import ArrayCache
from lmk_rag.evaluation.methods import parse_methods
from lmk_rag.evaluation.session import SetSession
from lmk_rag.evaluation.sets import limit, load_set

_SETS = ("xquad_article/en", "peps_long", "leval_long", "qmsum_long")


def settings_of(config: LandmarkConfig, windows: list[int], granularities: list[int]) -> dict:
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
    parser.add_argument("--windows", type=int, nargs="*", default=[128, 256, 512])
    parser.add_argument("--granularities", type=int, nargs="*", default=[16, 32, 64, 128, 256])
    parser.add_argument("--output", type=Path, help="write settings.json and settings.md here")
    options = parser.parse_args()
    sets = [
        limit(
            load_set(options.data / name),
            documents=options.documents,
            queries=options.queries,
        )
        for name in _SETS
    ]
    with LandmarkEncoder(options.model) as encoder:
        saved = encoder.config
    rows = []
    for name, config in settings_of(saved, options.windows, options.granularities).items():
        row: dict[str, object] = {"setting": name}
        speeds = []
        with LandmarkEncoder(options.model, config=config) as encoder:
            for data in sets:
                session = SetSession(data, encoder=encoder, base=None, cache=ArrayCache(None))
                for method in parse_methods("document,landmarks"):
                    scores = session.evaluate(method).scores
                    row[f"{data.name} {method.name}"] = round(scores["nDCG@10"], 4)
                speeds.append(session.encodings["ours"].tokens_per_second)
        for kind in ("document", "landmarks"):
            values = [row[f"{data.name} {kind}"] for data in sets]
            row[f"mean {kind}"] = round(float(np.mean(values)), 4)  # type: ignore[arg-type]
        row["tokens/s"] = round(float(np.median(speeds)))
        rows.append(row)
        Console().print(row)
        if options.output:
            write(options.output, rows, f"{options.documents} documents of each set, {saved}")


def write(folder: Path, rows: list[dict[str, object]], what: str) -> None:
    """Write the table as JSON and Markdown."""
    table = json.dumps({"what": what, "rows": rows}, indent=1)
    (folder / "settings.json").write_text(table + "\n", "utf-8")
    names = list(rows[0])
    lines = [f"nDCG@10 and speed by setting: {what}", "", "| " + " | ".join(names) + " |"]
    lines.append("|" + "---|" * len(names))
    lines += ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows]
    (folder / "settings.md").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
