"""Which parameters a quantised base keeps in few bits."""

from __future__ import annotations

from ..profile import Parameter

_WHOLE = ("embed", "wte.", "wpe.", "lm_head", "norm", ".ln_", "router", "conv", "lora_", "A_log", "dt_bias")


def is_quantised(parameter: Parameter) -> bool:
    """A matrix of a linear: not the embedding, the head, a norm or a router, nor experts stacked in one tensor.

    transformers/quantizers/base.py, `get_modules_to_not_convert`: the head and what is tied to it stay whole.
    transformers/integrations/bitsandbytes.py, `_replace_with_bnb_linear`: modules that are `nn.Linear` only.
    """
    if len(parameter.shape) != 2 or parameter.name.endswith("mlp.gate.weight"):
        return False
    return not any(part in parameter.name for part in _WHOLE)
