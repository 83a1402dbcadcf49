"""Shared experts that run while routed rows are exchanged (`moe_shared_expert_overlap`).

megatron/core/transformer/moe of 0.16.1: shared_experts.py (SharedExpertMLP.pre_forward_comm to get_output), called by
token_dispatcher.py (MoEAlltoAllTokenDispatcher). Their backward is put before that of the exchange.
"""

from __future__ import annotations

from ...autograd import Node, Tensor
from ...model import Moe
from ...ops.communication import all_gather, reduce_scatter
from ...ops.elementwise import mul, sigmoid
from ...ops.function import custom, new
from ...ops.fused_function import gated_activation
from ...ops.linear import linear as plain_linear
from ...ops.transformer_engine import Divided, te_linear
from .mlp import glu
from .scope import Scope

FIRST = 2**31 - 1
"""`torch.iinfo(torch.int).max`, as the number of a node that goes before all but gradients of parameters."""


class Overlapped:
    """The shared experts of one layer, part by part."""

    def __init__(self, m: Scope, spec: Moe) -> None:
        assert spec.shared_expert_intermediate_size is not None
        self.m, self.gated = m, spec.shared_expert_gate
        self.width = m.local(spec.shared_expert_intermediate_size, "shared experts' width")
        self.ranks = m.mesh.tp if m.mesh.sp else 1
        self.score: Tensor | None = None
        self.held: Tensor | None = None

    def begin(self, x: Tensor) -> None:
        """`pre_forward_comm`: the gate, and rows of all ranks."""
        self.m.call("shared_experts", self._begin, x)

    def _begin(self, m: Scope, x: Tensor) -> None:
        if self.gated:
            self.score = sigmoid(plain_linear(x, m.parameter("gate_weight", 1, x.shape[-1])))
        self.held = all_gather(x, 0, self.ranks) if self.ranks > 1 else _same(x, "CopyToModelParallelRegion")
        _hurry(self.held)

    def widen(self, exchanged: Tensor) -> None:
        """`linear_fc1_forward_and_act`, after the exchange of these rows began."""
        _hurry(exchanged)
        self.m.call("shared_experts", self._widen)

    def _widen(self, m: Scope) -> None:
        assert self.held is not None
        wide = m.call("linear_fc1", self._linear, self.held, 2 * self.width)
        self.held = None
        wide = gated_activation(wide) if m.options.bias_activation_fusion else glu(wide, "silu")
        self.held = wide

    def narrow(self, exchanged: Tensor) -> None:
        """`linear_fc2_forward` and `post_forward_comm`, after rows came back."""
        _hurry(exchanged)
        self.m.call("shared_experts", self._narrow)

    def _narrow(self, m: Scope) -> None:
        assert self.held is not None
        self.held = m.call("linear_fc2", self._linear, self.held, m.model.hidden_size)
        if self.ranks > 1:
            self.held = reduce_scatter(self.held, 0, self.ranks)
        else:
            self.held = _same(self.held, "ReduceFromModelParallelRegion")
        _hurry(self.held)

    def _linear(self, m: Scope, x: Tensor, out_features: int) -> Tensor:
        """A linear that exchanges nothing itself."""
        weight = m.parameter("weight", out_features, x.shape[-1])
        return te_linear(x, weight, Divided(), fused=m.options.gradient_accumulation_fusion)

    def added_to(self, output: Tensor) -> Tensor:
        """`output += get_output()`: in place on a view, whose backward copies the gradient for either."""
        assert self.held is not None
        shared = self.held if self.score is None else mul(self.held, self.score)
        self.held = self.score = None
        out = Tensor(output.tape, output.shape, output.strides, output.dtype, output.storage)

        def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
            return [new(grads[0], grads[0].shape, op=op) for op in ("new_empty_strided", "clone")]

        custom("CopySlices", rule, (output, shared), (), [out])
        return out


def _same(x: Tensor, name: str) -> Tensor:
    """What goes through a function that does nothing on one rank."""
    out = Tensor(x.tape, x.shape, x.strides, x.dtype, x.storage)
    custom(name, lambda node, grads: [grads[0]], (x,), (), [out])
    return out


def _hurry(x: Tensor) -> None:
    """`set_tensor_grad_fn_sequence_sr`: backward takes its node as soon as it can."""
    if x.node is not None:
        x.node.sequence = FIRST


__all__ = ["Overlapped"]
