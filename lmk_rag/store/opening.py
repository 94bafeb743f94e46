"""Choose the backend for a place: memory, a folder and its engine, or a server."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from qdrant_client import QdrantClient

from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import ConfigError, InputError, StoreError
from lmk_rag.store.backend import ClientBackend, connect, folder_of
from lmk_rag.store.edge import EdgeBackend, holds_edge, read_edge_metadata
from lmk_rag.store.local import LocalBackend
from lmk_rag.store.operations import Backend
from lmk_rag.store.schema import stored_description

Engine = Literal["auto", "edge", "local"]

_NAME = re.compile(r'[^<>:"/\\|?*\x00-\x1f]{1,255}')  # what every Qdrant takes
_LOCAL_FILE = "meta.json"  # what local mode keeps in its folders


def open_backend(
    collection: str,
    *,
    location: str | Path,
    client: QdrantClient | None,
    engine: Engine,
    api_key: str | None,
    prefer_grpc: bool,
    timeout: int,
) -> Backend:
    """Open a place; see `QdrantStore` for the arguments and errors."""
    if engine not in get_args(Engine):
        raise ConfigError(f"engine is {engine!r}; expected one of {', '.join(get_args(Engine))}")
    if not isinstance(collection, str) or not _NAME.fullmatch(collection):
        raise InputError(
            f"the collection is called {collection!r:.80}; expected 1 to 255 characters and none "
            'of < > : " / \\ | ? *'
        )
    folder = None if client is not None else folder_of(location)
    try:
        if folder is not None and _engine(folder, engine) == "edge":
            return EdgeBackend(folder, collection)
    except OSError as error:
        raise StoreError(f"the store at {folder} can't be opened: {error}") from error
    opened = client or connect(location, api_key=api_key, prefer_grpc=prefer_grpc, timeout=timeout)
    inner = _client_backend(opened, collection, client, location)
    return LocalBackend(inner) if inner.is_local else inner


def read_config(
    collection: str,
    *,
    location: str | Path,
    client: QdrantClient | None = None,
    api_key: str | None = None,
) -> LandmarkConfig | None:
    """Return the landmark config a collection was made with, or None if it is not there."""
    folder = None if client is not None else folder_of(location)
    if folder is not None and holds_edge(folder):
        metadata = read_edge_metadata(folder, collection)
    elif folder is not None and not holds_store(folder):
        return None  # looking must not make a folder
    else:
        opened = client or connect(location, api_key=api_key, prefer_grpc=False, timeout=60)
        backend = _client_backend(opened, collection, client, location)
        try:
            metadata = backend.read_metadata()
        finally:
            backend.close()
    found = stored_description(metadata)
    return None if found is None else LandmarkConfig.from_dict(found.get("config"))


def holds_store(folder: Path) -> bool:
    """Whether a folder is a store of either engine; looking does not make it one."""
    return (folder / _LOCAL_FILE).exists() or holds_edge(folder)


def _client_backend(
    opened: QdrantClient, collection: str, given: QdrantClient | None, location: str | Path
) -> ClientBackend:
    if given is not None:
        return ClientBackend(opened, collection, owned=False)
    return ClientBackend(opened, collection, owned=True, place=str(location))


def _engine(folder: Path, wanted: Engine) -> Engine:
    """Settle the engine of a folder: one folder has one, whoever opens it."""
    made_by: Engine = "edge" if holds_edge(folder) else "auto"
    if (folder / _LOCAL_FILE).exists():
        made_by = "local"
    if "auto" not in (wanted, made_by) and wanted != made_by:
        raise ConfigError(
            f"the store at {folder} was made by engine={made_by!r}, not {wanted!r}; leave the "
            "engine out, or use another folder"
        )
    if made_by != "auto":
        return made_by
    if wanted != "auto":
        return wanted
    return "edge" if find_spec("qdrant_edge") is not None else "local"
