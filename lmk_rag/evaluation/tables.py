"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from lmk_rag.evaluation.bm25 import SETTINGS
from lmk_rag.evaluation.metrics import METRICS
from lmk_rag.evaluation.results import Tree

Row = tuple[str, list[str]]


def markdown(tree: Tree) -> str:
    """Return all tables of the results."""
    sets = tree["sets"]
    head = ["method", *sets, "mean"]
    parts = ["# Evaluation", _sizes(tree)]
    parts += [f"## {metric}\n\n{_grid(head, metric_rows(tree, metric))}" for metric in METRICS]
    for title, rows in (
        ("## Answer recall", _answers(tree)),
        ("## By length of the pass key's document", _groups(tree, "by_passkey_length")),
        ("## By tokens of the relevant document", _groups(tree, "by_length")),
        ("## Differences in nDCG@10", _significance(tree)),
        ("## Encodings", _encodings(tree)),
    ):
        if rows is not None:
            parts.append(f"{title}\n\n{rows}")
    return "\n\n".join(parts) + "\n"


def methods_of(tree: Tree) -> list[str]:
    """Return the methods of all sets, in the order they were first run."""
    return list(dict.fromkeys(key for of in tree["sets"].values() for key in of["methods"]))


def metric_rows(tree: Tree, metric: str) -> list[Row]:
    """Return a row per method: its figure on each set and, if it has all, their mean."""
    rows = []
    for key in methods_of(tree):
        entries = [of["methods"].get(key) for of in tree["sets"].values()]
        values = [None if entry is None else entry["scores"][metric] for entry in entries]
        whole = [value for value in values if value is not None]
        mean = fmean(whole) if len(whole) == len(values) else None
        rows.append((key, [figure(value) for value in (*values, mean)]))
    return rows


def figure(value: float | None) -> str:
    """Return a figure in [0, 1] as tables show it."""
    return "" if value is None else f"{value:.3f}"


def _sizes(tree: Tree) -> str:
    lines = [
        f"- {label}: {of['documents']:,} documents, {of['queries']:,} queries"
        + (f"; {of['unjudged']} without a relevant document left out" if of["unjudged"] else "")
        for label, of in tree["sets"].items()
    ]
    lines.append(f"- bm25: {SETTINGS}")
    for label, of in tree["sets"].items():
        for key, entry in of["methods"].items():
            lines += [f"- {label}, {key}: {note}" for note in entry["notes"]]
    return "\n".join(lines)


def answer_rows(of: Tree) -> tuple[list[str], list[Row]]:
    """Return the head and the rows of one set's answer recall; no rows if it has no answers."""
    found = [
        (key, kind, shares)
        for key, entry in of["methods"].items()
        for kind, shares in entry["answer_recall"].items()
    ]
    budgets = list(found[0][2]) if found else []
    head = ["method", "shown", *(f"{budget} tokens" for budget in budgets)]
    return head, [(key, [kind, *map(figure, shares.values())]) for key, kind, shares in found]


def group_rows(of: Tree, name: str) -> list[tuple[list[str], list[Row]]]:
    """Return the head and the rows of one set's methods by groups of queries, per metric."""
    found = {key: entry[name] for key, entry in of["methods"].items() if entry[name]}
    if not found:
        return []
    # Methods of calls that counted other tokens may have other groups.
    by_name = {key: {group["name"]: group for group in own} for key, own in found.items()}
    groups = {group["name"]: group for own in found.values() for group in own}
    names = sorted(groups, key=lambda label: int(label.rstrip("+").partition("-")[0]))
    metrics = list(next(iter(groups.values()))["scores"])
    metrics = metrics if name == "by_passkey_length" else ["nDCG@10"]
    return [
        (
            [metric, *(f"{label} ({groups[label]['queries']})" for label in names)],
            [
                (
                    key,
                    [
                        figure(own[label]["scores"][metric]) if label in own else ""
                        for label in names
                    ],
                )
                for key, own in by_name.items()
            ],
        )
        for metric in metrics
    ]


def _answers(tree: Tree) -> str | None:
    parts = [
        f"{label}\n\n{_grid(head, rows)}"
        for label, of in tree["sets"].items()
        for head, rows in [answer_rows(of)]
        if rows
    ]
    return "\n\n".join(parts) if parts else None


def _groups(tree: Tree, name: str) -> str | None:
    parts = [
        f"{label}\n\n{_grid(head, rows)}"
        for label, of in tree["sets"].items()
        for head, rows in group_rows(of, name)
    ]
    return "\n\n".join(parts) if parts else None


def _significance(tree: Tree) -> str | None:
    rows: list[Row] = [
        (label, [row["first"], row["second"], f"{row['difference']:+.3f}", f"{row['p']:.4f}"])
        for label, of in tree["sets"].items()
        for row in of["significance"]
    ]
    return _grid(["set", "method", "against", "difference", "p"], rows) if rows else None


def _encodings(tree: Tree) -> str | None:
    rows: list[Row] = [
        (
            label,
            [
                name,
                cost["model"],
                f"{cost['rows']:,}",
                f"{cost['tokens']:,}",
                f"{cost['seconds']:,.1f}",
                f"{cost['tokens_per_second']:,.0f}",
                f"{cost['truncated']:,}",
            ],
        )
        for label, of in tree["sets"].items()
        for name, cost in of["encodings"].items()
    ]
    head = ["set", "encoding", "how", "vectors", "tokens", "seconds", "tokens/s", "texts cut"]
    return _grid(head, rows) if rows else None


def _grid(head: Sequence[str], rows: Iterable[Row]) -> str:
    lines = [_line(head), _line(["---"] * len(head))]
    lines += [_line([first, *rest]) for first, rest in rows]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
