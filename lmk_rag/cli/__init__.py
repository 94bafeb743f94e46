"""The command `lmk-rag`. Only this package prints; torch is imported inside commands."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

import lmk_rag
from lmk_rag.cli.demo import demo
from lmk_rag.cli.documents import delete, documents
from lmk_rag.cli.encode import encode
from lmk_rag.cli.evaluate import evaluate
from lmk_rag.cli.index import index
from lmk_rag.cli.inspect import inspect
from lmk_rag.cli.search import search
from lmk_rag.cli.terminal import LineErrors
from lmk_rag.cli.train import mine, train

__all__ = ["app", "main"]

app = typer.Typer(
    name="lmk-rag",
    cls=LineErrors,
    help="Index long documents and find the passages that answer a question.",
    epilog="Exit codes: 0 fine, 1 something was reported as an error, 2 wrong usage.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (index, search, documents, delete, inspect, encode, train, mine, demo):
    app.command()(command)
app.command("eval")(evaluate)  # a function of that name would hide the builtin


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lmk-rag {lmk_rag.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; a terminal that lacks a character gets a "?" and no traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()
