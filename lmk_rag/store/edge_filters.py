"""Qdrant's filters in the classes of Qdrant Edge.

Its Python binding turns a boolean into a number, so booleans can't be matched there. Points
carry them once more as text, `"metadata.draft=true"`, and a condition on a boolean asks for that.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

from qdrant_client import models

from lmk_rag.errors import UnsupportedFilterError
from lmk_rag.store.filters import METADATA, quoted_part

FLAGS = "flags"


def bool_flags(metadata: object) -> list[str]:
    """Return every boolean of some metadata as path and value."""
    return sorted(set(_flags(METADATA, metadata)))


def _flags(path: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [_flag(path, value)]
    if isinstance(value, dict):
        return [
            flag
            for key, entry in value.items()
            for flag in _flags(f"{path}.{quoted_part(key)}", entry)
        ]
    if isinstance(value, list):
        # A condition on a list holds if it holds for an element, with or without brackets.
        leaves = [_flag(path, entry) for entry in value if isinstance(entry, bool)]
        return leaves + [flag for entry in value for flag in _flags(f"{path}[]", entry)]
    return []


def _flag(path: str, value: bool) -> str:  # a value, not a switch
    return f"{path}={'true' if value else 'false'}"


def to_edge(edge: ModuleType, condition: Any) -> Any:
    """Translate one of qdrant-client's conditions.

    Raises:
        UnsupportedFilterError: one that `filters.translate` does not make.
    """
    if isinstance(condition, models.Filter):
        parts = {
            name: [to_edge(edge, part) for part in getattr(condition, name)]
            for name in ("must", "should", "must_not")
            if getattr(condition, name)
        }
        return edge.Filter(**parts)
    if isinstance(condition, models.HasIdCondition):
        return edge.HasIdCondition(set(condition.has_id))
    if isinstance(condition, models.IsNullCondition):
        return edge.IsNullCondition(condition.is_null.key)
    if isinstance(condition, models.IsEmptyCondition):
        return edge.IsEmptyCondition(condition.is_empty.key)
    if isinstance(condition, models.FieldCondition):
        key = condition.key
        if isinstance(condition.match, models.MatchValue):
            value = condition.match.value
            if not isinstance(value, bool):
                return edge.FieldCondition(key, match=edge.MatchValue(value))
            if re.search(r"\[\d+\]", key):
                raise UnsupportedFilterError(
                    f"{key!r}: Qdrant Edge can't compare a boolean at one place of a list"
                )
            return edge.FieldCondition(FLAGS, match=edge.MatchAny([_flag(key, value)]))
        if isinstance(condition.match, models.MatchAny):
            return edge.FieldCondition(key, match=edge.MatchAny(list(condition.match.any)))
        bounds = condition.range
        if isinstance(bounds, models.DatetimeRange):
            moments = {k: v.isoformat() for k, v in bounds if v is not None}
            return edge.FieldCondition(key, range=edge.RangeDateTime(**moments))
        if isinstance(bounds, models.Range):
            return edge.FieldCondition(
                key, range=edge.RangeFloat(**{k: v for k, v in bounds if v is not None})
            )
    raise UnsupportedFilterError(f"Qdrant Edge can't apply {condition!r:.200}")
