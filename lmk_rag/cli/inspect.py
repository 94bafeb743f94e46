"""`lmk-rag inspect`: where the landmarks of a file stand."""

from __future__ import annotations

from typing import Annotated

import typer

from lmk_rag.cli.index import open_source, say_problems
from lmk_rag.cli.options import (
    BoundaryOption,
    DeviceOption,
    DtypeOption,
    EncodingOption,
    GranularityOption,
    JsonOption,
    MaxLengthOption,
    ModelChoice,
    ModelOption,
)
from lmk_rag.cli.terminal import counted, print_json, printable, say, shown
from lmk_rag.files import FileProblem


def inspect(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file, or '-'.")],
    encoding: EncodingOption = "utf-8",
    model: ModelOption = None,
    granularity: GranularityOption = None,
    boundary: BoundaryOption = None,
    max_length: MaxLengthOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show how a file is cut: landmarks, spans, windows and token counts."""
    source = open_source([file], encoding=encoding)
    read = list(source.documents()) if len(source) <= 1 else []
    if len(read) != 1:
        several = [FileProblem(file, f"{len(source):,} files; inspect takes one")]
        missing = [FileProblem(file, "no such file")]
        say_problems(source.problems or (several if len(source) > 1 else missing))
        raise typer.Exit(1)
    (document,) = read
    with ModelChoice(model, device, dtype, granularity, boundary, max_length).load() as encoder:
        laid_out = encoder.lay_out(document.text)
        name, config, window_size = encoder.name, encoder.config, encoder.max_length
    windows = [
        number
        for number, window in enumerate(laid_out.windows)
        for _ in range(len(window.stretches) - window.n_context)
    ]
    rows = []
    line, at = 1, 0
    for i, (start, end) in enumerate(laid_out.spans.tolist()):
        line, at = line + document.text.count("\n", at, start), start
        rows.append(
            {
                "landmark": i,
                "start": start,
                "end": end,
                "line": line,
                "tokens": int(laid_out.landmark_tokens[i]),
                "window": windows[i],
            }
        )
    n_tokens = int(laid_out.landmark_tokens.sum())
    if as_json:
        print_json(
            {
                "document_id": document.id,
                "model": name,
                "granularity": config.granularity,
                "boundary": config.boundary,
                "max_length": window_size,
                "characters": len(document.text),
                "n_tokens": n_tokens,
                "n_landmarks": len(rows),
                "n_windows": len(laid_out.windows),
                "landmarks": rows,
            }
        )
        return
    width = max(5, len(str(len(document.text))))
    typer.echo(
        f"{'landmark':>8} {'window':>6} {'tokens':>6} {'line':>6} "
        f"{'start':>{width}} {'end':>{width}}  text"
    )
    for row in rows:
        text = " ".join(printable(document.text[row["start"] : row["end"]]).split())
        typer.echo(
            f"{row['landmark']:>8} {row['window']:>6} {row['tokens']:>6} {row['line']:>6} "
            f"{row['start']:>{width}} {row['end']:>{width}}  {_short(text)}"
        )
    say(
        f"{shown(document.id)}: {counted(len(document.text), 'character')}, "
        f"{counted(n_tokens, 'token')}, {counted(len(rows), 'landmark')}, "
        f"{counted(len(laid_out.windows), 'window')} of up to {window_size} tokens "
        f"({name}, k = {config.granularity}, boundary = {config.boundary})"
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "\u2026"
