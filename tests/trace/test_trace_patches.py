"""A run must not leak a patched kernel into the next, however it ends."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import trace_cases as cases

pytestmark = pytest.mark.torch

LLAMA, QWEN = str(cases.CONFIGS / "llama-3.2-1b.json"), str(cases.CONFIGS / "qwen3.8-27b.json")


def _state() -> dict[str, Any]:
    """Everything the tracer may replace."""
    from transformers import masking_utils, modeling_utils
    from transformers.models.llama import modeling_llama
    from transformers.models.qwen3_5 import modeling_qwen3_5

    return {
        "functional": {k: v for k, v in vars(torch.nn.functional).items() if callable(v)},
        "attention": dict(modeling_utils.AttentionInterface._global_mapping),
        "masks": dict(masking_utils.AttentionMaskInterface._global_mapping),
        "module": dict(vars(torch.nn.Module)),
        "tracing": masking_utils.is_tracing,
        "packed": masking_utils.find_packed_sequence_indices,
        "initialize": modeling_utils.PreTrainedModel.initialize_weights,
        "llama": {k: v for k, v in vars(modeling_llama).items() if callable(v)},
        "qwen": {k: v for k, v in vars(modeling_qwen3_5).items() if callable(v)},
        "norm": modeling_llama.LlamaRMSNorm.forward,
    }


def _options(**changes: Any) -> Any:
    from actplan.trace import TraceOptions

    return TraceOptions(**{"seq": 256, "num_layers": 2, **changes})


def test_nothing_is_left_behind() -> None:
    from actplan.trace import trace_model

    before = _state()
    trace_model(LLAMA, _options(attention="flash", kernels="liger", loss="fused"))
    trace_model(str(cases.CONFIGS / "gpt2.json"), _options(native="cuda"))
    trace_model(QWEN, _options(attention="sdpa", linear_attention="fla", checkpoint="layer", num_layers=4))
    assert _state() == before


def test_nothing_is_left_behind_by_a_failing_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from actplan.trace import kernels_attention, trace_model

    before = _state()

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("kernel")

    monkeypatch.setattr(kernels_attention.FlashAttention, "apply", broken)
    with pytest.raises(RuntimeError, match="kernel"):
        trace_model(LLAMA, _options(attention="flash", kernels="liger"))
    assert _state() == before
    assert not torch._C._len_torch_dispatch_stack()


def test_a_run_after_other_kernels_is_the_same_run() -> None:
    from actplan.trace import trace_model

    first = trace_model(QWEN, _options(linear_attention="torch", num_layers=4))
    trace_model(QWEN, _options(linear_attention="fla", kernels="liger", attention="flash", num_layers=4))
    again = trace_model(QWEN, _options(linear_attention="torch", num_layers=4))
    assert again.rows() == first.rows()
    assert again.peak_backward_bytes == first.peak_backward_bytes
    assert any(shape[-2:] == (64, 64) for _, _, shape, *_ in again.rows())


def test_liger_is_refused_where_its_patches_are_not_known() -> None:
    from actplan.basics.errors import InputError
    from actplan.trace import trace_model

    with pytest.raises(InputError, match="Liger"):
        trace_model(str(cases.CONFIGS / "gpt2.json"), _options(kernels="liger"))


@pytest.mark.parametrize(("native", "states"), [("cpu", 0), ("cuda", 24)])
def test_sdpa_runs_on_torch_s_flash_kernel(native: str, states: int) -> None:
    """What FlashAttention keeps, under PyTorch's own names: without a generator's state on a CPU, with three numbers of
    eight bytes on a GPU where FlashAttention has two. A mask is met by the memory-efficient kernel of a GPU; a CPU's
    flash kernel takes it."""
    from actplan.trace import trace_model

    flash, sdpa = (trace_model(LLAMA, _options(attention=a, native=native)) for a in ("flash", "sdpa"))
    layers = len(flash.layer_saved_bytes)
    assert sdpa.saved_bytes - flash.saved_bytes == layers * (states - 16)
    kernel = "ScaledDotProductFlashAttention" + ("ForCpu" if native == "cpu" else "")
    assert kernel in {t.reason.partition("Backward")[0] for t in sdpa.saved}
    window = str(cases.CONFIGS / "gemma-3-27b.json")
    masked = trace_model(window, _options(attention="sdpa", seq=2048, loss="none", native=native))
    kernel = "ScaledDotProductEfficientAttention" if native == "cuda" else kernel
    assert kernel in {t.reason.partition("Backward")[0] for t in masked.saved}
    assert "transformers" in sys.modules


def test_dropout_and_layer_norm_as_on_a_gpu() -> None:
    """A mask of one byte for noise of two; statistics of four bytes for two. The rest is the same."""
    from actplan.trace import trace_model

    gpt2 = str(cases.CONFIGS / "gpt2.json")
    cpu, cuda = (trace_model(gpt2, _options(attention="flash", native=n, loss="none")) for n in ("cpu", "cuda"))
    tokens, width, dropouts, norms = 256, 768, 5, 5
    assert cpu.saved_bytes - cuda.saved_bytes == tokens * (width * dropouts - 2 * 2 * norms)
