"""LlamaIndex's metadata filters in the store's terms: exactly, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from llama_index.vector_stores.lmk.nodes import NODE_ID, SOURCE_ID
from lmk_rag.errors import UnsupportedFilterError
from lmk_rag.store import And, Eq, Exists, Filter, In, Not, Or, Range

_RANGES = {
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
}


def build_filter(
    filters: MetadataFilters | None,
    *,
    doc_ids: Sequence[str] | None = None,
    node_ids: Sequence[str] | None = None,
) -> Filter | None:
    """Return the filter that all conditions given make together, or None for none."""
    parts: list[Filter] = [] if filters is None else [translate(filters)]
    if doc_ids is not None:
        parts.append(In(SOURCE_ID, doc_ids))
    if node_ids is not None:
        parts.append(In(NODE_ID, node_ids))
    return And(*parts) if parts else None


def translate(filters: MetadataFilters | MetadataFilter) -> Filter:
    """Translate a filter, nested ones included.

    An entry that is a list fulfills a comparison if any element does; a missing entry fulfills
    only NE, NIN, IS_EMPTY and NOT. Ranges take numbers, or dates as ISO text.

    Raises:
        UnsupportedFilterError: the store can't apply it exactly; names the operator.
    """
    if isinstance(filters, MetadataFilter):
        return _on_key(filters.key, lambda key: _condition(key, filters))
    parts = [translate(part) for part in filters.filters]
    condition = filters.condition or FilterCondition.AND
    if condition is FilterCondition.AND:
        return And(*parts)
    if condition is FilterCondition.OR:
        return Or(*parts)
    if condition is FilterCondition.NOT:
        return Not(Or(*parts))
    raise UnsupportedFilterError(f"the filter condition {condition!r} is not known")


def _on_key(key: str, condition: Callable[[str], Filter]) -> Filter:
    """Apply a condition to the entry of this name; one with a dot may also be a nested entry."""
    if re.fullmatch(r"[\w-]+", key):
        return condition(key)
    if not key or '"' in key:
        raise UnsupportedFilterError(f"a filter key is {key!r}; it can't be empty or hold quotes")
    quoted = f'"{key}"'
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)+", key):
        return condition(quoted)
    nested = And(Not(Exists(quoted)), condition(key))
    return Or(And(Exists(quoted), condition(quoted)), nested)


def _condition(key: str, given: MetadataFilter) -> Filter:
    operator, value = given.operator, given.value
    if operator is FilterOperator.IS_EMPTY:
        return Not(Exists(key))
    if operator in (FilterOperator.EQ, FilterOperator.CONTAINS):
        return Eq(key, _scalar(given))
    if operator is FilterOperator.NE:
        return Not(Eq(key, _scalar(given)))
    if operator in (FilterOperator.IN, FilterOperator.ANY):
        return In(key, _list(given))
    if operator is FilterOperator.NIN:
        return Not(In(key, _list(given)))
    if operator is FilterOperator.ALL and value:
        return And(*(Eq(key, one) for one in _list(given)))
    if operator in _RANGES:
        return Range(key, **{_RANGES[operator]: _bound(given)})
    raise _refusal(given)


def _scalar(given: MetadataFilter) -> Any:
    if isinstance(given.value, list):
        raise _refusal(given)
    return given.value


def _list(given: MetadataFilter) -> list[Any]:
    if not isinstance(given.value, list):
        raise _refusal(given)
    return given.value


def _bound(given: MetadataFilter) -> Any:
    if isinstance(given.value, str):
        try:
            return datetime.fromisoformat(given.value)
        except ValueError:
            raise _refusal(given) from None
    if not isinstance(given.value, int | float):
        raise _refusal(given)
    return given.value


def _refusal(given: MetadataFilter) -> UnsupportedFilterError:
    return UnsupportedFilterError(
        f"the filter operator {given.operator.name} ({given.operator.value!r}) with "
        f"{given.value!r:.80} on {given.key!r} can't be applied exactly"
    )
