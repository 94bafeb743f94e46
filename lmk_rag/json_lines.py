"""Lines of text and of JSON, gzipped or not, with their places for messages."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmk_rag.errors import InputError


def read_lines(path: Path, *, error: type[InputError] = InputError) -> Iterator[tuple[str, str]]:
    """Yield the lines that are not blank, each after its place, "path:number".

    Raises:
        InputError, or what `error` says: the file can't be read.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{path}:{number}", line.rstrip("\r\n")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as cause:
        raise error(f"{path} can't be read after line {number}: {cause}") from cause


def read_json_lines(
    path: Path, *, error: type[InputError] = InputError
) -> Iterator[tuple[str, str, Any]]:
    """Yield place, line and value of every line that is not blank.

    Raises:
        InputError, or what `error` says: the file can't be read, or a line is not JSON.
    """
    for place, line in read_lines(path, error=error):
        try:
            value = json.loads(line)
        except json.JSONDecodeError as cause:
            raise error(f"{place}: {line!r:.80} is not JSON ({cause})") from cause
        yield place, line, value
