"""nDCG@10 against the length of the relevant document, as a picture."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

from lmk_rag.errors import require_extra
from lmk_rag.evaluation.results import Tree

_FEW = 10  # queries below which a point says nothing
_ACROSS = 2  # panels beside each other


def curves(of: Tree) -> dict[str, list[tuple[int, float]]]:
    """Return (tokens from which on, nDCG@10) by method, of groups of 10 queries or more."""
    found = {}
    for key, entry in of["methods"].items():
        points = [
            (int(group["name"].rstrip("+").partition("-")[0]), group["scores"]["nDCG@10"])
            for group in entry["by_length"]
            if group["queries"] >= _FEW
        ]
        if points:
            found[key] = sorted(points)
    return found


def plot_by_length(tree: Tree, path: Path) -> bool:
    """Draw a panel per set: curves of different sets say nothing of each other.

    Returns:
        whether there was anything to draw.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    panels = {label: own for label, of in tree["sets"].items() if (own := curves(of))}
    if not panels:
        return False
    require_extra("matplotlib", "eval", "the plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    keys = list(dict.fromkeys(key for own in panels.values() for key in own))
    rows, across = ceil(len(panels) / _ACROSS), min(_ACROSS, len(panels))
    figure = Figure(figsize=(5 * across + 2, 4 * rows), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the machine is set up for
    grid: Any = figure.subplots(rows, across, squeeze=False)
    for axes, (label, own) in zip(grid.flat, panels.items(), strict=False):
        lows = sorted({low for points in own.values() for low, _ in points})
        for key, points in own.items():
            number = keys.index(key)  # a method looks the same in every panel
            style = ("-", "--", ":", "-.")[number // 10 % 4]
            axes.plot(
                [lows.index(low) for low, _ in points],
                [value for _, value in points],
                style,
                marker=".",
                color=f"C{number % 10}",
                label=key,
            )
        axes.set_xticks(range(len(lows)), [f"{low:,}" for low in lows])
        axes.set_title(label, fontsize="small", wrap=True)
        axes.grid(alpha=0.3)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.supxlabel(f"tokens of the relevant document, from (groups of {_FEW} queries or more)")
    figure.supylabel("nDCG@10")
    lines = {line.get_label(): line for axes in grid.flat for line in axes.get_lines()}
    figure.legend([lines[key] for key in keys], keys, loc="outside right upper", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return True
