"""`lmk-rag search`: passages that answer a question."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmk_rag.cli.opening import open_existing
from lmk_rag.cli.options import (
    DEFAULT_COLLECTION,
    DEFAULT_STORE,
    CollectionOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelChoice,
    ModelOption,
    StoreOption,
)
from lmk_rag.cli.terminal import print_json, printable, say, shown
from lmk_rag.config import PER_DOCUMENT

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from lmk_rag import Passage
    from lmk_rag.store import Filter

_CONTEXT_LINES = 2  # shown before and after the best stretch
_CONTEXT_CHARS = 240


def search(
    query: Annotated[list[str], typer.Argument(metavar="QUERY", help="A question or words.")],
    store: StoreOption = DEFAULT_STORE,
    collection: CollectionOption = DEFAULT_COLLECTION,
    k: Annotated[int, typer.Option("-k", min=1, help="The most passages.")] = 5,
    passage_tokens: Annotated[
        int, typer.Option("--passage-tokens", min=1, help="The most tokens in a passage.")
    ] = 256,
    per_document: Annotated[
        int, typer.Option("--per-document", min=1, help="The most passages of one document.")
    ] = PER_DOCUMENT,
    mode: Annotated[
        Literal["auto", "exact", "two-stage", "document", "hybrid"],
        typer.Option(
            "--mode",
            help="How to search; auto picks exact or two-stage by size, hybrid joins it with BM25 "
            "over the words (scores from 0 to 1).",
        ),
    ] = "auto",
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="KEY=VALUE",
            help="Only documents with this metadata, for instance type=html; may be repeated.",
        ),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    full: Annotated[
        bool, typer.Option("--full", help="Show whole passages, not only around the best lines.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find the passages that answer a question, with file and line."""
    conditions = _filter(where or [])
    choice = ModelChoice(model, device, dtype)
    with open_existing(store, collection, choice) as opened:
        from lmk_rag import Retriever

        passages = Retriever(opened).search(
            " ".join(query),
            k=k,
            filter=conditions,
            mode=mode,
            passage_tokens=passage_tokens,
            per_document=per_document,
        )
    if as_json:
        print_json([passage_json(passage) for passage in passages])
    elif passages:
        print_passages(passages, full=full)
    else:
        say("nothing found")


def passage_json(passage: Passage) -> dict[str, object]:
    """Return a passage as the JSON object that --json prints."""
    is_file = "path" in passage.metadata
    return {
        "document_id": passage.document_id,
        "path": shown(passage.document_id) if is_file else None,
        "line": passage.line,
        "start": passage.start,
        "end": passage.end,
        "best_start": passage.best_start,
        "best_end": passage.best_end,
        "score": round(passage.score, 6),
        "text": passage.text,
        "metadata": passage.metadata,
    }


def print_passages(passages: list[Passage], *, full: bool = False) -> None:
    """Print a table of passages, the best stretch of each highlighted."""
    from rich.console import Console

    ranges = [(0, len(passage.text)) if full else _excerpt(passage) for passage in passages]
    places = [_place(passage, start) for passage, (start, _) in zip(passages, ranges, strict=True)]
    table = _table(passages, ranges, places)
    console = Console()
    if console.is_terminal:
        console.print(table)
        return
    # Whoever reads a pipe wants paths in one piece and no blanks at line ends.
    console = Console(width=max(100, max(map(len, places)) + 20))
    with console.capture() as captured:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().rstrip().split("\n")))


def _table(passages: list[Passage], ranges: list[tuple[int, int]], places: list[str]) -> Table:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    table.add_column(justify="right", style="dim")
    table.add_column(ratio=1)
    table.add_column(justify="right")
    for i, passage in enumerate(passages):
        place = Text(places[i], style="bold cyan", overflow="fold")
        body = Group(place, _highlighted(passage, *ranges[i]))
        table.add_row(str(i + 1), body, f"{passage.score:.3f}")
    return table


def _excerpt(passage: Passage) -> tuple[int, int]:
    """Choose what people read of a passage: its best stretch and a little around it."""
    text = passage.text
    first, last = passage.best_start - passage.start, passage.best_end - passage.start
    start, end = first, last
    for _ in range(_CONTEXT_LINES + 1):
        start = text.rfind("\n", 0, max(start - 1, 0)) + 1
        newline = text.find("\n", end)
        end = newline + 1 if newline >= 0 else len(text)
    if first - start > _CONTEXT_CHARS:
        start = max(text.rfind(" ", start, first - _CONTEXT_CHARS) + 1, start)
    if end - last > _CONTEXT_CHARS:
        space = text.find(" ", last + _CONTEXT_CHARS, end)
        end = space if space >= 0 else end
    # Blank lines around it would only make the table longer.
    while start < first and text[start] in "\r\n":
        start += 1
    return start, end


def _highlighted(passage: Passage, start: int, end: int) -> Text:
    """Return `passage.text[start:end]` with the best stretch in bold."""
    from rich.text import Text

    def clean(piece: str) -> str:
        if passage.metadata.get("type") == "html":
            lines = (" ".join(line.split()) for line in html.unescape(piece).splitlines())
            piece = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
        return printable(piece)

    first, last = passage.best_start - passage.start, passage.best_end - passage.start
    text = Text()
    text.append(clean(passage.text[start:first]))
    text.append(clean(passage.text[first:last]), style="bold yellow")
    text.append(clean(passage.text[last:end]))
    text.rstrip()
    return text


def _place(passage: Passage, start: int) -> str:
    line = passage.line + passage.text.count("\n", 0, start)
    converted = passage.metadata.get("type") == "markitdown"
    note = " (of the converted text)" if converted else ""
    return printable(f"{shown(passage.document_id)}:{line}{note}")


def _filter(conditions: list[str]) -> Filter | None:
    from lmk_rag.store.filters import And, Eq

    filters = []
    for condition in conditions:
        key, equals, value = condition.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"--where {condition!r} is not of the form KEY=VALUE")
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError:
            parsed = value
        filters.append(Eq(key, value if isinstance(parsed, list | dict) else parsed))
    return And(*filters) if filters else None
