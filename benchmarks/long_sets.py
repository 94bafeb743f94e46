"""What several benchmarks share: the first documents of the long sets, and a row of figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmk_rag import LandmarkConfig, LandmarkEncoder
from lmk_rag.evaluation.cache import ArrayCache
from lmk_rag.evaluation.methods import parse_methods
from lmk_rag.evaluation.session import SetSession
from lmk_rag.evaluation.sets import RetrievalSet, limit, load_set

Row = dict[str, str | float]
LONG = ("xquad_article/en", "peps_long", "leval_long", "qmsum_long")


def first_documents(folder: Path, *, documents: int, queries: int) -> list[RetrievalSet]:
    """Load the long sets of a folder, each cut to its first documents and queries."""
    return [limit(load_set(folder / name), documents=documents, queries=queries) for name in LONG]


def measured(
    model: str | Path | None, config: LandmarkConfig | None, sets: Sequence[RetrievalSet]
) -> Row:
    """Return nDCG@10 of document vector and best landmark by set and in the mean, and tokens/s."""
    row: Row = {}
    speeds = []
    with LandmarkEncoder(model, config=config) as encoder:
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
    return row


def write_rows(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Write rows with the same keys as JSON, and as Markdown beside it.

    Args:
        path: of the JSON file.
        title: what was measured, and on what.
        rows: one at least.
    """
    path.write_text(json.dumps({"what": title, "rows": list(rows)}, indent=1) + "\n", "utf-8")
    names = list(rows[0])
    lines = [title, "", "| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", "utf-8")
