"""nDCG@10 against the length of the relevant document, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmk_rag.errors import require_extra
from lmk_rag.evaluation.results import Tree
from lmk_rag.evaluation.tables import methods_of

_FEW = 10  # queries below which a point says nothing


def pooled_by_length(tree: Tree) -> dict[str, list[tuple[int, int, float]]]:
    """Pool the sets: by method, (tokens from which on, queries, nDCG@10) of each group.

    Only the sets that a method was run on count for it, each query once.
    """
    pooled: dict[str, list[tuple[int, int, float]]] = {}
    for key in methods_of(tree):
        sums: dict[int, tuple[int, float]] = {}
        for of in tree["sets"].values():
            for group in of["methods"].get(key, {}).get("by_length", ()):
                low = int(group["name"].rstrip("+").partition("-")[0])
                queries, total = sums.get(low, (0, 0.0))
                n = group["queries"]
                sums[low] = (queries + n, total + n * group["scores"]["nDCG@10"])
        if sums:
            pooled[key] = [(low, n, total / n) for low, (n, total) in sorted(sums.items())]
    return pooled


def plot_by_length(tree: Tree, path: Path) -> bool:
    """Draw the pooled figures; groups of fewer than 10 queries are left out, and said so.

    Returns:
        whether there was anything to draw.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    pooled = pooled_by_length(tree)
    lows = sorted({low for own in pooled.values() for low, n, _ in own if n >= _FEW})
    if not lows:
        return False
    require_extra("matplotlib", "eval", "the plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the machine is set up for
    axes: Any = figure.subplots()
    for number, (key, own) in enumerate(pooled.items()):
        points = [(lows.index(low), value) for low, n, value in own if n >= _FEW]
        if points:
            style = ("-", "--", ":", "-.")[number // 10 % 4]
            axes.plot(*zip(*points, strict=True), style, marker=".", label=key)
    axes.set_xticks(range(len(lows)), [f"{low:,}" for low in lows])
    axes.set_xlabel(f"tokens of the relevant document, from (groups of {_FEW} queries or more)")
    axes.set_ylabel("nDCG@10")
    axes.set_title(", ".join(tree["sets"]), fontsize="small", wrap=True)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return True
