"""`lmk-rag encode`: vectors of files, for other programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmk_rag.cli.index import open_source, say_problems
from lmk_rag.cli.options import (
    BoundaryOption,
    DeviceOption,
    DtypeOption,
    EncodingOption,
    GranularityOption,
    JsonOption,
    MaxLengthOption,
    ModelChoice,
    ModelOption,
    StdinIdOption,
)
from lmk_rag.cli.terminal import counted, print_json
from lmk_rag.files import FileProblem
from lmk_rag.writing import replacing

if TYPE_CHECKING:
    from lmk_rag import DocumentEmbedding


def encode(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Files, folders, quoted patterns, or '-'."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a NumPy archive (.npz).")
    ] = None,
    stdin_id: StdinIdOption = "stdin",
    encoding: EncodingOption = "utf-8",
    model: ModelOption = None,
    granularity: GranularityOption = None,
    boundary: BoundaryOption = None,
    max_length: MaxLengthOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Encode files into document and landmark vectors, without a store.

    The archive holds, for N files with L landmarks altogether: ids (N), vectors (N, D),
    landmarks (L, D), spans (L, 2), landmark_tokens (L) and first (N + 1): the landmarks of file i
    are rows first[i] to first[i + 1].
    """
    if (output is None) != as_json:
        raise typer.BadParameter("give either --output FILE.npz or --json")
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {output.parent}")
    source = open_source(paths, encoding=encoding, stdin_id=stdin_id)
    ids: list[str] = []
    embeddings: list[DocumentEmbedding] = []
    if len(source):

        def texts() -> Iterator[str]:
            for document in source.documents():
                ids.append(document.id)
                yield document.text

        choice = ModelChoice(model, device, dtype, granularity, boundary, max_length)
        with choice.load() as encoder:
            embeddings = list(encoder.iter_documents(texts(), show_progress=True))
    missing = [FileProblem(given, "no such file or folder") for given in source.missing]
    if output is None:
        print_json([_json(*pair) for pair in zip(ids, embeddings, strict=True)])
    elif ids:
        _save(output, ids, embeddings)
        n_landmarks = sum(embedding.n_landmarks for embedding in embeddings)
        typer.echo(f"{output}: {counted(len(ids), 'document')}, {counted(n_landmarks, 'landmark')}")
    say_problems(source.problems + missing)
    if source.problems or missing:
        raise typer.Exit(1)


def _json(document_id: str, embedding: DocumentEmbedding) -> dict[str, object]:
    return {
        "document_id": document_id,
        "vector": embedding.vector.tolist(),
        "landmarks": embedding.landmarks.tolist(),
        "spans": embedding.spans.tolist(),
        "landmark_tokens": embedding.landmark_tokens.tolist(),
    }


def _save(path: Path, ids: list[str], embeddings: list[DocumentEmbedding]) -> None:
    import numpy as np

    with replacing(path) as file:
        np.savez(
            file,
            ids=np.array(ids),
            vectors=np.stack([e.vector for e in embeddings]),
            landmarks=np.concatenate([e.landmarks for e in embeddings]),
            spans=np.concatenate([e.spans for e in embeddings]),
            landmark_tokens=np.concatenate([e.landmark_tokens for e in embeddings]),
            first=np.cumsum([0] + [e.n_landmarks for e in embeddings]),
        )
