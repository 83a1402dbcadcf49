"""torch's other attention kernels: what they keep, byte by byte, from PyTorch's sources (`actplan.ops.attention_torch`
names them; their fake kernels in torch/_meta_registrations.py give the same shapes), and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from golden_reference import REFERENCE
from msgspec.structs import replace

from actplan.basics.errors import InputError
from actplan.basics.units import FP16, FP32
from actplan.cli.main import run as actplan
from actplan.model import Attention, LatentAttention, Model
from actplan.model.reading import load_model
from actplan.profile import segmented
from actplan.stacks.transformers.kernels import kernels
from actplan.stacks.transformers.model import Walk, walk
from actplan.training import Run
from actplan.training.mesh import Mesh
from actplan.training.policies import EveryLayer, NoCheckpoint

T = 1000


def model(preset: str, num_layers: int = 1) -> Model:
    return load_model(preset, preset=True, overrides=[f"num_layers={num_layers}"])


def attention_rows(done: Walk) -> dict[tuple[str, tuple[int, ...], str], int]:
    """What the attention kernel saved, by reason's first words, shape and type."""
    kernels_ = ("Flash", "ScaledDot", "Flex")
    return {(r.op, tuple(r.shape), r.dtype): r.nbytes for r in done.tape.ledger if r.op.startswith(kernels_)}


def kept(preset: str, attention: Any, **more: Any) -> Walk:
    return walk(model(preset), Run(sequence_length=T, attention=attention, loss="none", **more))


def test_cudnn_keeps_grouped_heads_a_number_a_row_and_two_scalars() -> None:
    rows = attention_rows(kept("llama-3.2-1b", "cudnn"))
    op = "ScaledDotProductCudnnAttentionBackward0"
    assert rows == {
        (op, (1, 32, T, 64), "bfloat16"): 2 * 32 * T * 64,  # queries; the output has the same shape
        (op, (1, 8, T, 64), "bfloat16"): 2 * 8 * T * 64,
        (op, (1, 32, T, 1), "float32"): 4 * 32 * T,
        (op, (), "int64"): 8,
    }


def test_efficient_repeats_heads_and_pads_its_rows_to_32() -> None:
    rows = attention_rows(kept("llama-3.2-1b", "efficient"))
    assert {shape for _, shape, _ in rows} == {(1, 32, T, 64), (1, 32, 1024), ()}


def test_flex_keeps_a_block_mask_and_no_scalars() -> None:
    rows = attention_rows(kept("llama-3.2-1b", "flex"))
    assert {shape for _, shape, _ in rows} == {(1, 32, T, 64), (1, 8, T, 64), (1, 32, T), (1, 4, 8, 9)}
    # one block mask for all layers; one more where some layers have a window
    done = walk(model("gemma-3-27b", 12), Run(sequence_length=4096, attention="flex", loss="none"))
    masks = [row for row in done.tape.ledger if row.reason.startswith("the blocks")]
    assert [row.nbytes for row in masks] == [4 * 4 * 32 * 33] * 2
    assert {(row.owner or "").partition("_")[0] for row in masks} == {"shared:mask"}


def test_flex_repeats_heads_that_are_no_power_of_two() -> None:
    heads = lambda preset: {s[1] for _, s, _ in attention_rows(kept(preset, "flex")) if len(s) == 4 and s[2] == T}  # noqa: E731
    assert heads("llama-3.2-1b") == {32, 8}
    assert heads("qwen2.5-7b") == {28}


def test_only_flex_needs_no_mask_for_a_window() -> None:
    run = Run(sequence_length=8192, loss="none")
    sizes = {
        kernel: walk(model("mistral-7b"), replace(run, attention=kernel)).saved_bytes
        for kernel in ("flash", "flex", "cudnn", "efficient")
    }
    assert sizes["flex"] - sizes["flash"] < 1 << 20
    assert sizes["cudnn"] - sizes["flash"] > 2 * 8192**2


@pytest.mark.parametrize("attention", ["cudnn", "flex", "efficient"])
@pytest.mark.parametrize("preset", ["llama-3.2-1b", "gemma-3-27b", "deepseek-v3", "qwen2.5-7b"])
def test_the_chain_agrees_with_the_walk(preset: str, attention: Any) -> None:
    planned, run = model(preset, 4), Run(sequence_length=2048, attention=attention, loss="fused")
    for policy in (NoCheckpoint(), EveryLayer()):
        ours = segmented(planned, run, policy)
        oracle = walk(planned, run, ours.segments)
        assert ours.saved_bytes == oracle.saved_bytes
        assert ours.peak_forward_bytes == pytest.approx(oracle.peak_forward_bytes, rel=1e-3)
        assert ours.peak_backward_bytes == pytest.approx(oracle.peak_backward_bytes, rel=1e-3)


def narrow(width: int) -> Model:
    """A model with heads that wide."""
    made = model("llama-3.2-1b")
    mixer = made.layers[0].mixer
    assert isinstance(mixer, Attention)
    return replace(made, layers=(replace(made.layers[0], mixer=replace(mixer, head_dim=width)),))


@pytest.mark.parametrize(
    ("planned", "run", "message"),
    [
        (narrow(64), Run(attention="cudnn", dtype=FP32), "does not run in fp32"),
        (narrow(64), Run(attention="cudnn", precision="autocast", dtype=FP32), "does not run in fp32"),
        (narrow(160), Run(attention="cudnn"), "heads 160 wide"),
        (narrow(84), Run(attention="cudnn"), "heads 84 wide"),
        (narrow(84), Run(attention="efficient"), "multiples of 8"),
        (narrow(8), Run(attention="flex"), "16 wide or more"),
        (model("gpt-oss-20b"), Run(attention="cudnn"), "refuses sdpa"),
        (model("gpt-oss-20b"), Run(attention="flex"), "with sinks"),
        (model("qwen-27b", 4), Run(attention="flex"), "refuses flex_attention"),
        (model("gpt2"), Run(attention="flex"), "refuses flex_attention"),
        (model("gpt2"), Run(attention="eager", mesh=Mesh(cp=2)), "whole sequence on one rank"),
        (model("gpt-oss-20b"), Run(attention="eager", mesh=Mesh(cp=2)), "whole sequence on one rank"),
        (model("gpt2"), Run(attention="cudnn", mesh=Mesh(cp=2)), "counted with FlashAttention's kernel"),
    ],
)
def test_what_a_kernel_refuses(planned: Model, run: Run, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        kernels(planned, run)
    assert str(caught.value).startswith("--attention: ")


def test_what_it_takes() -> None:
    kernels(narrow(84), Run(attention="efficient", dtype=FP32))
    kernels(narrow(256), Run(attention="cudnn", dtype=FP16))
    kernels(narrow(64), Run(attention="cudnn", precision="autocast"))
    kernels(model("deepseek-v3"), Run(attention="cudnn"))
    kernels(model("gpt2"), Run(attention="cudnn", mesh=Mesh(cp=2), context_attention="all-to-all"))


@pytest.mark.parametrize("how", ["ring", "all-gather", "all-to-all"])
@pytest.mark.parametrize("preset", ["llama-3-8b", "deepseek-v3", "qwen-27b"])
def test_a_divided_sequence_keeps_what_one_rank_of_that_length_keeps(preset: str, how: Any) -> None:
    """Beside the kernel's own names: all-to-all keeps one output more, unless one rank alone copies its output too
    (queries that come heads-first). torch's all-gather copies it too, on every rank but the last one. Latent
    attention's values are copied out of the product that they are one half of."""
    planned = model(preset, 4)
    alone = walk(planned, Run(sequence_length=4096, attention="flash", loss="none"))
    run = Run(sequence_length=4 * 4096, attention="flash", loss="none", mesh=Mesh(cp=4), context_attention=how)
    divided = walk(planned, run)
    expected = 0
    for mixer in (layer.mixer for layer in planned.layers):
        if isinstance(mixer, Attention) and how != "ring" and planned.rope.fraction == 1:
            expected += mixer.num_attention_heads * mixer.head_dim * 4096 * 2
        if isinstance(mixer, LatentAttention) and how == "all-gather":
            expected += mixer.num_attention_heads * mixer.v_head_dim * 4096 * 2
        if isinstance(mixer, LatentAttention) and how == "ring":
            expected -= mixer.num_attention_heads * mixer.v_head_dim * 4096 * 2
    assert divided.saved_bytes - alone.saved_bytes == pytest.approx(expected, abs=64 * planned.num_layers)
    assert divided.tape.flops > alone.tape.flops
    for policy in (NoCheckpoint(), EveryLayer()):
        ours = segmented(planned, run, policy)
        oracle = walk(planned, run, ours.segments)
        assert ours.peak_forward_bytes == pytest.approx(oracle.peak_forward_bytes, rel=1e-3)
        assert ours.peak_backward_bytes == pytest.approx(oracle.peak_backward_bytes, rel=1e-3)
    kernels(model("qwen-27b", 2), Run(attention="flex"))  # no attention at all


def test_as_an_option(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert actplan(["estimate", "--preset", "llama-3.2-1b", "--attention", "cudnn,flex"]) == 2
    assert actplan(["estimate", "--preset", "llama-3.2-1b", "--attention", "flex", "--get", "run.attention"]) == 0
    assert capfdbinary.readouterr().out == b"flex\n"


@pytest.mark.parametrize(
    ("config", "num_layers", "batch", "seq", "saved", "end", "forward", "backward"),
    [
        # PyTorch 2.13 and Transformers 5.24 on fake tensors, which follow the CPU's kernels
        ("phi-3-mini", 2, 2, 300, 281224804, 281222656, 396658176, 443428352),  # heads-first queries
        ("mistral-7b", 1, 1, 4200, 1607877612, 1607845888, 2414245888, 2683012096),  # a window: with a mask
        ("falcon-7b", 2, 2, 300, 454692036, 454692864, 688784384, 1772815360),  # one head of keys: T x T in fp32
    ],
)
def test_sdpa_on_a_cpu(
    config: str, num_layers: int, batch: int, seq: int, saved: int, end: int, forward: int, backward: int
) -> None:
    path = str(REFERENCE / "configs" / f"{config}.json")
    planned = load_model(path, preset=False, overrides=[f"num_layers={num_layers}"])
    found = segmented(planned, Run(sequence_length=seq, micro_batch_size=batch), NoCheckpoint())
    assert found.saved_bytes == saved
    assert found.end_forward_bytes == end
    assert found.peak_forward_bytes == forward
    assert found.peak_backward_bytes == backward


def test_sdpa_on_a_gpu_is_flash_attention_under_torch_s_own_name() -> None:
    """Three numbers of eight bytes for the generator's state, where FlashAttention has two."""
    op = "ScaledDotProductFlashAttentionBackward0"
    assert attention_rows(kept("llama-3.2-1b", "sdpa", device="cuda")) == {
        (op, (1, 32, T, 64), "bfloat16"): 2 * 32 * T * 64,
        (op, (1, 8, T, 64), "bfloat16"): 2 * 8 * T * 64,
        (op, (1, 32, T), "float32"): 4 * 32 * T,
        (op, (2,), "uint64"): 16,
        (op, (), "uint64"): 8,
    }
