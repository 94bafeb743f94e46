"""Results of all runs so far as one JSON file that grows with every method."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmk_rag.errors import InputError
from lmk_rag.evaluation.encodings import Encoding
from lmk_rag.evaluation.metrics import MethodResult
from lmk_rag.evaluation.sets import RetrievalSet
from lmk_rag.writing import write_text

_FORMAT = 2

# {"format": 2, "sets": {label: {"digest", "documents", "queries", "unjudged", "methods",
# "encodings", "significance"}}}, as `Results` writes it.
Tree = dict[str, Any]


class Results:
    """What was measured, by set and method; an entry replaces an older one of the same key.

    Args:
        path: the JSON file, read if it is there and written after every change; None keeps
            everything in memory.

    Raises:
        InputError: the file is not one of ours.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.tree: Tree = {"format": _FORMAT, "sets": {}}
        if path is not None and path.exists():
            self.tree = _read(path)

    def check(self, data: RetrievalSet) -> None:
        """Make sure that what is there of a set was measured on the same texts and judgments.

        Raises:
            InputError: another set of that name, or this one before it was changed.
        """
        known = self.tree["sets"].get(data.label)
        if known is not None and known["digest"] != data.digest:
            raise InputError(
                f"the results hold figures of another set called {data.label!r}, or of this one "
                "before it was changed; name another folder for the output"
            )

    def put(
        self, data: RetrievalSet, key: str, result: MethodResult, settings: Mapping[str, object]
    ) -> None:
        """Add a method's result, with the settings it was made with."""
        entry = {**asdict(result), "settings": dict(settings)}
        self._of(data)["methods"][key] = entry
        self._write()

    def put_encodings(self, data: RetrievalSet, encodings: Mapping[str, Encoding]) -> None:
        """Add what encodings cost."""
        own = self._of(data)["encodings"]
        for name, encoding in encodings.items():
            rate = round(encoding.tokens_per_second, 1)
            own[name] = {**asdict(encoding), "tokens_per_second": rate}
        self._write()

    def put_significance(
        self,
        data: RetrievalSet,
        rows: list[dict[str, object]],
        *,
        measured: Collection[str],
        compared: Collection[str],
    ) -> None:
        """Set the comparisons of a set, beside those of before that still hold.

        Args:
            data: the set.
            rows: as `compare` returns them.
            measured: the methods whose results are new.
            compared: the methods whose values by query were at hand, of before too.
        """
        entry = self._of(data)
        kept = [
            row
            for row in entry["significance"]
            if not (pair := {row["first"], row["second"]}) & set(measured)
            and not pair <= set(compared)
        ]
        entry["significance"] = kept + rows
        self._write()

    def _of(self, data: RetrievalSet) -> Tree:
        entry: Tree = self.tree["sets"].setdefault(
            data.label, {"methods": {}, "encodings": {}, "significance": []}
        )
        entry["digest"] = data.digest
        entry["documents"], entry["queries"] = len(data.documents), len(data.queries)
        entry["unjudged"] = data.unjudged
        return entry

    def _write(self) -> None:
        if self._path is not None:
            write_text(self._path, json.dumps(self.tree, indent=1, ensure_ascii=False) + "\n")


def _read(path: Path) -> Tree:
    try:
        tree = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be read as results: {error}") from error
    if not isinstance(tree, dict) or tree.get("format") != _FORMAT or "sets" not in tree:
        raise InputError(
            f"{path} does not hold results of this version; move it away or name another folder"
        )
    return tree
