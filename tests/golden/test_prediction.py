"""Multi-token prediction and early exits.

`reference/prediction.json`: Transformers 5.24's own modules (Qwen3) put together as Megatron-Core's
multi_token_prediction.py and TRL's LayerSkip trainer do, on PyTorch 2.13's fake tensors, measured by an outside tool.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from golden_reference import REFERENCE
from msgspec.structs import replace

from actplan.answers import estimate
from actplan.autograd import Tape
from actplan.basics.errors import InputError
from actplan.cli.main import run as actplan
from actplan.model import Model, Mtp
from actplan.model.reading import load_model, resolve
from actplan.model.reading.config_json import document_of_config
from actplan.profile import segmented
from actplan.stacks.transformers.model import uncrossed, walk
from actplan.training import Lora, Run
from actplan.training.mesh import Mesh
from actplan.training.policies import EveryK, EveryLayer, FirstN, Heaviest, NoCheckpoint, OneIn

RECORDS: list[dict[str, Any]] = json.loads((REFERENCE / "prediction.json").read_text(encoding="utf-8"))


def name(record: dict[str, Any]) -> str:
    return f"{record['case']}-{record['attn']}{'-ckpt' if record['ckpt'] else ''}"


def model_of(record: dict[str, Any]) -> Model:
    model = resolve(document_of_config(record["config"], name="x", source="x"))
    said = record["model"]
    if "mtp" in said:
        model = replace(model, mtp=Mtp(num_layers=said["mtp"]), mtp_layer=model.layers[-1])
    return replace(model, exits=tuple(said.get("exits", ())), exit_head="own" if said.get("own") else "shared")


@pytest.mark.parametrize("record", RECORDS, ids=name)
def test_every_tensor_and_both_peaks(record: dict[str, Any]) -> None:
    run = Run(
        sequence_length=record["seq"],
        micro_batch_size=record["batch"],
        attention="flash" if record["attn"] == "fa2" else "eager",
        mtp="mtp" in record["model"],
    )
    segments = tuple((i, i) for i in range(record["config"]["num_hidden_layers"])) if record["ckpt"] else ()
    done = walk(model_of(record), run, segments, tape=Tape(in_place=False))
    ours: Counter[Any] = Counter()
    theirs: Counter[Any] = Counter()
    for row in done.tape.ledger:
        ours[tuple(row.shape), row.dtype, row.nbytes] += row.count
    for traced in record["rows"]:
        theirs[tuple(traced["shape"]), traced["dtype"], traced["bytes"]] += traced["count"]
    assert ours == theirs
    assert sum(p.numel for p in done.tape.parameters.values()) == record["parameters"]
    for what in ("saved_bytes", "end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        assert getattr(done, what) == record[what], what


def with_both(preset: str, num_layers: int) -> Model:
    model = load_model(preset, preset=True, overrides=[f"num_layers={num_layers}"])
    if model.mtp is None:
        model = replace(model, mtp=Mtp(), mtp_layer=model.layers[-1])
    return replace(model, exits=(1, num_layers - 2))


@pytest.mark.parametrize("loss", ["naive", "fused"])
@pytest.mark.parametrize("preset", ["qwen-27b", "llama-3.2-1b", "deepseek-v3", "qwen3.5-35b-a3b"])
def test_the_chain_agrees_with_the_walk(preset: str, loss: Any) -> None:
    model = with_both(preset, 6)
    for run in (
        Run(sequence_length=512, attention="flash", loss=loss, mtp=True),
        Run(sequence_length=512, attention="flash", loss=loss, mtp=True, mesh=Mesh(tp=2, sp=True)),
    ):
        for policy in (NoCheckpoint(), EveryLayer(), EveryK(3), FirstN(2), OneIn(2), Heaviest(3)):
            ours = segmented(model, run, policy)
            oracle = walk(model, run, ours.segments)
            assert ours.saved_bytes == oracle.saved_bytes
            assert sum(msgspec.to_builtins(ours.outside_layers).values()) == sum(
                row.nbytes * row.count
                for row in oracle.tape.ledger
                if (row.stage in (0, model.num_layers + 1) and row.owner is None) or row.owner == "input:ids"
            )
            assert ours.end_forward_bytes == pytest.approx(oracle.end_forward_bytes, rel=1e-3)
            assert ours.peak_forward_bytes == pytest.approx(oracle.peak_forward_bytes, rel=0.005)
            assert ours.peak_backward_bytes == pytest.approx(oracle.peak_backward_bytes, rel=0.005)
            assert ours.measured.num_parameters == sum(p.numel for p in oracle.tape.parameters.values())


@pytest.mark.parametrize("preset", ["qwen-27b", "deepseek-v3", "qwen3.5-35b-a3b"])
def test_parameters_are_those_of_the_checkpoint(preset: str) -> None:
    model, run = load_model(preset, preset=True), Run(sequence_length=64, attention="flash")
    counted = [segmented(model, r, NoCheckpoint()).measured.num_parameters for r in (run, replace(run, mtp=True))]
    left = {part.name: part.num_parameters for part in model.left_out}
    assert counted[1] - counted[0] == left["multi-token prediction"]


def test_a_report_has_a_part_for_each_and_no_note_of_what_is_trained() -> None:
    model = with_both("qwen-27b", 4)
    report = estimate(model, Run(sequence_length=256, mtp=True))
    outside = msgspec.to_builtins(report.estimates.autograd.outside_layers)
    assert set(outside) == {"embedding", "final_norm", "head", "loss", "mtp", "exits"}
    assert report.run.mtp is True
    assert not [note for note in report.notes if "multi-token" in note.message]
    plain = estimate(replace(model, exits=()), Run(sequence_length=256))
    outside = msgspec.to_builtins(plain.estimates.autograd.outside_layers)
    assert set(outside) == {"embedding", "final_norm", "head", "loss"}
    assert [note for note in plain.notes if "multi-token" in note.message]


def test_no_loss_no_prediction() -> None:
    model, run = with_both("qwen-27b", 4), Run(sequence_length=256, loss="none", attention="flash")
    plain = replace(model, exits=())
    both, neither = segmented(model, replace(run, mtp=True), EveryLayer()), segmented(plain, run, EveryLayer())
    assert both.peak_bytes == neither.peak_bytes


def test_a_replay_of_the_predicting_layer_costs() -> None:
    model = load_model("qwen-27b", preset=True, overrides=["num_layers=4"])
    run = Run(sequence_length=256, attention="flash", mtp=True)
    chosen = segmented(model, run, FirstN(1))
    again = sum(stage.replayed_flops for stage in walk(model, run, chosen.segments).stages)
    assert chosen.recompute_flops_fraction == pytest.approx(again / (3 * chosen.measured.flops), rel=1e-6)


def test_segments_are_cut_at_exits() -> None:
    assert uncrossed(((0, 5), (6, 7)), (2, 4, 6)) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert uncrossed(((0, 5),), ()) == ((0, 5),)


def test_what_is_refused(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert actplan(["estimate", "--preset", "llama-3.2-1b", "--mtp"]) == 2
    assert b"--mtp: llama-3.2-1b has no multi-token prediction" in capfdbinary.readouterr().err
    for exits in ("[0]", "[16]", "[8,4]", "[4,4]", "[x]"):
        assert actplan(["estimate", "--preset", "llama-3.2-1b", "--set", f"exits={exits}"]) == 2
        assert b"exits[" in capfdbinary.readouterr().err
    with pytest.raises(InputError, match=r"mtp\.kind"):
        load_model("llama-3.2-1b", preset=True, overrides=["mtp={num_layers: 1, kind: nothing}"])
    with pytest.raises(InputError, match="exits: early exits are planned"):
        segmented(with_both("qwen-27b", 4), Run(sequence_length=64, adapters=Lora()), NoCheckpoint())
    with pytest.raises(InputError, match="exits: early exits read hidden states of other pipeline stages"):
        segmented(with_both("qwen-27b", 4), Run(sequence_length=64, mesh=Mesh(pp=2)), NoCheckpoint())


def test_in_a_specification() -> None:
    model = load_model("llama-3.2-1b", preset=True, overrides=["exits=[4, 8]", "mtp={num_layers: 2}", "exit_head=own"])
    assert (model.exits, model.mtp, model.exit_head) == ((4, 8), Mtp(num_layers=2), "own")
    assert model.mtp_layer == model.layers[-1]
    assert load_model("llama-3.2-1b", preset=True, overrides=["exits=[4, 8]", "num_layers=6"]).exits == (4,)
