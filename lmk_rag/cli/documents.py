"""`lmk-rag documents` and `lmk-rag delete`: what is in the store. Neither loads a model."""

from __future__ import annotations

from typing import Annotated

import typer

from lmk_rag.cli.opening import open_existing
from lmk_rag.cli.options import (
    DEFAULT_COLLECTION,
    DEFAULT_STORE,
    CollectionOption,
    JsonOption,
    StoreOption,
)
from lmk_rag.cli.terminal import counted, print_json, printable, say, shown
from lmk_rag.listing import is_under, real_path


def documents(
    store: StoreOption = DEFAULT_STORE,
    collection: CollectionOption = DEFAULT_COLLECTION,
    as_json: JsonOption = False,
) -> None:
    """List the documents in the store."""
    with open_existing(store, collection) as opened:
        # An interrupted update leaves an old revision beside the new one for a while.
        by_id = {info.id: info for info in opened.documents()}
    found = [by_id[id_] for id_ in sorted(by_id)]
    if as_json:
        print_json(
            [
                {
                    "document_id": info.id,
                    "n_tokens": info.n_tokens,
                    "n_landmarks": info.n_landmarks,
                    "revision": info.revision,
                    "metadata": info.metadata,
                }
                for info in found
            ]
        )
        return
    typer.echo(f"{'tokens':>10} {'landmarks':>10}  document")
    for info in found:
        typer.echo(f"{info.n_tokens:>10,} {info.n_landmarks:>10,}  {printable(shown(info.id))}")
    tokens = sum(info.n_tokens for info in found)
    say(f"{counted(len(found), 'document')}, {counted(tokens, 'token')}")


def delete(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Document ids or paths of files.")],
    store: StoreOption = DEFAULT_STORE,
    collection: CollectionOption = DEFAULT_COLLECTION,
    recursive: Annotated[
        bool, typer.Option("-r", "--recursive", help="Delete all documents below a folder.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete documents from the store; files stay where they are.

    An id that is not stored is reported and no error: deleting twice is fine.
    """
    deleted: list[str] = []
    unknown: list[str] = []
    with open_existing(store, collection) as opened:
        stored = {info.id for info in opened.documents()}
        for given in ids:
            as_path = real_path(given).as_posix()
            if given in stored:
                found = [given]
            elif recursive:
                found = sorted(id_ for id_ in stored if is_under(id_, as_path))
            else:
                found = [as_path] if as_path in stored else []
            stored.difference_update(found)
            deleted += found
            if not found:
                unknown.append(given)
        opened.delete(deleted)
    if as_json:
        print_json({"deleted": deleted, "unknown": unknown})
    else:
        typer.echo(f"deleted {counted(len(deleted), 'document')}")
    for given in unknown:
        say(f"not in the store: {given}")
