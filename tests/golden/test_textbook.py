"""The golden numbers of the textbook accounting (Qwen3.8-27B, batch 1, 8,192 tokens, 2-byte values), to the byte,
through the installed command."""

from __future__ import annotations

from typing import Any

import pytest
from cli_harness import result

GIB = 1 << 30


@pytest.fixture(scope="module")
def said() -> Any:
    return result("estimate", "--preset", "qwen-27b", "--seq", "8192")


def row(said: Any, policy: str) -> Any:
    return next(row["textbook"] for row in said["segmentations"] if row["policy"] == policy)


def test_residual(said: Any) -> None:
    assert said["estimates"]["residual"]["saved_bytes"] == 5_368_709_120 == 8192 * 5120 * 64 * 2


def test_full(said: Any) -> None:
    attention = 5120 + 5120 + 12288 + 1024 + 1024 + 6144 + 5120
    feed_forward = 5120 + 3 * 17408 + 5120
    assert (attention, feed_forward) == (35_840, 62_464)
    textbook = said["estimates"]["textbook"]
    assert textbook["bytes_per_token_per_layer"] == 2 * (attention + feed_forward) == 196_608
    assert textbook["ratio_to_residual"] == 19.2
    assert textbook["saved_bytes"] == 103_079_215_104 == 96 * GIB


def test_natural_super_block(said: Any) -> None:
    block = row(said, "block")
    assert block["boundary_bytes"] == 1.25 * GIB
    assert block["working_bytes"] == 6 * GIB
    assert block["peak_bytes"] == 7.25 * GIB
    assert block["reduction_bytes"] == 88.75 * GIB
    assert round(block["reduction_ratio"], 2) == 13.24
    assert said["estimates"]["checkpointed"]["policy"] == "block"
    assert said["estimates"]["checkpointed"]["textbook"] == block


def test_two_layer_segments_beat_it(said: Any) -> None:
    best = min((r for r in said["segmentations"]), key=lambda r: r["textbook"]["peak_bytes"])
    assert best["policy"] == "every:2"
    assert best["textbook"]["peak_bytes"] == 5.5 * GIB
    assert any(n["code"] == "better-segmentation" and "every:2" in n["message"] for n in said["notes"])


def test_other_rows(said: Any) -> None:
    assert row(said, "none")["peak_bytes"] == 96 * GIB
    assert (row(said, "none")["reduction_bytes"], row(said, "none")["reduction_ratio"]) == (0, 1.0)
    assert row(said, "layer")["peak_bytes"] == 6.5 * GIB
    assert row(said, "sqrt")["peak_bytes"] == 12.625 * GIB


def test_thirty_two_times_the_sequence_is_thirty_two_times_everything(said: Any) -> None:
    long = result("estimate", "--preset", "qwen-27b", "--seq", "262144")
    for policy in ("none", "layer", "block", "sqrt", "every:2"):
        for key in ("boundary_bytes", "stored_bytes", "working_bytes", "peak_bytes", "reduction_bytes"):
            assert row(long, policy)[key] == 32 * row(said, policy)[key]
    assert long["estimates"]["residual"]["saved_bytes"] == 32 * 5 * GIB


def test_the_widest_tensors_are_named(said: Any) -> None:
    (note,) = [n["message"] for n in said["notes"] if n["code"] == "widest"]
    assert "17,408" in note
    assert "gate, up, product" in note


def test_checkpoints_in_fp32_double_what_they_keep(said: Any) -> None:
    wide = result("estimate", "--checkpoint-dtype", "fp32")
    assert row(wide, "block")["boundary_bytes"] == 2.5 * GIB
    assert row(wide, "block")["working_bytes"] == 6 * GIB


def test_what_pytorch_keeps_of_the_whole_model(said: Any) -> None:
    """The whole model as traced: 172.1 GiB saved, 187.3 at the peak; 28.1 with every layer checkpointed; 13.0 kept
    then, and 8.4 with a fused loss."""
    autograd = said["estimates"]["autograd"]
    assert round(autograd["saved_bytes"] / GIB, 1) == 172.1
    assert round(autograd["peak_backward_bytes"] / GIB, 1) == 187.3
    layered = result("estimate", "--checkpoint", "layer")["estimates"]["autograd"]
    assert round(layered["saved_bytes"] / GIB, 1) == 13.0
    assert round(layered["peak_backward_bytes"] / GIB, 1) == 28.1
    fused = result("estimate", "--checkpoint", "layer", "--loss", "fused")["estimates"]["autograd"]
    assert round(fused["saved_bytes"] / GIB, 1) == 7.8
    assert round(max(fused["peak_forward_bytes"], fused["peak_backward_bytes"]) / GIB, 1) == 8.4


@pytest.mark.parametrize(
    ("words", "saved", "peak"),
    [
        (("--linear-attention", "torch"), 336.7, 351.8),
        (("--kernels", "liger", "--loss", "fused"), 114.4, 114.6),
        (("--kernels", "liger", "--loss", "fused", "--checkpoint", "layer"), 7.5, 7.7),
    ],
)
def test_other_kernels(words: tuple[str, ...], saved: float, peak: float) -> None:
    autograd = result("estimate", *words)["estimates"]["autograd"]
    assert round(autograd["saved_bytes"] / GIB, 1) == saved
    assert round(max(autograd["peak_forward_bytes"], autograd["peak_backward_bytes"]) / GIB, 1) == peak
