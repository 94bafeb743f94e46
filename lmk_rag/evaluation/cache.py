"""Arrays on disk, a file per block of texts: an interrupted run goes on where it stopped."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmk_rag.errors import InputError
from lmk_rag.writing import replacing

Arrays = Mapping[str, np.ndarray[Any, Any]]


class ArrayCache:
    """Arrays by content: the key says what they were made from.

    Args:
        folder: where to keep them; None keeps nothing.
        block_chars: characters of the texts that are encoded and kept together; by default
            about ten seconds' work of a CPU, which is what a kill may cost.
    """

    def __init__(self, folder: Path | None, *, block_chars: int = 200_000) -> None:
        self._folder = folder
        self.block_chars = block_chars

    def load(self, key: str) -> Arrays | None:
        """Return what was kept under a key, or None.

        Raises:
            InputError: the file is damaged.
        """
        path = self._path(key)
        if path is None or not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as kept:
                return dict(kept)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is damaged ({error}); delete it and run again") from error

    def save(self, key: str, arrays: Arrays) -> None:
        """Keep arrays under a key; no half of a file is ever seen.

        Raises:
            InputError: the file can't be written.
        """
        path = self._path(key)
        if path is None:
            return
        with replacing(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # none is named allow_pickle

    def _path(self, key: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{key}.npz"


def key_of(*parts: str) -> str:
    """Return 32 hex digits that change with any part."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))  # so that "ab", "c" is not "a", "bc"
        digest.update(data)
    return digest.hexdigest()[:32]


def blocks(texts: Sequence[str], size: int) -> Iterator[slice]:
    """Yield runs of neighboring texts of about `size` characters, each text once."""
    first = total = 0
    for at, text in enumerate(texts):
        total += len(text)
        if total >= size:
            yield slice(first, at + 1)
            first, total = at + 1, 0
    if first < len(texts):
        yield slice(first, len(texts))
