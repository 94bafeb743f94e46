"""bfloat16 weights with float32 master copies: half the memory traffic, no lost small updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer


class MasterWeights(Optimizer):
    """AdamW over float32 copies of low-precision parameters.

    After every step the parameters are the copies, rounded. The state holds the copies, so a
    resumed run goes on exactly.

    Args:
        params: parameters or groups, as for AdamW.
        lr, betas, weight_decay: as for AdamW.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        groups = [
            {**group, "params": [_copy(p) for p in group["params"]]} for group in self.param_groups
        ]
        self._inner = AdamW(groups, lr=lr, betas=betas, weight_decay=weight_decay)

    def _pairs(self) -> Iterable[tuple[Tensor, Tensor]]:
        for own, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            yield from zip(own["params"], inner["params"], strict=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the copies from the parameters' gradients, then the parameters."""
        loss = closure() if closure is not None else None
        for own, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner["lr"] = own["lr"]  # the schedule writes into ours
        for parameter, master in self._pairs():
            master.grad = None if parameter.grad is None else parameter.grad.float()
        self._inner.step()
        for parameter, master in self._pairs():
            parameter.copy_(master)
            master.grad = None
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return AdamW's state and the copies."""
        state = super().state_dict()
        state["inner"] = self._inner.state_dict()
        state["masters"] = [master.detach().clone() for _, master in self._pairs()]
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave; the parameters become the copies, rounded."""
        own = {key: state_dict[key] for key in ("state", "param_groups")}
        super().load_state_dict(own)
        self._inner.load_state_dict(state_dict["inner"])
        for (parameter, master), saved in zip(self._pairs(), state_dict["masters"], strict=True):
            master.copy_(saved)
            parameter.copy_(master)


def cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast a model's parameters but not its buffers: rotary frequencies stay exact."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


@contextmanager
def summed_in_float32(model: nn.Module) -> Iterator[None]:
    """Let low-precision parameters add up the gradients of several backward passes exactly.

    Their own sums would round away what is small beside the sum so far.
    """
    low = [p for p in model.parameters() if p.requires_grad and p.dtype != torch.float32]
    sums: dict[Tensor, Tensor] = {p: p.grad.float() for p in low if p.grad is not None}
    for parameter in sums:
        parameter.grad = None

    def take(parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None, "it has just been accumulated"
        held = sums.get(parameter)
        sums[parameter] = gradient.float() if held is None else held + gradient.float()
        parameter.grad = None

    hooks = [p.register_post_accumulate_grad_hook(take) for p in low]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for parameter, gradient in sums.items():
        parameter.grad = gradient.to(parameter.dtype)


def _copy(parameter: Tensor) -> Tensor:
    return parameter.detach().float().clone().requires_grad_()
