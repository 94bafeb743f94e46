"""Even out a trained model's vectors: one linear layer behind the pooling.

All texts share a few directions far more than the others, so that the mean of a long text is mostly
those few. A map that draws them in by part of their length lets the rest be heard.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from sentence_transformers.base.modules import Dense
from torch import nn

from lmk_rag.config import LandmarkConfig, check_int
from lmk_rag.encoder import LandmarkEncoder
from lmk_rag.errors import ConfigError, TrainingDataError
from lmk_rag.training.examples import Example
from lmk_rag.training.modules import LandmarkTransformer
from lmk_rag.types import Floats


@dataclass(frozen=True)
class Whitening:
    """How far a model's vectors are evened out after training.

    Attributes:
        power: 0.5 evens out all that `shrinkage` leaves, 0 nothing.
        shrinkage: of the mean over all directions, added to each; more changes less.
        documents: to learn from, as many from each source as from any other.
        granularity: of the landmarks to learn from; None: as the trained model cuts texts.

    Raises:
        ConfigError: a value is out of range.
    """

    power: float = 0.25
    shrinkage: float = 0.01
    documents: int = 2_000
    granularity: int | None = None

    def __post_init__(self) -> None:
        for name in ("power", "shrinkage"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected more than 0")
        check_int("documents", self.documents, minimum=2)
        if self.granularity is not None:
            check_int("granularity", self.granularity, minimum=1)

    def cuts(self, config: LandmarkConfig) -> LandmarkConfig:
        """Return how the documents to learn from are cut, for a model that cuts by `config`."""
        return replace(config, granularity=self.granularity or config.granularity)


def whitening_matrix(rows: Floats, *, power: float, shrinkage: float) -> Floats:
    """Return the map that evens out the directions of rows.

    With the mean squares v of the rows along the eigenvectors U of their second moment, and the
    mean m of these,

        U diag((v / m + shrinkage) ** -power) U^T

    which for power 0.5 and ever less shrinkage is the whitening of Su et al. 2021 (arXiv
    2103.15316) without its shift: what all rows share is one of the directions drawn in, and a
    linear map keeps the mean of landmarks the mean.

    Args:
        rows: (N, D).
        power, shrinkage: see `Whitening`.

    Returns:
        (D, D) float32, symmetric.

    Raises:
        TrainingDataError: fewer rows than directions.
    """
    wide = np.asarray(rows, np.float64)
    if len(wide) < wide.shape[1]:
        raise TrainingDataError(
            f"whitening got {len(wide)} landmarks for {wide.shape[1]} directions; expected as many "
            "at least, so give it more documents"
        )
    squares, directions = np.linalg.eigh(wide.T @ wide)
    scale = (np.maximum(squares, 0) / squares.mean() + shrinkage) ** -power
    return np.asarray((directions * scale) @ directions.T, np.float32)


def check_landmarks(
    whitening: Whitening, seed: int, examples: Sequence[Example], transformer: LandmarkTransformer
) -> None:
    """Make sure, before a long run, that there will be a landmark per direction at its end.

    Raises:
        TrainingDataError: there will not.
    """
    width, found = transformer.get_embedding_dimension(), 0
    chosen = sample(examples, whitening.documents, seed=seed)
    cuts = whitening.cuts(transformer.config)
    for example in chosen:
        found += len(transformer.lay_out(example.text, config=cuts).spans)
        if found >= width:
            return
    raise TrainingDataError(
        f"whitening evens out {width} directions by as many landmarks at least, and the "
        f"{len(chosen)} documents it would learn from have {found}; give the recipe more or longer "
        "texts, more `documents` in whitening, or no whitening"
    )


def whitening_layer(
    folder: str,
    config: LandmarkConfig,
    examples: Sequence[Example],
    whitening: Whitening,
    *,
    seed: int,
    device: str,
) -> Dense:
    """Return a layer that evens out what a saved model makes of the landmarks of examples."""
    chosen = sample(examples, whitening.documents, seed=seed)
    cuts = whitening.cuts(config)
    with LandmarkEncoder(folder, config=cuts, device=device, dtype="float32") as encoder:
        embeddings = encoder.encode_documents([example.text for example in chosen])
    rows = np.concatenate([embedding.landmarks for embedding in embeddings])
    matrix = whitening_matrix(rows, power=whitening.power, shrinkage=whitening.shrinkage)
    width = len(matrix)
    return Dense(
        width,
        width,
        bias=False,
        activation_function=nn.Identity(),
        init_weight=torch.from_numpy(matrix),
    )


def sample(examples: Sequence[Example], n: int, *, seed: int) -> list[Example]:
    """Draw n examples, as evenly from their sources as these allow, in their order."""
    of: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        of.setdefault(example.source, []).append(index)
    draw = random.Random(seed)  # noqa: S311  # not for secrets
    queues = [draw.sample(own, len(own)) for _, own in sorted(of.items())]
    chosen: list[int] = []
    while len(chosen) < n and any(queues):
        chosen += [own.pop() for own in queues if own]
    return [examples[index] for index in sorted(chosen[:n])]
