"""Training objectives as pure functions of tensors.

Letters: Q queries, C candidates (documents or parts of them), R landmark rows, D width, G
candidates in a group. Similarities are cosines unless said otherwise; every function returns a
scalar that is finite for finite input, also where everything is blocked.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def cosines(rows: Tensor, others: Tensor) -> Tensor:
    """Return (Q, C) cosines of (Q, D) and (C, D) rows of any length."""
    return (
        functional.normalize(rows.float(), dim=-1) @ functional.normalize(others.float(), dim=-1).T
    )


def info_nce(similarities: Tensor, positive: Tensor, blocked: Tensor, temperature: float) -> Tensor:
    """InfoNCE: cross-entropy of the positive among all candidates.

    Args:
        similarities: (Q, C).
        positive: (Q,) index of each query's candidate.
        blocked: (Q, C) bool: candidates that are no negatives of the query, because they say the
            same or are known positives. The positive itself is never blocked.
        temperature: divides the similarities; 0.02 to 0.05 are common.

    Returns:
        the mean over queries; 0 where no negative is left.
    """
    logits = similarities / temperature
    blocked = blocked.scatter(1, positive[:, None], False)
    return functional.cross_entropy(logits.masked_fill(blocked, -torch.inf), positive)


def group_distillation(
    similarities: Tensor,
    group: Tensor,
    teacher: Tensor,
    blocked: Tensor,
    *,
    temperature: float,
    teacher_temperature: float = 1.0,
) -> Tensor:
    """Distill a teacher's scores over each query's group, as BGE-M3 does.

    Each member i of the group counts as the positive with the teacher's probability p_i:
    sum over i of p_i * cross-entropy of i against all candidates, the members before i masked
    (method of arXiv 2402.03216, as used for landmarks in arXiv 2601.21525).

    Args:
        similarities: (Q, C) student.
        group: (Q, G) candidate indices, positive first.
        teacher: (Q, G) scores of any scale; softmax at `teacher_temperature` gives p.
        blocked: (Q, C) bool, as in `info_nce`; members of the group are never blocked.
        temperature: divides the student's similarities.
        teacher_temperature: divides the teacher's scores.
    """
    logits = similarities / temperature
    blocked = blocked.scatter(1, group, False)
    logits = logits.masked_fill(blocked, -torch.inf)
    weights = torch.softmax(teacher.float() / teacher_temperature, dim=1)
    total = similarities.new_zeros(())
    for i in range(group.shape[1]):
        losses = functional.cross_entropy(logits, group[:, i], reduction="none")
        total = total + (weights[:, i] * losses).mean()
        logits = logits.scatter(1, group[:, i : i + 1], -torch.inf)
    return total


def score_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return KL(teacher || student) over each query's candidates, both at one temperature.

    Args:
        student: (Q, C) similarities.
        teacher: (Q, C) similarities of the teacher, on the same scale.
        temperature: divides both.
    """
    return functional.kl_div(
        functional.log_softmax(student / temperature, dim=1),
        functional.log_softmax(teacher / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )


def relation_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return KL(teacher || student) of each row's likeness to all other rows.

    The two may have different widths, so that a wider teacher can say which rows are alike.

    Args:
        student: (R, D) rows of any length.
        teacher: (R, E) rows for the same stretches.
        temperature: divides the cosines of both.

    Returns:
        the mean over rows; 0 for fewer than three, which have no likeness to compare.
    """
    if len(student) < 3:
        return student.new_zeros(())
    # A row is most like itself, which would leave the others next to nothing.
    others = ~torch.eye(len(student), dtype=torch.bool, device=student.device)
    shape = (len(student), len(student) - 1)
    return score_divergence(
        cosines(student, student)[others].view(shape),
        cosines(teacher, teacher)[others].view(shape),
        temperature,
    )


def vector_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean of 1 - cos over rows: (R, D) against (R, D).

    Documents, queries and landmarks alike: for landmarks, a row of the teacher is its vector of
    the landmark's own stretch. A zero row has cosine 0.
    """
    return (1 - functional.cosine_similarity(student.float(), teacher.float(), dim=-1)).mean()


def best_of_parts(similarities: Tensor, part: Tensor, n_parts: int) -> Tensor:
    """MaxSim of a single query vector: each part's best landmark.

    Args:
        similarities: (Q, R) of queries and landmarks.
        part: (R,) which part (document, or passage of one) each landmark belongs to.
        n_parts: C. A part without landmarks gets -1, the lowest cosine.

    Returns:
        (Q, C).
    """
    best = similarities.new_full((len(similarities), n_parts), -1.0)
    return best.scatter_reduce(1, part.expand_as(similarities), similarities, "amax")


def masked_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over masked tokens, as RetroMAE uses it for encoder and decoder.

    Args:
        logits: (B, T, V).
        labels: (B, T) token ids, -100 where nothing is to be predicted.

    Returns:
        the mean over predicted tokens; 0 if there are none.
    """
    total = functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="sum"
    )
    return total / (labels != -100).sum().clamp(min=1)
