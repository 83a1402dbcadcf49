"""Dense families beside Llama's, tensor by tensor, against PyTorch (tests/reference/autograd_dense.json).

Traced with PyTorch 2.13 and Transformers 5.24 on fake tensors: published models at two or four layers, and
small variants that turn on what published configurations leave off (dropout, biases, windows, activations).
`case` names a variant, whose configuration is in the record. Liger's kernels were stand-ins that save what
liger-kernel 0.8.5 saves, where its own patch functions put them.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from golden_reference import REFERENCE, traced_rows

from actplan.autograd import Tape
from actplan.basics.errors import InputError
from actplan.basics.units import BF16, FP32
from actplan.model import Model
from actplan.model import reading as load
from actplan.model.reading.config_json import document_of_config
from actplan.profile import segmented
from actplan.stacks.transformers.model import Walk, walk
from actplan.training import Run
from actplan.training.policies import EveryK, NoCheckpoint

RECORDS: list[dict[str, Any]] = json.loads((REFERENCE / "autograd_dense.json").read_text(encoding="utf-8"))
PRESETS = {
    # Transformers 5.24, AutoModelForCausalLM.from_config on the meta device
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-27b": 27_009_346_304,
    "gemma-7b": 8_537_680_896,
    "olmo-2-7b": 7_298_617_344,
    "glm-4-9b": 9_400_279_040,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-1.4b": 1_414_647_808,
    "gpt2": 124_439_808,
    "granite-3.1-8b": 8_170_848_256,
    "command-r7b": 8_028_033_024,
    "starcoder2-7b": 7_173_923_840,
    "opt-1.3b": 1_315_758_080,
    "falcon-7b": 6_921_720_704,
    "mistral-7b": 7_241_732_096,
    "phi-2": 2_779_683_840,
}


def name(record: dict[str, Any]) -> str:
    words = [record.get("case") or record["config"].removesuffix(".json")]
    words += [record[k] for k in ("attn", "kernels", "loss", "dtype")]
    size = f"{record['batch']}x{record['seq']}"
    return "-".join([*words, size, *(["ckpt"] if record["ckpt"] else [])])


def model(record: dict[str, Any]) -> Model:
    config = record["config"]
    if isinstance(config, str):
        path = str(REFERENCE / "configs" / config)
        return load.load_model(path, preset=False, overrides=[f"num_layers={record['num_layers']}"])
    return load.resolve(document_of_config(config, name="variant", source="test"))


def settings(record: dict[str, Any]) -> Run:
    return Run(
        sequence_length=record["seq"],
        micro_batch_size=record["batch"],
        dtype={"bfloat16": BF16, "float32": FP32}[record["dtype"]],
        attention={"fa2": "flash", "eager": "eager"}[record["attn"]],
        kernels=record["kernels"],
        loss=record["loss"],
    )


def traced(record: dict[str, Any]) -> Walk:
    """The walk, adding gradients out of place as the tracer did."""
    segments = tuple((i, i) for i in range(record["num_layers"])) if record["ckpt"] else ()
    return walk(model(record), settings(record), segments, tape=Tape(in_place=False))


def rows(run: Walk) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in run.tape.ledger:
        where = row.module if row.module not in ("", "<loss>") else "loss"
        found[where, tuple(row.shape), row.dtype, row.nbytes] += row.count
    return found


@pytest.mark.parametrize("record", RECORDS, ids=name)
def test_every_tensor_parameter_and_peak(record: dict[str, Any]) -> None:
    run = traced(record)
    assert rows(run) == traced_rows(record)
    assert run.saved_bytes == record["saved_bytes"]
    assert sum(p.numel for p in run.tape.parameters.values()) == record["parameters"]
    # a tracer that sees a view of the token ids counts them as born in the step
    ids = 512 * -(-8 * record["batch"] * record["seq"] // 512)
    for measure in ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        ours, theirs = getattr(run, measure), record[measure]
        assert ours in (theirs, theirs - ids), measure


@pytest.mark.parametrize("record", [r for r in RECORDS if isinstance(r["config"], str)], ids=name)
def test_layers_and_the_chain_s_peaks(record: dict[str, Any]) -> None:
    whole = segmented(model(record), settings(record), EveryK(1) if record["ckpt"] else NoCheckpoint())
    assert list(whole.layer_saved_bytes) == record["layer_saved_bytes"]
    assert whole.saved_bytes == record["saved_bytes"]
    assert whole.measured.num_parameters == record["parameters"]
    oracle = walk(model(record), whole.run, whole.segments)
    assert whole.peak_forward_bytes == pytest.approx(oracle.peak_forward_bytes, rel=0.001)
    assert whole.peak_backward_bytes == pytest.approx(oracle.peak_backward_bytes, rel=0.001)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_preset_is_the_model_of_its_configuration(preset: str) -> None:
    ours = load.load_model(preset, preset=True)
    theirs = load.load_model(str(REFERENCE / "configs" / f"{preset}.json"), preset=False)
    named = {"name": ours.name, "title": ours.title, "source": ours.source}
    assert ours == msgspec.structs.replace(theirs, **named)
    document = load.load_document(preset, preset=True)
    again = load.parse_document(load.format_document(document), name="other", source=document.source)
    assert load.resolve(again) == ours


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters(preset: str) -> None:
    small = Run(sequence_length=8, loss="none", attention="flash")
    assert (
        segmented(load.load_model(preset, preset=True), small, NoCheckpoint()).measured.num_parameters
        == (PRESETS[preset])
    )


def gpt2(device: str) -> dict[tuple[str, str], int]:
    """Bytes of the first layer's rows by module and element type."""
    run = Run(sequence_length=64, attention="flash", device=device)  # type: ignore[arg-type]
    found: Counter[tuple[str, str]] = Counter()
    for row in walk(load.load_model("gpt2", preset=True, overrides=["num_layers=1"]), run).tape.ledger:
        found[row.module.removeprefix("transformer.h.0."), row.dtype] += row.nbytes
    return found


def test_a_gpu_keeps_dropout_masks_as_bytes_and_statistics_in_fp32() -> None:
    cpu, gpu = gpt2("cpu"), gpt2("cuda")
    assert (cpu["mlp.dropout", "bfloat16"], gpu["mlp.dropout", "bool"]) == (2 * 64 * 768, 64 * 768)
    assert gpu["mlp.dropout", "bfloat16"] == 0
    assert gpu["ln_1", "float32"] == 2 * 64 * 4
    assert cpu["ln_1", "float32"] == 0


def masked(preset: str, sequence_length: int) -> list[bool]:
    """Whether each layer keeps a mask as a bias, under sdpa."""
    loaded = load.load_model(preset, preset=True)
    run = walk(loaded, Run(sequence_length=sequence_length, attention="sdpa", loss="none"))
    biased = {row.stage - 1 for row in run.tape.ledger if row.reason == "the T × T mask as an additive bias"}
    return [i in biased for i in range(loaded.num_layers)]


def test_sdpa_is_given_a_mask_where_a_window_is_no_longer_than_the_sequence() -> None:
    assert masked("gemma-3-27b", 1024)[:6] == [True] * 5 + [False]
    assert not any(masked("gemma-3-27b", 1023))
    assert all(masked("mistral-7b", 4096))
    assert not any(masked("falcon-7b", 64))  # it always asks for one, and keeps probabilities instead


def test_tables_of_their_own_for_sliding_layers() -> None:
    loaded = load.load_model("gemma-3-27b", preset=True)
    run = walk(loaded, Run(sequence_length=64, attention="flash", loss="none"))
    owners = {(row.owner, row.stage - 1) for row in run.tape.ledger if (row.owner or "").startswith("shared:rope")}
    assert owners == {("shared:rope_local", 0), ("shared:rope", 5)}


def test_gemma_3_with_its_vision_tower() -> None:
    text = json.loads((REFERENCE / "configs" / "gemma-3-27b.json").read_text())
    vision = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_hidden_layers": 27}
    vision |= {"patch_size": 14, "num_attention_heads": 16, "vision_use_head": False}
    nested = {"model_type": "gemma3", "text_config": text, "vision_config": vision}
    loaded = load.resolve(document_of_config(nested, name="x", source="x"))
    assert loaded.layers == load.load_model("gemma-3-27b", preset=True).layers
    # Transformers 5.24, Gemma3ForConditionalGeneration on the meta device: 416,940,912 at a text width of 64
    assert loaded.left_out[0].num_parameters == 416_940_912 + 1152 * (5376 - 64)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before"),
        ({"model_type": "opt", "word_embed_proj_dim": 32}, "word_embed_proj_dim"),
        ({"model_type": "falcon", "alibi": True}, "alibi"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention"),
        ({"model_type": "gemma2", "hidden_activation": "mish"}, "hidden_activation"),
        ({"model_type": "stablelm", "qk_layernorm": True}, "qk_layernorm"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_what_is_not_modelled_is_refused(config: dict[str, Any], field: str) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    fields = {**sizes, "intermediate_size": 96, "ffn_dim": 96, **config}
    with pytest.raises(InputError) as caught:
        load.resolve(document_of_config(fields, name="x", source="x"))
    assert str(caught.value).startswith(f"{field}: ")
