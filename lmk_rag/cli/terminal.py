"""What all commands say and how they say it: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from lmk_rag.errors import LMKError

# Escape sequences in a document must not reach the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class LineErrors(TyperGroup):
    """A command group that tells errors and warnings in one line each, without traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an LMKError is an exit code of 1."""
        with _warnings_as_lines():
            # Parsers of PDF files log what they coped with.
            logging.getLogger("pdfminer").setLevel(logging.ERROR)
            try:
                return super().invoke(ctx)
            except LMKError as error:
                say_error(str(error))
                raise typer.Exit(1) from error
            except KeyboardInterrupt:
                say("interrupted; what was written stays")
                raise typer.Exit(130) from None


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    said: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in said:
            said.add(str(message))
            say(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.filterwarnings("default", module=r"lmk_rag(\.|$)")
        warnings.showwarning = show
        yield


def say(line: str) -> None:
    """Tell the user something that is no result."""
    typer.echo(printable(line), err=True)


def say_error(line: str) -> None:
    """Tell the user what went wrong, in one line."""
    say("error: " + " ".join(line.split()))


def print_json(value: object) -> None:
    """Print the result of a command run with --json."""
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    typer.echo(json.dumps(value, ensure_ascii=plain, indent=2))


def shown(document_id: str) -> str:
    """Return a document id as people read it: relative if it is a file below this folder."""
    here = Path.cwd().as_posix().rstrip("/") + "/"
    return document_id.removeprefix(here)


def printable(text: str) -> str:
    """Replace control characters, which a terminal might act upon."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def counted(n: int, singular: str, plural: str | None = None) -> str:
    """Return "1 file" or "2,000 files"."""
    return f"{n:,} {singular if n == 1 else plural or singular + 's'}"
