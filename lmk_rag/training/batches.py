"""Which examples share a batch: one source, like lengths, a token budget, no text twice.

Called by sentence-transformers' trainer through its `batch_sampler` argument.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from sentence_transformers.base.sampler import DefaultBatchSampler

from lmk_rag.training.examples import Example


class PlannedBatches(DefaultBatchSampler):
    """Batches that were planned before training, in their order, the same after a restart."""

    def __init__(self, batches: Sequence[Sequence[int]]) -> None:
        # Not its parent's __init__, which wants a sampler of single examples.
        self.batches = [list(batch) for batch in batches]
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Accept the number of the epoch: a plan is made for the whole run."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class BatchPlan:
    """What the trainer calls for its batches.

    Args:
        examples: all of them.
        budget: tokens of documents and listed negatives in a batch, estimated from characters.
        steps: how many batches to plan; sources are drawn in proportion to their tokens to the
            power of `balance`, and begin anew when used up.
        seed: of every draw.
        balance: 1 draws by size, 0 gives every source the same.
        weights: multiplies the draw of a source.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        budget: int,
        steps: int,
        seed: int,
        balance: float = 0.6,
        weights: dict[str, float] | None = None,
    ) -> None:
        self.batches = _plan(examples, budget, steps, seed, balance, weights or {})

    def __call__(self, *args: Any, **kwargs: Any) -> PlannedBatches:
        """Return the plan, whatever the trainer says about its dataset."""
        del args, kwargs
        return PlannedBatches(self.batches)


def estimate_tokens(text: str) -> int:
    """Guess the tokens of a text: about four characters each."""
    return len(text) // 4 + 2


def _plan(
    examples: Sequence[Example],
    budget: int,
    steps: int,
    seed: int,
    balance: float,
    weights: dict[str, float],
) -> list[list[int]]:
    draw = random.Random(seed)  # noqa: S311  # not for secrets
    of: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        of.setdefault(example.source, []).append(index)
    sources = sorted(of)
    sizes = [sum(estimate_tokens(examples[i].text) for i in of[name]) for name in sources]
    shares = [
        size**balance * weights.get(name, 1.0) for name, size in zip(sources, sizes, strict=True)
    ]
    waiting: dict[str, list[list[int]]] = {name: [] for name in sources}
    batches = []
    for _ in range(steps):
        (name,) = draw.choices(sources, shares)
        if not waiting[name]:
            waiting[name] = _fill(examples, of[name], budget, draw)
        batches.append(waiting[name].pop())
    return batches


def _fill(
    examples: Sequence[Example], indices: Sequence[int], budget: int, draw: random.Random
) -> list[list[int]]:
    """Share the examples of one source out over batches of like length."""
    jitter = {i: estimate_tokens(examples[i].text) * draw.uniform(0.8, 1.25) for i in indices}
    queue = sorted(indices, key=lambda i: jitter[i])
    batches: list[list[int]] = []
    while queue:
        batch: list[int] = []
        texts: set[str] = set()
        listed: set[str] = set()
        longest, later = 0, []
        for at, i in enumerate(queue):
            example = examples[i]
            own = {example.text, *(query.text for query in example.queries)}
            negatives = {text for query in example.queries for text in query.negatives}
            longest = max(longest, *map(estimate_tokens, (example.text, *negatives)))
            if batch and longest * (len(batch) + 1 + len(listed | negatives)) > budget:
                later += queue[at:]
                break
            if texts.isdisjoint(own):
                batch.append(i)
                texts |= own
                listed |= negatives
            else:
                later.append(i)  # a text never meets itself in a batch
        batches.append(batch)
        queue = later
    draw.shuffle(batches)
    return batches
