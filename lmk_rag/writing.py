"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lmk_rag.errors import InputError
from lmk_rag.listing import reason_of


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside its place and move it there at the end, so that no half of one is seen.

    Raises:
        InputError: it can't be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise InputError(f"{path} can't be written: {reason_of(error)}") from error
    finally:
        with suppress(OSError):  # it is not there, or could not even be made
            part.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8; see `replacing`."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
