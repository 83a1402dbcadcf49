"""The losses that people run, against their frameworks' own code.

`reference/losses.json`: TRL's tiled head, torchtune's two chunked losses, torchtitan's, Liger's cross-entropy and
DTensor's loss-parallel on fake tensors, by an outside tool; what stands in for what is said there under `how`.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from golden_reference import REFERENCE
from msgspec.structs import replace

from actplan.basics.units import BF16, FP32
from actplan.cli.main import run as actplan
from actplan.model import Model, Mtp
from actplan.model.reading import load_model, resolve
from actplan.model.reading.config_json import document_of_config
from actplan.profile import segmented
from actplan.stacks.transformers import losses
from actplan.stacks.transformers.model import walk
from actplan.training import LOSSES, Frozen, Loss, Run
from actplan.training.mesh import Mesh
from actplan.training.policies import EveryLayer, NoCheckpoint

DATA: dict[str, Any] = json.loads((REFERENCE / "losses.json").read_text(encoding="utf-8"))
Record = dict[str, Any]
PEAKS = ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes")


def name(r: Record) -> str:
    words = (
        r["loss"], r["config"], r["batch"], r["seq"], r["mode"], "ckpt" if r["ckpt"] else "",
        "frozen" if r["frozen"] else "", f"chunks{r['chunks']}" if "chunks" in r else "",
        f"tp{r['tp']}{'sp' if r['sp'] else ''}" if "tp" in r else "",
    )  # fmt: skip
    return "-".join(str(word) for word in words if word)


@cache
def model_of(config: str) -> Model:
    return resolve(document_of_config(DATA["configs"][config], name="x", source="x"))


def run_of(r: Record) -> Run:
    tied = DATA["configs"][r["config"]].get("tie_word_embeddings")
    return Run(
        sequence_length=r["seq"],
        micro_batch_size=r["batch"],
        attention=r["attention"],
        device="cuda",
        loss=r["loss"],
        loss_chunks=r.get("chunks", 8),
        dtype=FP32 if r["mode"] == "fp32" else BF16,
        precision="autocast" if r["mode"] == "autocast" else "pure",
        frozen=Frozen(parts=("embed_tokens" if tied else "lm_head.weight",)) if r["frozen"] else Frozen(),
        mesh=Mesh(tp=r.get("tp", 1), sp=r.get("sp", False)),
    )


@pytest.mark.parametrize("r", DATA["records"], ids=name)
def test_saved_bytes_and_both_peaks(r: Record) -> None:
    run = run_of(r)
    segments = tuple((i, i) for i in range(2)) if r["ckpt"] else ()
    done = walk(model_of(r["config"]), run, segments)
    assert done.saved_bytes == r["saved_bytes"]
    assert [getattr(done, peak) for peak in PEAKS] == [r[peak] for peak in PEAKS]
    if "rows" in r:
        ours: Counter[Any] = Counter()
        for row in done.tape.ledger:
            ours[row.dtype, row.nbytes] += row.count
        assert ours == Counter((dtype, nbytes) for _, dtype, nbytes in r["rows"])


@pytest.mark.parametrize("r", DATA["records"], ids=name)
def test_the_command_says_the_same(r: Record, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(DATA["configs"][r["config"]]))
    given = ["--model", str(config), "--seq", str(r["seq"]), "--batch", str(r["batch"]), "--attention", r["attention"]]
    given += ["--device", "cuda", "--loss", r["loss"], "--checkpoint", "layer" if r["ckpt"] else "none"]
    given += {"bf16": [], "fp32": ["--dtype", "fp32"], "autocast": ["--precision", "autocast"]}[r["mode"]]
    given += ["--loss-chunks", str(r["chunks"])] if "chunks" in r else []
    given += ["--freeze", run_of(r).frozen.parts[0]] if r["frozen"] else []
    given += ["--tp", str(r["tp"]), *(["--sp"] if r["sp"] else [])] if "tp" in r else []
    assert actplan(["estimate", *given, "--format", "json"]) == 0
    said = json.loads(capfdbinary.readouterr().out)["estimates"]["autograd"]
    assert said["saved_bytes"] == r["saved_bytes"]
    for peak in PEAKS:
        # stage by stage, as the command adds up, position ids that checkpoints hold live on into the embedding's
        # backward, and a bias that autocast casts for the head is cast too late
        assert said[peak] == pytest.approx(r[peak], rel=2e-4)


# --- what depends on the loss ---------------------------------------------------------------------------------


def said_of(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> dict[str, Any]:
    assert actplan(["estimate", "--preset", "llama-3.2-1b", "--seq", "2k", *arguments, "--format", "json"]) == 0
    said: dict[str, Any] = json.loads(capfdbinary.readouterr().out)
    return said


def test_every_name_is_in_the_table_and_can_be_run() -> None:
    assert tuple(LOSSES) == get_args(Loss)
    for word, kind in LOSSES.items():
        assert kind.name == word
        assert not kind.is_there or (kind.source and callable(losses.function(Run(loss=kind.name))))


def test_liger_is_fused_by_its_own_name(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    fused, liger = (said_of(capfdbinary, "--loss", word) for word in ("fused", "liger"))
    assert fused["estimates"] == liger["estimates"]
    assert (fused["run"]["loss"], liger["run"]["loss"]) == ("fused", "liger")


def test_trl_makes_its_logits_twice() -> None:
    model = load_model("llama-3.2-1b", preset=True)
    run = Run(sequence_length=2048, loss="trl", attention="flash")
    found = segmented(model, run, NoCheckpoint())
    logits = 2 * 2047 * model.hidden_size * model.vocab_size
    assert found.recompute_flops_fraction == logits / (3 * found.measured.flops)
    assert segmented(model, replace(run, loss="naive"), NoCheckpoint()).recompute_flops_fraction == 0
    more = segmented(model, run, EveryLayer()).recompute_flops_fraction
    layers = segmented(model, replace(run, loss="fused"), EveryLayer()).recompute_flops_fraction
    assert more == pytest.approx(layers + found.recompute_flops_fraction, rel=1e-3)


def test_torchtitan_has_its_head_s_gradient_in_forward(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """.grad of the projection, in the type it has in training, beside what the forward allocates."""
    for recipe, size in (("bf16", 2), ("autocast", 4)):
        for more in ((), ("--set", "tie_word_embeddings=false")):
            phases = said_of(capfdbinary, "--loss", "torchtitan", "--recipe", recipe, *more)["budget"]["phases"]
            assert phases[0]["gradients_bytes"] == pytest.approx(128256 * 2048 * size, rel=1e-4)
    assert (
        said_of(capfdbinary, "--loss", "torchtune", "--recipe", "bf16")["budget"]["phases"][0]["gradients_bytes"] == 0
    )


@pytest.mark.parametrize("loss", [word for word, kind in LOSSES.items() if kind.logits_sized and not kind.needs_tp])
def test_a_fused_loss_is_proposed_where_logits_are_large(loss: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    given = ("--loss", loss, "--recipe", "bf16", "--checkpoint", "layer", "--seq", "16k", "--limit", "16GiB")
    assert actplan(["estimate", "--preset", "llama-3.2-1b", *given, "--format", "json"]) == 1
    said = json.loads(capfdbinary.readouterr().out)
    assert any("--loss fused" in remedy["change"] for remedy in said["fit"]["remedies"])
    assert "logits-copies" in [note["code"] for note in said["notes"]]


@pytest.mark.parametrize("loss", ["fused", "liger", "trl", "torchtitan"])
def test_none_is_proposed_where_they_are_not(loss: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    codes = [note["code"] for note in said_of(capfdbinary, "--loss", loss, "--recipe", "bf16")["notes"]]
    assert not {"logits-copies", "logits-share", "loss-decides", "logits-held"} & set(codes)


@pytest.mark.parametrize("loss", ["trl", "liger-ce", "torchtune", "torchtune-output"])
def test_further_losses_run_as_the_model_s_own(loss: Loss) -> None:
    """Multi-token prediction and early exits: the whole model and the sum of its stages agree."""
    model = model_of("llama-50000")
    for changed in (
        replace(model, mtp=Mtp(num_layers=2), mtp_layer=model.layers[-1]),
        replace(model, exits=(1,)),
    ):
        run = Run(sequence_length=256, loss=loss, attention="flash", mtp=changed.mtp is not None)
        done, found = walk(changed, run), segmented(changed, run, NoCheckpoint())
        assert (found.saved_bytes, found.end_forward_bytes) == (done.saved_bytes, done.end_forward_bytes)
        assert found.peak_backward_bytes == done.peak_backward_bytes


REFUSED = [
    (("--loss", "chunked"), "--loss: unknown value 'chunked'"),
    (("--loss", "trl", "--tp", "2"), "--loss: TRL's tiled loss runs on a whole vocabulary"),
    (("--loss", "liger-ce", "--tp", "2"), "--loss: Liger cross-entropy runs on a whole vocabulary"),
    (("--loss", "parallel"), "--loss: loss-parallel: tensor-parallel ranks divide the vocabulary"),
    (("--loss", "trl", "--loss-chunks", "4"), "--loss-chunks: the loss trl has no chunks to choose"),
    (("--loss", "torchtune", "--loss-chunks", "0"), "--loss-chunks"),
    (("--loss", "torchtitan", "--seq", "1001"), "--loss-chunks: torchtitan's chunked loss cuts 1,001 tokens"),
    (("--loss", "torchtitan", "--set", "exits=[2]"), "--loss: torchtitan's chunked loss is run once"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_refused(arguments: tuple[str, ...], words: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert actplan(["estimate", "--preset", "llama-3.2-1b", *arguments]) == 2
    assert words in capfdbinary.readouterr().err.decode()


def test_a_sweep_over_losses(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    given = ["--preset", "llama-3.2-1b", "--seq", "2k", "--loss", "fused,torchtune", "--format", "json"]
    peaks = []
    for chunks in ("8", "16"):
        assert actplan(["sweep", *given, "--loss-chunks", chunks]) == 0
        rows = json.loads(capfdbinary.readouterr().out)["rows"]
        assert [row["loss"] for row in rows] == ["fused", "torchtune"]
        peaks.append([row["peak_forward_bytes"] for row in rows])
    assert peaks[0][0] == peaks[1][0]
    assert peaks[0][1] > peaks[1][1]
