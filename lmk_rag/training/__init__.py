"""Train landmark models: `lmk-rag train`, or `train(Recipe.read("recipe.json"), data, output)`.

    files -> examples -> batches -> collate (layouts, teacher) -> loss (objectives) -> run

Needs the extra `train`. The modules here are sentence-transformers modules, so its trainer,
losses, samplers and evaluators work on them.
"""

from __future__ import annotations

from lmk_rag.errors import require_extra

for _name in ("sentence_transformers", "datasets", "accelerate", "matplotlib"):
    require_extra(_name, "train", "training")

from lmk_rag.training.examples import Example, Pair, Query, read_pairs  # noqa: E402
from lmk_rag.training.loss import LandmarkLoss, Weights  # noqa: E402
from lmk_rag.training.mining import mine_negatives  # noqa: E402
from lmk_rag.training.modules import LandmarkPooling, LandmarkTransformer  # noqa: E402
from lmk_rag.training.recipe import Recipe, Source  # noqa: E402
from lmk_rag.training.retromae import RetroMAELoss  # noqa: E402
from lmk_rag.training.rope import to_rotary  # noqa: E402
from lmk_rag.training.run import TrainingResult, train  # noqa: E402
from lmk_rag.training.teacher import Teacher  # noqa: E402
from lmk_rag.training.whitening import Whitening  # noqa: E402

__all__ = [
    "Example",
    "LandmarkLoss",
    "LandmarkPooling",
    "LandmarkTransformer",
    "Pair",
    "Query",
    "Recipe",
    "RetroMAELoss",
    "Source",
    "Teacher",
    "TrainingResult",
    "Weights",
    "Whitening",
    "mine_negatives",
    "read_pairs",
    "to_rotary",
    "train",
]
