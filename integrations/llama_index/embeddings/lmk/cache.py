"""A view of a key-value store under a prefix, so that one cache can serve many kinds of keys."""

from __future__ import annotations

from typing import Any

from llama_index.core.storage.kvstore.types import DEFAULT_COLLECTION, BaseKVStore


class PrefixedKVStore(BaseKVStore):
    """The keys of `inner` that begin with `prefix`, without it.

    LlamaIndex keys cached embeddings by the text alone: a query equal to a cached document
    would get the document's vector, and a second model those of the first.
    """

    def __init__(self, inner: BaseKVStore, prefix: str) -> None:
        self._inner = inner
        self._prefix = prefix

    def put(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        """Put a value."""
        self._inner.put(self._prefix + key, val, collection=collection)

    async def aput(
        self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION
    ) -> None:
        """Put a value."""
        await self._inner.aput(self._prefix + key, val, collection=collection)

    def get(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """Return a value, or None."""
        return self._inner.get(self._prefix + key, collection=collection)

    async def aget(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """Return a value, or None."""
        return await self._inner.aget(self._prefix + key, collection=collection)

    def get_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Return every value under the prefix."""
        return self._own(self._inner.get_all(collection=collection))

    async def aget_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Return every value under the prefix."""
        return self._own(await self._inner.aget_all(collection=collection))

    def delete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Delete a value; returns whether there was one."""
        return self._inner.delete(self._prefix + key, collection=collection)

    async def adelete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Delete a value; returns whether there was one."""
        return await self._inner.adelete(self._prefix + key, collection=collection)

    def _own(self, values: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {
            key.removeprefix(self._prefix): value
            for key, value in values.items()
            if key.startswith(self._prefix)
        }
