"""`LandmarkLoss`: the objectives of a batch, weighted, with or without gradient caching."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmk_rag.errors import ConfigError, NonFiniteError
from lmk_rag.training.objectives import (
    best_of_parts,
    cosines,
    group_distillation,
    info_nce,
    relation_divergence,
    score_divergence,
    vector_distillation,
)
from lmk_rag.training.precision import summed_in_float32

Features = dict[str, Any]
# Sums depend on their order in the last digits, and logs are to be reproduced to all of them.
_ORDER = (
    "vector",
    "landmark",
    "relations",
    "contrast",
    "scores",
    "group",
    "part_contrast",
    "part_scores",
)
_WITHOUT_TEACHER = ("contrast", "part_contrast")


@dataclass(frozen=True)
class Weights:
    """How much each objective counts; 0 leaves it out.

    Attributes:
        vector: document and query vectors towards the teacher's.
        landmark: each landmark towards the teacher's vector of its stretch.
        relations: how alike the batch's landmarks are to each other, as KL; like all scores,
            from a teacher of any width.
        scores: the teacher's similarities of queries and documents, as KL.
        part_scores: the same for each part's best landmark (MaxSim).
        group: the teacher's scores over a query's positive and all other candidates in the
            batch, as BGE-M3 distills them over a group.
        contrast: InfoNCE of queries and document vectors.
        part_contrast: InfoNCE of queries and each part's best landmark (MaxSim).
    """

    vector: float = 2.0
    landmark: float = 1.0
    relations: float = 0.0
    scores: float = 0.3
    part_scores: float = 0.0
    group: float = 0.0
    contrast: float = 0.1
    part_contrast: float = 0.0


class LandmarkLoss(nn.Module):
    """What sentence-transformers' trainer minimizes.

    Args:
        model: a SentenceTransformer of `LandmarkTransformer` and `LandmarkPooling`.
        weights: see there.
        temperature: of the contrastive objectives.
        score_temperature: of the score distillation.
        group_size: members of a group for `weights.group`: the positive and the candidates that
            the teacher likes best.
        mini_batch: documents that go through the model at once with gradient caching (Gao et al.
            2021, arXiv 2101.06983); None for all at once. The gradients are the same.

    `forward` returns the weighted objectives by name; the trainer sums and logs them. One that a
    batch has no say in (it holds no query, for instance) is 0, so that the names are always the
    same: processes that train together exchange them in order.

    Raises:
        NonFiniteError: an objective is NaN or infinite, before anything is learned from it.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Weights | None = None,
        *,
        temperature: float = 0.05,
        score_temperature: float = 0.05,
        group_size: int = 8,
        mini_batch: int | None = None,
    ) -> None:
        super().__init__()
        if mini_batch is not None and mini_batch < 1:
            raise ConfigError(f"mini_batch is {mini_batch}; expected at least 1, or None")
        self.model = model
        self.weights = weights or Weights()
        self.temperature = temperature
        self.score_temperature = score_temperature
        self.group_size = group_size
        self.mini_batch = mini_batch

    def forward(self, features: list[Features], labels: Tensor | None = None) -> dict[str, Tensor]:
        """Compute the objectives of a batch as `LandmarkCollator` makes them."""
        del labels
        query = next((f for f in features if "positive_part" in f), None)
        document = next(f for f in features if "row_parts" in f)
        if self.mini_batch is None or not torch.is_grad_enabled():
            queries = self._vectors(query) if query is not None else None
            vectors, rows = self._documents(document)
            return finite(self._objectives(query, document, queries, vectors, rows))
        return self._cached(query, document, self.mini_batch)

    def _vectors(self, features: Features) -> Tensor:
        vectors: Tensor = self.model(dict(features))["sentence_embedding"]
        return vectors.float()

    def _documents(self, features: Features) -> tuple[Tensor, Tensor]:
        """Return (B, D) vectors and (R, D) landmark rows of all documents, in order."""
        output = self.model(dict(features))
        states = output["token_embeddings"].float()
        if "stretch" in features:
            rows = stretch_rows(states, features["stretch"], features["row_parts"] > -2)
        else:
            rows = states[output["pooled"]]
        return output["sentence_embedding"].float(), rows

    def _objectives(
        self,
        query: Features | None,
        document: Features,
        queries: Tensor | None,
        vectors: Tensor,
        rows: Tensor,
    ) -> dict[str, Tensor]:
        weights = self.weights
        parts = document["row_parts"][document["row_parts"] > -2]
        targets = document.get("teacher_vectors")
        found: dict[str, Tensor] = {}
        if targets is not None and weights.vector:
            found["vector"] = vector_distillation(vectors, targets)
        if targets is not None and (weights.landmark or weights.relations):
            taught = document["teacher_rows"][document["row_parts"] > -2]
            if weights.landmark:
                found["landmark"] = vector_distillation(rows, taught)
            if weights.relations:
                found["relations"] = relation_divergence(rows, taught, self.score_temperature)
        if query is not None and queries is not None:
            found |= self._query_objectives(query, document, queries, vectors, rows, parts)
            if targets is not None and weights.vector:
                found["vector"] = found["vector"] + vector_distillation(
                    queries, query["teacher_vectors"]
                )
        # A batch that teaches nothing still needs something to differentiate.
        nothing = 0.0 * (vectors.sum() + rows.sum())
        weighted = {
            name: weight * found.get(name, nothing)
            for name in _ORDER
            if (weight := getattr(weights, name))
            and (targets is not None or name in _WITHOUT_TEACHER)
        }
        return weighted or {"nothing": nothing}

    def _query_objectives(
        self,
        query: Features,
        document: Features,
        queries: Tensor,
        vectors: Tensor,
        rows: Tensor,
        parts: Tensor,
    ) -> dict[str, Tensor]:
        weights = self.weights
        found: dict[str, Tensor] = {}
        similar = cosines(queries, vectors)
        blocked, positive = query["blocked_documents"], query["positive_document"]
        if weights.contrast:
            found["contrast"] = info_nce(similar, positive, blocked, self.temperature)
        if "teacher_vectors" in query:
            teacher = cosines(query["teacher_vectors"], document["teacher_vectors"])
            if weights.scores:
                found["scores"] = score_divergence(similar, teacher, self.score_temperature)
            if weights.group:
                order = teacher.scatter(1, positive[:, None], torch.inf)
                order = order.masked_fill(blocked.scatter(1, positive[:, None], False), -torch.inf)
                # No larger than what every query has free: a blocked text is in no group.
                free = int((order > -torch.inf).sum(1).min())
                size = min(self.group_size, free)
                group = order.topk(size, dim=1).indices
                found["group"] = group_distillation(
                    similar,
                    group,
                    teacher.gather(1, group),
                    blocked,
                    temperature=self.temperature,
                    teacher_temperature=self.score_temperature,
                )
        if weights.part_contrast or weights.part_scores:
            found |= self._part_objectives(query, document, queries, rows, parts)
        return found

    def _part_objectives(
        self, query: Features, document: Features, queries: Tensor, rows: Tensor, parts: Tensor
    ) -> dict[str, Tensor]:
        blocked, positive = query["blocked_parts"], query["positive_part"]
        n_parts = blocked.shape[1]
        inside = parts >= 0
        # A landmark longer than a part may leave it without one: then there is nothing to pull,
        # and nothing to push away.
        held = torch.zeros(n_parts, dtype=torch.bool, device=parts.device)
        held[parts[inside]] = True
        kept = held[positive]
        found: dict[str, Tensor] = {}
        if not bool(kept.any()):
            return found
        best = best_of_parts(cosines(queries, rows[inside]), parts[inside], n_parts)
        if self.weights.part_contrast:
            found["part_contrast"] = info_nce(
                best[kept], positive[kept], (blocked | ~held)[kept], self.temperature
            )
        if self.weights.part_scores and "teacher_vectors" in query:
            taught = document["teacher_rows"][document["row_parts"] > -2][inside]
            target = best_of_parts(
                cosines(query["teacher_vectors"], taught), parts[inside], n_parts
            )
            found["part_scores"] = score_divergence(
                best[:, held], target[:, held], self.score_temperature
            )
        return found

    def _cached(
        self, query: Features | None, document: Features, mini_batch: int
    ) -> dict[str, Tensor]:
        """Compute the loss on outputs without a graph, and give the outputs' gradients to a
        second pass that keeps one mini-batch of activations at a time.
        """
        with torch.no_grad():
            queries = self._vectors(query).requires_grad_() if query is not None else None
            pieces = [self._documents(piece) for piece in _mini_batches(document, mini_batch)]
        vectors = torch.cat([vectors for vectors, _ in pieces]).requires_grad_()
        rows = torch.cat([rows for _, rows in pieces]).requires_grad_()
        with torch.enable_grad():
            losses = finite(self._objectives(query, document, queries, vectors, rows))
            torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        sizes = [len(rows) for _, rows in pieces]
        outputs = [t for t in (queries, vectors, rows) if t is not None]
        gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in outputs]

        def again(scale: Tensor) -> None:
            with torch.enable_grad(), summed_in_float32(self.model):
                if query is not None:
                    (self._vectors(query) * gradients[0] * scale).sum().backward()  # type: ignore[no-untyped-call]
                at, row = 0, 0
                for piece, size in zip(_mini_batches(document, mini_batch), sizes, strict=True):
                    new_vectors, new_rows = self._documents(piece)
                    end = at + len(new_vectors)
                    own = (new_vectors * gradients[-2][at:end]).sum()
                    own = own + (new_rows * gradients[-1][row : row + size]).sum()
                    (own * scale).backward()  # type: ignore[no-untyped-call]
                    at, row = end, row + size

        return _with_hook({name: loss.detach() for name, loss in losses.items()}, again)


def stretch_rows(states: Tensor, stretch: Tensor, real: Tensor) -> Tensor:
    """Average the states of each stretch.

    Args:
        states: (B, T, D).
        stretch: (B, T) number of the stretch in its document, -1 for none.
        real: (B, L) bool: which stretches each document has.

    Returns:
        (R, D) rows of all documents in order; zeros where a stretch holds no token.
    """
    counts = real.sum(1)
    first = torch.cumsum(counts, 0) - counts
    document, at = torch.nonzero(stretch >= 0, as_tuple=True)
    row = first[document] + stretch[document, at]
    sums = states.new_zeros(int(counts.sum()), states.shape[-1])
    sums = sums.index_add(0, row, states[document, at])
    tokens = torch.bincount(row, minlength=len(sums)).clamp(min=1)
    return sums / tokens[:, None]


def finite(losses: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return losses that are numbers.

    Raises:
        NonFiniteError: one is NaN or infinite.
    """
    if not bool(torch.isfinite(torch.stack([loss.detach() for loss in losses.values()])).all()):
        told = ", ".join(f"{name} {loss.item():.4g}" for name, loss in losses.items())
        raise NonFiniteError(
            f"the training diverged (losses: {told}); start again, in another folder, with a lower "
            "learning_rate"
        )
    return losses


def _with_hook(losses: dict[str, Tensor], again: Callable[[Tensor], None]) -> dict[str, Tensor]:
    """Make `again` run when the sum of the losses is differentiated."""
    first, *others = losses
    leaf = losses[first].requires_grad_()
    leaf.register_hook(again)  # type: ignore[no-untyped-call]
    return {first: leaf, **{name: losses[name] for name in others}}


def _mini_batches(features: Features, size: int) -> Iterator[Features]:
    """Cut the documents of a batch into mini-batches, without their common padding."""
    mask = features["attention_mask"]
    for first in range(0, len(mask), size):
        piece = {
            name: value[first : first + size]
            for name, value in features.items()
            if isinstance(value, Tensor)
        }
        longest = int(piece["attention_mask"].sum(1).max())
        for name in ("input_ids", "attention_mask", "window", "pooled", "content", "stretch"):
            if name in piece:
                piece[name] = piece[name][:, :longest]
        yield piece
