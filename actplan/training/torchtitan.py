"""torchtitan's own settings: a field for each that changes memory (torchtitan 0.3.0)."""

from __future__ import annotations

from typing import Literal

from .run import StackOptions


class TorchtitanOptions(StackOptions, frozen=True):
    """What `--stack-set` may say of torchtitan.

    Attributes:
        fuse_qkv: queries, keys and values are one linear (models/common/attention.py, FusedQKVLinear), the default of
            0.3; releases before had three.
        rope: complex numbers (Llama, DeepSeek) or cosines beside sines (Qwen 3, gpt-oss); auto: by the model.
        early_stop: whether a checkpointed block stops after its last saved tensor; 0.3 runs it to its end
            (distributed/activation_checkpoint.py).
        silu_backward: SiLU's own kernel, or its composition of other ops, which runs where PyTorch was built without
            the device (ATen/native/Activation.cpp, math_silu_backward).
    """

    fuse_qkv: bool = True
    rope: Literal["auto", "complex", "cos_sin"] = "auto"
    early_stop: bool = False
    silu_backward: Literal["kernel", "composite"] = "kernel"

    def attention_by_default(self) -> str:
        """Return flex_attention, which 0.3's configurations name (models/llama3/config_registry.py)."""
        return "flex"
