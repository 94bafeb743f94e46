"""`lmk-rag train` and `lmk-rag mine`: make a landmark model, and hard negatives for it."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmk_rag.cli.options import DeviceOption, JsonOption, ModelOption
from lmk_rag.cli.terminal import counted, print_json, say
from lmk_rag.writing import replacing

if TYPE_CHECKING:
    from lmk_rag.training import Pair


def train(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A JSON file.")],
    data: Annotated[
        Path, typer.Option("--data", help="The folder that the recipe's files are in.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for model, checkpoints and log.")
    ],
    save_minutes: Annotated[
        float, typer.Option("--save-minutes", min=0.1, help="Time between checkpoints.")
    ] = 5.0,
    stop_minutes: Annotated[
        float | None,
        typer.Option("--stop-minutes", min=0.1, help="Stop after this long; go on another time."),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="auto, or cpu to keep off accelerators.")
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Train a landmark model by a recipe.

    The same command goes on from the last checkpoint, exactly as if it had not stopped.
    """
    from lmk_rag import training
    from lmk_rag.training.processes import is_first_process, leave

    result = training.train(
        training.Recipe.read(recipe),
        data,
        output,
        save_minutes=save_minutes,
        stop_minutes=stop_minutes,
        device=device,
        show_progress=True,
    )
    leave()
    if not is_first_process():
        return
    if as_json:
        print_json(dataclasses.asdict(result) | {"folder": str(result.folder)})
        return
    state = "finished" if result.finished else "stopped; the same command goes on from there"
    typer.echo(f"{result.folder}: step {result.steps}, {counted(result.tokens, 'token')}, {state}")


def mine(
    pairs: Annotated[
        Path, typer.Argument(metavar="PAIRS", help='Lines of {"query", "positive"}; .jsonl or .gz.')
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the lines go.")],
    n: Annotated[int, typer.Option("--negatives", "-n", min=1, help="The most per pair.")] = 4,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Texts looked at per query.")] = 50,
    model: ModelOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Add hard negatives to training pairs: what the retriever finds that is no known answer."""
    from lmk_rag import LandmarkEncoder, training

    given = training.read_pairs(pairs)
    with replacing(output) as file:  # before the work, so that a place without access is told first
        with LandmarkEncoder(model, device=device) as encoder:
            mined = training.mine_negatives(given, encoder, n=n, depth=depth, show_progress=True)
        data = "".join(map(_line, mined)).encode("utf-8")
        file.write(gzip.compress(data) if output.suffix == ".gz" else data)
    found = sum(len(pair.negatives) for pair in mined)
    typer.echo(f"{output}: {counted(len(mined), 'pair')}, {counted(found, 'negative')}")
    if not found:
        say("no negatives were found: the texts are few, or all known to answer")


def _line(pair: Pair) -> str:
    """Return a pair as it was read; only a lone surrogate, which is no UTF-8, asks for escapes."""
    from lmk_rag.store.metadata import surrogate_at

    line = json.dumps(dataclasses.asdict(pair), ensure_ascii=False) + "\n"
    return line if surrogate_at(line) is None else json.dumps(dataclasses.asdict(pair)) + "\n"
