"""`Recipe`: everything that decides a training run, as one JSON file."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from lmk_rag.config import Boundary, LandmarkConfig, check_int
from lmk_rag.errors import ConfigError
from lmk_rag.pooling import Pooling
from lmk_rag.training.loss import Weights
from lmk_rag.training.modules import TrainedPooling
from lmk_rag.training.whitening import Whitening


@dataclass(frozen=True)
class Source:
    """A file, or a pair of them, to learn from.

    Attributes:
        name: of the source, in logs; a batch holds one source.
        pairs: a file of `{"query", "positive"}` lines, relative to the data folder.
        texts: a file of `{"text"}` lines; with `pairs`, those whose positive stands in a text
            become queries of that text.
        join: put this many positives behind each other to make one document.
        limit: use at most this many pairs or texts; drawn with the seed.
        weight: multiplies how often the source is drawn.
        licence: of its texts, a note for readers of the recipe.
    """

    name: str
    pairs: str | None = None
    texts: str | None = None
    join: int = 1
    limit: int | None = None
    weight: float = 1.0
    licence: str = ""

    def __post_init__(self) -> None:
        if self.pairs is None and self.texts is None:
            raise ConfigError(f"source {self.name!r} names neither pairs nor texts")
        check_int(f"join of source {self.name!r}", self.join, minimum=1)
        if self.join > 1 and self.texts is not None:
            raise ConfigError(
                f"source {self.name!r} has join {self.join}; expected 1, or more for pairs alone"
            )
        if self.limit is not None:
            check_int(f"limit of source {self.name!r}", self.limit, minimum=1)
        if not 0 < self.weight < math.inf:
            raise ConfigError(
                f"source {self.name!r} has weight {self.weight!r}; expected more than 0"
            )


@dataclass(frozen=True)
class Recipe:
    """A training run.

    Attributes:
        sources: what to learn from.
        model: folder or hub id to start from; None: all-MiniLM-L6-v2.
        teacher: folder or hub id; None: all-MiniLM-L6-v2; "": no teacher, and the weights that
            need one count for nothing.
        teacher_length: the teacher's window in tokens; None: its own.
        rotary: convert a BERT to rotary positions first.
        pooling: see `LandmarkTransformer`.
        config: how the trained model cuts texts; its `max_length` is the window in training too.
        granularities, query_granularities, boundaries: drawn from per text in training.
        weights: of the objectives.
        temperature, score_temperature: see `LandmarkLoss`.
        steps, batch_tokens: how many batches, and tokens of documents in each.
        learning_rate, warmup_steps, floor: a cosine from the rate to `floor` times it.
        weight_decay, beta2, clip: of AdamW, and the norm that gradients are clipped to.
        freeze: parameter name prefixes that are not trained.
        dtype: "float32", or "bfloat16" for bf16 weights with float32 master copies.
        mini_batch: documents per forward pass with gradient caching; None for none.
        piece: characters of the pieces that long texts are cut into.
        balance: sources are drawn by size to this power.
        max_queries: queries per document in a batch.
        seed: of everything drawn.
        objective: `retrieval`, or `retromae` for pretraining on texts alone.
        whitening: even out the trained model's vectors, by a layer behind the pooling; None: don't.
        saved_dtype: of the weights in the final folder.
        log_steps: between two lines of the log.
    """

    sources: tuple[Source, ...]
    model: str | None = None
    teacher: str | None = None
    teacher_length: int | None = None
    rotary: bool = False
    pooling: TrainedPooling = "lmk"
    config: LandmarkConfig = field(default_factory=LandmarkConfig)
    granularities: tuple[int, ...] = (16, 32, 64, 128, 256)
    query_granularities: tuple[int, ...] = (16, 32, 64)
    boundaries: tuple[Boundary, ...] = get_args(Boundary)
    weights: Weights = field(default_factory=Weights)
    temperature: float = 0.05
    score_temperature: float = 0.05
    steps: int = 1_000
    batch_tokens: int = 5_200
    learning_rate: float = 2e-4
    warmup_steps: int = 50
    floor: float = 0.03
    weight_decay: float = 0.01
    beta2: float = 0.98
    clip: float = 1.0
    freeze: tuple[str, ...] = ("pooler",)
    dtype: str = "float32"
    mini_batch: int | None = None
    piece: int = 6_000
    balance: float = 0.6
    max_queries: int = 8
    seed: int = 0
    objective: Literal["retrieval", "retromae"] = "retrieval"
    whitening: Whitening | None = None
    saved_dtype: str = "bfloat16"
    log_steps: int = 10

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("the recipe names no sources")
        for name in ("dtype", "saved_dtype"):
            if getattr(self, name) not in ("float32", "bfloat16"):
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; expected float32 or bfloat16"
                )
        _check_choice("objective", self.objective, ("retrieval", "retromae"))
        _check_choice("pooling", self.pooling, get_args(TrainedPooling))
        for boundary in self.boundaries:
            _check_choice("boundaries", boundary, get_args(Boundary))
        for name in ("granularities", "query_granularities", "boundaries"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty; expected at least one to draw from")
        for name in ("granularities", "query_granularities"):
            for size in getattr(self, name):
                check_int(name, size, minimum=1)
        for name in ("temperature", "score_temperature", "learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected more than 0")
        if not 0 <= self.beta2 < 1:
            raise ConfigError(f"beta2 is {self.beta2!r}; expected at least 0 and less than 1")
        for name in ("floor", "weight_decay", "balance"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected 0 to 1")
        for name in ("warmup_steps", "seed"):
            check_int(name, getattr(self, name), minimum=0)
        for name in ("mini_batch", "teacher_length"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=1)
        if not isinstance(self.rotary, bool):
            raise ConfigError(f"rotary is {self.rotary!r}; expected true or false")
        if self.mini_batch is not None and self.objective == "retromae":
            raise ConfigError("RetroMAE has no gradient caching; leave mini_batch out")
        if min(dataclasses.astuple(self.weights)) < 0 or not any(dataclasses.astuple(self.weights)):
            raise ConfigError(f"{self.weights}: expected no weight below 0 and one above")
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ConfigError("two sources have the same name")
        for name in ("steps", "batch_tokens", "piece", "max_queries", "log_steps"):
            check_int(name, getattr(self, name), minimum=1)
        if self.whitening is not None and self.pooling not in get_args(Pooling):
            raise ConfigError(
                f"whitening needs a model that LandmarkEncoder reads; the pooling is "
                f"{self.pooling!r}, expected one of {', '.join(get_args(Pooling))}"
            )
        if self.config.max_length is not None:
            self.check_window(self.config.max_length)
        if self.teacher == "" and self.objective == "retrieval":
            alone = (self.weights.contrast, self.weights.part_contrast)
            if not any(alone):
                raise ConfigError(
                    "there is no teacher, and neither contrast nor part_contrast has a weight: "
                    "nothing would be learned; name a teacher or give one of them a weight"
                )

    def check_window(self, length: int) -> None:
        """Make sure that every stretch that may be drawn fits a window of `length` tokens.

        Raises:
            ConfigError: it does not.
        """
        widest = max(*self.granularities, *self.query_granularities)
        if "sentence" in self.boundaries:
            stretch = dataclasses.replace(self.config, granularity=widest, boundary="sentence")
            widest = stretch.longest_stretch
        if widest + 3 > length:
            raise ConfigError(
                f"a stretch may take {widest} tokens, which does not fit a window of {length}; "
                "lower the granularities, or set a longer max_length in config"
            )

    def to_json(self) -> str:
        """Return the recipe as indented JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """Read a JSON file.

        Raises:
            ConfigError: unreadable, or with keys or values this version does not know.
        """
        try:
            values = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"the recipe {path} could not be read: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"the recipe {path} is no JSON object")
        try:
            sources = tuple(_build(Source, source) for source in values.pop("sources", ()))
            nested: dict[str, Any] = {"sources": sources}
            if "config" in values:
                nested["config"] = LandmarkConfig.from_dict(values.pop("config"))
            for name, kind in (("weights", Weights), ("whitening", Whitening)):
                if values.get(name) is not None:
                    nested[name] = _build(kind, values.pop(name))
            lists = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            recipe: Recipe = _build(cls, lists | nested)
            return recipe
        except (TypeError, ConfigError) as error:
            raise ConfigError(f"the recipe {path}: {error}") from error


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")


def _build(kind: Any, values: Any) -> Any:
    known = {f.name for f in dataclasses.fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(
            f"unknown keys {unknown} in {kind.__name__}; known are {', '.join(sorted(known))}"
        )
    return kind(**values)
