"""Models of images and text, with head and loss: what a trace says that autograd keeps, against plain PyTorch.

The truth is a real run on the CPU of the class that `AutoModelForImageTextToText` builds, counted with PyTorch's own
hooks on saved tensors: no fake tensors, no recorder and no stand-in kernels.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from multimodal_cases import CASES

pytestmark = pytest.mark.torch

from actplan.basics.errors import InputError  # noqa: E402
from actplan.cli.main import run  # noqa: E402
from actplan.profile.ledger_file import Ledger, evaluate_ledger, load_ledger, write_ledger  # noqa: E402
from actplan.trace import TraceOptions, fit_ledger, trace_model  # noqa: E402

BATCH, SEQ = 2, 70


def truth(config: dict[str, Any], image_tokens: int) -> tuple[Counter[tuple[int, str]], set[str]]:
    """Every storage that a real forward with loss packs, parameters and buffers apart: (bytes, type) -> how many; and
    the parameters that the backward gives no gradient."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    from actplan.trace.inputs import model_inputs

    raw = copy.deepcopy(config)
    made = AutoConfig.for_model(raw.pop("model_type"), **raw)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(made, attn_implementation="eager", dtype=torch.bfloat16).train()
    inputs, _ = model_inputs(model, model.config, TraceOptions(batch=BATCH, seq=SEQ, image_tokens=image_tokens))
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            inputs[name] = torch.rand_like(value)
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    packed: list[torch.Tensor] = []  # held, so that no address is used twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(**inputs, labels=inputs["input_ids"]).loss
    assert torch.isfinite(loss)
    storages = {t.untyped_storage().data_ptr(): t for t in packed if t.untyped_storage().data_ptr() not in own}
    rows = Counter((t.untyped_storage().nbytes(), str(t.dtype).removeprefix("torch.")) for t in storages.values())
    loss.backward()
    return rows, {path for path, p in model.named_parameters() if p.grad is None}


@pytest.mark.parametrize("images", [False, True], ids=["text", "images"])
@pytest.mark.parametrize("name", CASES)
def test_saved_bytes_are_those_of_a_real_run(name: str, images: bool) -> None:
    config, tokens = CASES[name]
    wanted, idle = truth(config, tokens * images)
    options = TraceOptions(batch=BATCH, seq=SEQ, attention="eager", image_tokens=tokens * images)
    found = trace_model(config, options)
    assert found.has_loss
    assert Counter((t.bytes, t.dtype) for t in found.saved) == wanted
    assert set(found.idle) == idle
    tower = {path for path in idle if "language_model" not in path and "text_model.layers" not in path}
    assert tower if not images else True


@pytest.mark.parametrize("attention", ["sdpa", "flash"])
@pytest.mark.parametrize("name", ["qwen3_vl", "qwen2_5_vl", "mistral3"])
def test_a_ledger_with_images_holds_at_other_sizes(name: str, attention: str, tmp_path: Path) -> None:
    """Sequences of other lengths and batches; attention of a tower loops over images, or is packed."""
    config, tokens = CASES[name]
    options = TraceOptions(attention=attention, image_tokens=tokens)
    write_ledger(fit_ledger(config, options, lengths=(101, 203), check=[]), tmp_path / "ledger.yaml")
    ledger = load_ledger(tmp_path / "ledger.yaml")
    assert ledger.images is not None
    assert (ledger.images.tokens, ledger.images.count) == (tokens, 1)
    found, wanted = evaluate_ledger(ledger, 4, 170), trace_model(config, replace(options, batch=4, seq=170))
    assert found.saved_bytes == wanted.saved_bytes
    assert found.layer_saved_bytes == wanted.layer_saved_bytes
    assert found.peaks().peak_backward_bytes == pytest.approx(wanted.peak_backward_bytes, rel=0.01)
    layers = [stage.name for stage in found.stages if stage.role == "layer"]
    assert layers == [stage.name for stage in wanted.stages if stage.kind != stage.name]
    with pytest.raises(InputError, match="tokens are an image's"):
        evaluate_ledger(ledger, 1, tokens)


def test_a_deeper_model_has_what_it_adds_behind_its_first_layers_once() -> None:
    """Features of the tower's blocks are added behind the first two layers of six; a ledger from fewer layers keeps
    that."""
    config = copy.deepcopy(CASES["qwen3_vl"][0])
    config["text_config"]["num_hidden_layers"] = 9
    options = TraceOptions(attention="flash", image_tokens=12)
    ledger = fit_ledger(config, options, lengths=(101, 203), batches=(1,), check=[])
    wanted = trace_model(config, replace(options, seq=170))
    assert evaluate_ledger(ledger, 1, 170).saved_bytes == wanted.saved_bytes
    layers = [span for span in ledger.pattern if span.module == "model.language_model.layers"]
    assert [(span.first, span.count) for span in layers] == [(0, 1), (1, 1), (2, 7)]


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = run(list(arguments))
    out, err = capfd.readouterr()
    return code, out, err


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CASES["qwen3_vl"][0]), encoding="utf-8")
    return str(path)


def traced(config: str, to: Path, capfd: pytest.CaptureFixture[str], *options: str) -> Ledger:
    code, out, err = said(capfd, "trace", "--model", config, "--attention", "flash", "-o", str(to), *options)
    assert (code, out) == (0, "")
    assert err.startswith(f"actplan: written {to}: ")
    return load_ledger(to)


def test_a_composite_is_traced_whole_with_head_and_loss(
    config: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Text alone: the tower's weights are there, and no gradient reaches them; ZeRO makes their states all the same.
    With images it is trained."""
    path = tmp_path / "ledger.yaml"
    ledger = traced(config, path, capfd)
    assert ledger.run["class"] == "Qwen3VLForConditionalGeneration"
    assert (ledger.end.head, ledger.end.loss, ledger.end.vocabulary) == (True, True, 128)
    fit = ("estimate", "--ledger", str(path), "--seq", "1k", "--gpu", "h100-80gb", "--format", "json")
    code, out, _ = said(capfd, *fit, "--recipe", "bf16")
    assert code == 0
    answer = json.loads(out)
    assert "idle-parameters" in {note["code"] for note in answer["notes"]}
    idle = sum(entry.count * sum(_numel(p.shape) for p in entry.parameters if p.idle) for entry in ledger.weights)
    optimizer = {phase["phase"]: phase["optimizer_bytes"] for phase in answer["budget"]["phases"]}["optimizer_step"]
    assert 4 * (ledger.num_parameters - idle) == pytest.approx(optimizer, rel=0.15)
    zero = json.loads(said(capfd, *fit, "--recipe", "zero-1")[1])["budget"]["phases"][-1]["optimizer_bytes"]
    assert zero >= 12 * ledger.num_parameters
    with_images = traced(config, path, capfd, "--image-tokens", "12")
    assert not any(p.idle for entry in with_images.weights for p in entry.parameters)
    for policy in ("none", "layer", "every:2"):
        code, out, _ = said(capfd, *fit, "--recipe", "bf16", "--checkpoint", policy)
        answer = json.loads(out)
        assert (code, answer["fit"]["fits"]) == (0, True)
        assert answer["peak"]["bytes"] <= answer["budget"]["total_bytes"]
        assert "image-tokens" in {note["code"] for note in answer["notes"]}


def _numel(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("gemma3", ("--image-tokens", "6"), "--image-tokens: 6 is no whole number of images of gemma3; allowed: mult"),
        ("qwen3_vl", ("--image-tokens", "0"), "--image-tokens: "),
        ("qwen3_vl", ("--image-tokens", "9k", "--whole"), "--seq: 8,192 tokens do not hold 9,216 of images"),
        ("qwen3_vl", ("--image-tokens", "12", "--compare"), "--image-tokens: images belong to a configuration"),
        ("llava", ("--loss", "fused", "--image-tokens", "3"), "--image-tokens: 3 is no whole number of images"),
    ],
)
def test_errors_are_in_words(
    name: str, options: tuple[str, ...], error: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CASES[name][0]), encoding="utf-8")
    code, out, err = said(capfd, "trace", "--model", str(path), *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"actplan: error: {error}")


def test_a_configuration_that_cannot_run_is_an_error_in_words(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = copy.deepcopy(CASES["glm4v"][0])
    config["text_config"]["rope_parameters"]["mrope_section"] = [8, 12, 12]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    code, out, err = said(capfd, "trace", "--model", str(path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Transformers cannot build or run it: " in err


def test_a_language_model_of_its_own_names_the_tower_it_leaves_out() -> None:
    """`AutoModelForCausalLM` builds Llama 4's language model alone."""
    import multimodal_cases as cases

    config = cases.composite(
        "llama4", "llama4_text", "llama4_vision_model",
        text={"num_local_experts": 2, "intermediate_size_mlp": 96}, vision={"vision_output_dim": 32},
    )  # fmt: skip
    ledger = fit_ledger(config, TraceOptions(attention="flash"), lengths=(101, 203), batches=(1,), check=[])
    assert ledger.run["class"] == "Llama4ForCausalLM"
    (part,) = ledger.left_out
    assert "vision tower" in part.name
    assert part.num_parameters > 1000


def test_a_language_model_without_a_class_gives_no_verdict(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Qwen3-VL's language model given alone: Transformers has no class with a head for it."""
    path, to = tmp_path / "config.json", str(tmp_path / "ledger.yaml")
    path.write_text(json.dumps(CASES["qwen3_vl"][0]["text_config"]), encoding="utf-8")
    ledger = traced(str(path), Path(to), capfd)
    assert (ledger.end.head, ledger.end.loss, ledger.end.asked) == (False, False, False)
    code, out, err = said(capfd, "estimate", "--ledger", to, "--gpu", "h100-80gb")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--ledger: no verdict on a traced step with neither head nor loss" in err
    code, out, _ = said(capfd, "estimate", "--ledger", to, "--seq", "1k", "--recipe", "bf16", "--format", "json")
    (note,) = (note for note in json.loads(out)["notes"] if note["code"] == "no-loss")
    assert code == 0
    assert "a head of 64 × 128 would have 8,192 parameters" in note["message"]
    traced(str(path), Path(to), capfd, "--loss", "none")
    assert said(capfd, "estimate", "--ledger", to, "--seq", "1k", "--gpu", "h100-80gb")[0] == 0
