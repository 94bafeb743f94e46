"""Two rankings of the same documents as one: landmarks and words.

Both rules take scores, not positions in an engine's answer, so that every engine fuses alike.
Scores that agree to some digits count as equal, since engines add floats in different orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lmk_rag.errors import ConfigError

Rule = Literal["rrf", "weighted"]

CANDIDATES = 400  # documents of each ranking, by default; see `lmk_rag.Retriever`
RANK_CONSTANT = 60  # of Cormack et al.; it keeps the first few ranks from deciding alone
_DIGITS = 5  # of a cosine or match, significant
_FUSED_DIGITS = 6  # of a fused score, after the point


@dataclass(frozen=True)
class Fusion:
    """How hybrid search joins landmarks and words.

    Attributes:
        rule: `weighted`, by scores (see `weighted_scores`), or `rrf`, by ranks (see
            `reciprocal_ranks`). Scores tell a name that one document alone has from a word that
            many have; ranks don't.
        words: the weight of the words, in [0, 1]; the landmarks have the rest. By scores each is
            weighed beyond that by how far its best document stands out.

    Raises:
        ConfigError: no such rule, or a weight outside [0, 1].
    """

    rule: Rule = "weighted"
    words: float = 0.5

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise ConfigError(
                f"the rule of fusion is {self.rule!r}; expected one of {', '.join(get_args(Rule))}"
            )
        number = isinstance(self.words, int | float) and not isinstance(self.words, bool)
        if not number or not 0 <= self.words <= 1:
            raise ConfigError(
                f"the weight of words is {self.words!r}; expected a number from 0 to 1"
            )


def fuse(
    cosines: Mapping[str, float], matches: Mapping[str, float], fusion: Fusion
) -> dict[str, float]:
    """Join the scores of documents by landmarks and by words.

    Args:
        cosines: by document id, by landmarks; cosines, or means of them.
        matches: by document id, BM25; a document without any of the words is left out.
        fusion: the rule and the weight of the words.

    Returns:
        a score in [0, 1], to six digits, for each document of either, best first. Among equals
        the better cosine comes first, then the better match, then the smaller id.
    """
    join = reciprocal_ranks if fusion.rule == "rrf" else weighted_scores
    joined = join(cosines, matches, fusion.words)
    scores = {id_: round(score, _FUSED_DIGITS) for id_, score in joined.items()}
    worst = min(cosines.values(), default=0.0) - 1
    order = sorted(
        scores,
        key=lambda id_: (
            -scores[id_],
            -_round(cosines.get(id_, worst)),
            -_round(matches.get(id_, 0.0)),
            id_,
        ),
    )
    return {id_: scores[id_] for id_ in order}


def reciprocal_ranks(
    cosines: Mapping[str, float], matches: Mapping[str, float], weight: float
) -> dict[str, float]:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009).

    A document scores 1 / (60 + rank) in each ranking it is in, ranks from 1. Here the sum is
    weighted and multiplied by 61, so that the first of both has 1. Documents with equal scores
    share the best of their ranks.

    Args:
        cosines, matches: by document id; higher is better.
        weight: of `matches`, in [0, 1].

    Returns:
        a score in [0, 1] for each document of either.
    """
    scores = dict.fromkeys([*cosines, *matches], 0.0)
    for share, ranking in ((1 - weight, cosines), (weight, matches)):
        for id_, rank in _ranks(ranking).items():
            scores[id_] += share * (RANK_CONSTANT + 1) / (RANK_CONSTANT + rank)
    return scores


def weighted_scores(
    cosines: Mapping[str, float], matches: Mapping[str, float], weight: float
) -> dict[str, float]:
    """Convex combination of normalized scores (Bruch, Gai and Ingber, TOIS 2023).

    Cosines are stretched so that the lowest is 0 and the highest 1 (all 1 where they are equal),
    BM25 so that 0 stays and the highest is 1. Each ranking weighs as far as its best stands out, by
    how many standard deviations lie between 0 and 1. So the order is that of summed standard
    scores, and where all documents are much alike to one ranking, the other decides.

    Args:
        cosines, matches: by document id; higher is better. One left out of either has the lowest
            cosine, or no match.
        weight: of `matches`, in [0, 1].

    Returns:
        a score in [0, 1] for each document of either.
    """
    ids = list(dict.fromkeys([*cosines, *matches]))
    low = min(cosines.values(), default=0.0)
    near = np.array([_round(cosines.get(id_, low)) - _round(low) for id_ in ids], np.float64)
    match = np.array([_round(matches.get(id_, 0.0)) for id_ in ids], np.float64)
    ours, theirs = (1 - weight) * _prominence(near), weight * _prominence(match)
    both = ours + theirs
    if both == 0:  # neither tells documents apart, or the one that has all the weight doesn't
        ours, theirs, both = 1 - weight, weight, 1.0
    scores = (ours * _stretched(near, bool(cosines)) + theirs * _stretched(match, False)) / both
    return dict(zip(ids, scores.tolist(), strict=True))


def _prominence(scores: NDArray[np.float64]) -> float:
    """Return the highest score in standard deviations, 0 where all scores are equal."""
    if len(scores) == 0 or scores.max() == scores.min():  # then their deviation may be noise
        return 0.0
    return float(scores.max() / scores.std())


def _stretched(scores: NDArray[np.float64], filled: bool) -> NDArray[np.float64]:
    """Return scores from 0 on divided by the highest; where that is 0, all 1 if `filled`."""
    top = float(scores.max(initial=0.0))
    return scores / top if top > 0 else np.full_like(scores, float(filled))


def _ranks(scores: Mapping[str, float]) -> dict[str, int]:
    ranks: dict[str, int] = {}
    before, rank = None, 0
    ordered = sorted(((_round(score), id_) for id_, score in scores.items()), reverse=True)
    for position, (score, id_) in enumerate(ordered, 1):
        if score != before:
            before, rank = score, position
        ranks[id_] = rank
    return ranks


def _round(score: float) -> float:
    return float(f"{score:.{_DIGITS}g}")
