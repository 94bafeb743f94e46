"""Open a store for a command: a folder in use fails at once, before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lmk_rag.config import DEFAULT_NAME, DEFAULT_PREFIX, LandmarkConfig
from lmk_rag.errors import CollectionMismatchError, StoreError

if TYPE_CHECKING:
    from lmk_rag import QdrantStore
    from lmk_rag.cli.options import ModelChoice


@dataclass(frozen=True)
class Description:
    """What a collection remembers of its encoder; enough for a store that encodes nothing."""

    model: str | None
    name: str
    dim: int
    fingerprint: str
    config: LandmarkConfig
    batch_tokens: int = 4096

    def encode_documents(self, texts: list[str], /) -> list[Any]:
        """Refuse: no model was loaded."""
        raise NotImplementedError

    def encode_queries(self, texts: list[str], /) -> Any:
        """Refuse: no model was loaded."""
        raise NotImplementedError

    def encode_query_parts(self, texts: list[str], /) -> list[Any]:
        """Refuse: no model was loaded."""
        raise NotImplementedError


@contextmanager
def open_store(location: str, collection: str, choice: ModelChoice) -> Iterator[QdrantStore]:
    """Open a collection, or make it; what `choice` leaves open is as the collection has it."""
    from lmk_rag.store import QdrantStore

    encoder = choice.load(_describe(location, collection))
    with encoder, QdrantStore(collection, encoder=encoder, location=location) as store:
        yield store


@contextmanager
def open_existing(
    location: str, collection: str, choice: ModelChoice | None = None
) -> Iterator[QdrantStore]:
    """Open a collection that must be there; without `choice` no model is loaded.

    Raises:
        StoreError: there is no such collection.
    """
    from lmk_rag.store import QdrantStore

    stored = _describe(location, collection) if _is_store(location) else None
    if stored is None:
        raise StoreError(
            f"there is no collection {collection!r} in {location}; make it with: lmk-rag index PATH"
        )
    encoder = stored if choice is None else choice.load(stored)
    with QdrantStore(collection, encoder=encoder, location=location) as store:
        yield store


def _is_store(location: str) -> bool:
    """Whether there may be a store; looking must not turn any folder into one."""
    from lmk_rag.store.opening import holds_store

    return "://" in location or holds_store(Path(location).expanduser())


def _describe(location: str, collection: str) -> Description | None:
    """Return what the collection remembers, or None if there is no such collection."""
    from lmk_rag.store.opening import open_backend
    from lmk_rag.store.schema import stored_description

    if location == ":memory:":
        raise typer.BadParameter("':memory:' ends with the command; name a folder or a URL")
    backend = open_backend(
        collection,
        location=location,
        client=None,
        engine="auto",
        api_key=None,
        prefer_grpc=False,
        timeout=60,
    )
    try:
        metadata = backend.read_metadata()
    finally:
        backend.close()
    if metadata is None:
        return None
    found: Any = stored_description(metadata)
    if found is None:
        raise CollectionMismatchError(f"collection {collection!r} was not made by lmk-rag")
    name = str(found["model"])
    if name != DEFAULT_NAME and name.startswith(DEFAULT_PREFIX):
        raise CollectionMismatchError(
            f"collection {collection!r} in {location} was made by another version of lmk-rag, with "
            f"its default model then, {name!r}, which this version does not have; index the files "
            "again into another --collection or --store"
        )
    return Description(
        model=None if name == DEFAULT_NAME else name,
        name=name,
        dim=found["width"],
        fingerprint=found["fingerprint"],
        config=LandmarkConfig.from_dict(found["config"]),
    )
