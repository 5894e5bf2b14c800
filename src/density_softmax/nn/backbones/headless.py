"""A trained classifier as an encoder: its features are the inputs of its head."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.errors import UserError
from density_softmax.nn.execution import answer_of, at_least_float32, call
from density_softmax.nn.finding import Site
from density_softmax.nn.taps import (
    CallRecorder,
    first_tensor,
    mask_of,
    padding_of,
    suggestion,
    vectors_of,
)
from density_softmax.types import Inputs

# Probabilities are kept this far from 0 before their logarithm.
TINY = 1e-12


@final
class Headless(nn.Module):
    """z = the input of the model's linear head.

    The model runs as it is, head included, and is not changed: nothing has to be known about its
    code before and after the head. Where the head is not W z + b, the model's own logits stand
    behind the features, [z | logits], and the head that methods see only picks them.

    Args:
        model: any classifier. What torch wraps around one (DataParallel, torch.compile) is taken
            off.
        head: the name of its linear head, as in `model.named_modules()`, or where else features and
            logits are read.

    Attributes:
        num_features: the width of what it returns.
        num_logits: how many of its last columns are the model's own logits; 0 for a linear head.
        num_classes: how many classes there are; a single logit is that of the second of two.
    """

    def __init__(self, model: nn.Module, head: str | Site) -> None:
        super().__init__()
        self.model = unwrapped(model)
        self.site = head if isinstance(head, Site) else _linear_site(self.model, head)
        if self.site.name not in dict(self.model.named_modules()):
            raise _no_layer(self.model, self.site.name)
        self.head_name, outputs = self.site.name, self.site.num_outputs
        self.num_logits = outputs if self.site.reads == "logits" else 0
        self.num_features = self.site.num_features + self.num_logits
        self.num_classes = max(outputs, 2)
        self.readout = self._built_readout()
        self._padding = padding_of(self.model)
        self._recorder = CallRecorder((self.head_name,), self._read)

    def _built_readout(self) -> nn.Linear | None:
        """What maps features to logits, where the model has no such layer."""
        if self.site.reads == "weights" and self.site.num_outputs > 1:
            return None
        readout = nn.utils.skip_init(nn.Linear, self.num_features, self.num_classes)
        with torch.no_grad():
            readout.weight.zero_()
            readout.bias.zero_()
            if self.num_logits:
                readout.weight[-self.num_logits :, -self.num_logits :].fill_diagonal_(1)
            else:
                own = self._own_head
                readout.weight[1:].copy_(own.weight)
                readout.bias[1:].copy_(0 if own.bias is None else own.bias)
        return readout.to(next(self.model.parameters()).device)

    @property
    def _own_head(self) -> nn.Linear:
        head = self.model.get_submodule(self.head_name)
        assert isinstance(head, nn.Linear)
        return head

    @property
    def head(self) -> nn.Linear:
        """What maps features to logits: the model's own head, if it is linear."""
        return self.readout or self._own_head

    def logits(self, features: Tensor) -> Tensor:
        """What the head makes of features, (batch, classes); columns behind its own are ignored."""
        z = features[:, : self.num_features].to(self.head.weight.dtype)
        return F.linear(z, self.head.weight, self.head.bias).float()

    def forward(self, x: Tensor | Inputs) -> Tensor:
        """The features of a batch, (batch, num_features)."""
        mask = mask_of(x, self._padding) if self.num_logits else None
        with self._recorder.recording(self.model, mask):
            output = call(self.model, x)
        found = self._recorder.pop()
        if not found:
            raise UserError(f"the model does not call its layer '{self.head_name}'")
        z: Tensor = found[self.head_name]
        if z.ndim != 2:
            raise UserError(
                f"the head '{self.head_name}' is given features of shape {tuple(z.shape)}: it "
                "answers for every token or pixel; what is supported is one answer per input, from "
                "features (batch, features)"
            )
        z = at_least_float32(z) if z.dtype.itemsize == 2 else z
        return torch.cat([z, self._answer(output).to(z.dtype)], 1) if self.num_logits else z

    def _answer(self, output: Any) -> Tensor:
        answer = answer_of(output)
        if not self.site.probabilities:
            return answer
        log_probs = answer.clamp_min(TINY).log()
        if answer.shape[1] > 1:
            return log_probs
        return log_probs - (1 - answer).clamp_min(TINY).log()

    def _read(self, name: str, inputs: Any, output: Any) -> Any:
        if not inputs and self.site.side == "input":
            raise UserError(f"the model calls its layer '{name}' by keyword: call it as {name}(z)")
        if self.site.reads == "weights":
            return inputs[0]
        h = first_tensor(inputs if self.site.side == "input" else output)
        return vectors_of(h, self.model.get_submodule(name), self._recorder.mask)


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside of what torch puts around one.

    Args:
        model: a network, perhaps in DataParallel, DistributedDataParallel or compiled.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"the model is a {type(model).__name__}: pass a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise UserError("the model is TorchScript, whose layers cannot be read: pass the original")
    parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    inner = model._modules.get("module" if parallel else "_orig_mod")
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def _linear_site(model: nn.Module, name: str) -> Site:
    layer = dict(model.named_modules()).get(name)
    if not isinstance(layer, nn.Linear):
        raise _no_layer(model, name)
    return Site(name, num_features=layer.in_features, num_outputs=layer.out_features)


def _no_layer(model: nn.Module, name: str) -> UserError:
    linear = [n for n, module in model.named_modules() if isinstance(module, nn.Linear)]
    return UserError(f"the model has no linear layer '{name}'; {suggestion(name, linear)}")
