"""torchtitan's own modules against torchtitan 0.3.0 that was run (tests/reference/torchtitan_autograd.json and
torchtitan_more.json): every saved tensor, every layer, both peaks; and what the stack refuses."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import Any

import pytest
from cli_harness import refused, result
from golden_reference import REFERENCE

from actplan.autograd import Tape
from actplan.cli.estimating import parsed
from actplan.model import Model
from actplan.profile import segmented
from actplan.stacks import stack_of
from actplan.validation import read_records

FILES = [REFERENCE / "torchtitan_autograd.json", REFERENCE / "torchtitan_more.json"]
TRACES: dict[str, dict[str, Any]] = {
    one["id"]: one for file in FILES for one in json.loads(file.read_text(encoding="utf-8"))
}
RECORDS = [one for file in FILES for one in read_records(file)]
PEAK = 1e-5
"""The largest relative error of a peak: scalars that the trainer holds are counted as the loss's own."""


@pytest.fixture(scope="module")
def said() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    words = [word for file in FILES for word in ("--records", str(file))]
    for entry in result("validate", *words)["records"]:
        found.setdefault(entry["id"], {})[entry["quantity"]] = entry
    return found


@pytest.mark.parametrize("name", TRACES)
def test_layers_and_peaks_are_torchtitans(name: str, said: dict[str, dict[str, Any]]) -> None:
    entries = said[name]
    layers = [entry for quantity, entry in entries.items() if quantity.startswith("layer_saved_bytes")]
    assert len(layers) == TRACES[name]["args"]["layers"]
    assert {entry["error"] for entry in layers} == {0.0}
    for quantity in ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        assert abs(entries[quantity]["error"]) <= PEAK, quantity


@pytest.mark.parametrize(
    "name", [name for name, one in TRACES.items() if one["args"]["ac"] == "none" and "rows" in one]
)
def test_every_saved_tensor_of_a_layer(name: str) -> None:
    record = next(one for one in RECORDS if one.id == name)
    rows = result("ledger", *record.words)["ledger"]
    ours, theirs = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for row in rows:
        if row["module"].startswith("layers.1"):
            ours[row["dtype"], row["bytes"]] += row["count"]
    for row in TRACES[name]["rows"]:
        # theirs are where a tensor was made, ours where it was saved first: the residual stream is one layer apart
        if row.get("module", "").startswith("layers.1"):
            theirs[row["dtype"], row["bytes"]] += 1
    assert ours == theirs


@pytest.mark.parametrize("record", RECORDS, ids=lambda one: one.id)
def test_the_chain_is_the_walk(record: Any) -> None:
    """Peaks of the command, which come from a chain of stages, and of a walk through the whole model."""
    model, run, _ = parsed(record.words)
    assert isinstance(model, Model)
    chosen = segmented(model, run, run.checkpoint)
    walked = stack_of(run).walk(model, run, chosen.segments, keeps=chosen.keeps, tape=Tape())
    assert walked.peak_forward_bytes == pytest.approx(chosen.peak_forward_bytes, rel=1e-4)
    assert walked.peak_backward_bytes == pytest.approx(chosen.peak_backward_bytes, rel=1e-4)


LLAMA = ("--preset", "llama-3-8b", "--set", "num_layers=4", "--stack", "torchtitan")


def saved(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = result("estimate", *LLAMA, *words)["estimates"]["autograd"]
    return found


def test_sequence_parallel_ranks_keep_their_rows() -> None:
    """models/llama3/sharding.py: norms run on a rank's own rows, which are gathered for the products of a block."""
    one, two = saved("--loss", "none"), saved("--tp", "2", "--sp", "--loss", "none")
    tokens, hidden = 8192, 4096
    rows = 2 * tokens * hidden * 2  # the two inputs of norms, in bf16
    statistics = 2 * tokens * 4
    whole = 2 * tokens * hidden * 2 + tokens * 64 * 8  # what is gathered, and rope's rows
    rest = one["layer_saved_bytes"][1] - rows - statistics - whole
    assert two["layer_saved_bytes"][1] == (rows + statistics) // 2 + whole + rest // 2


def test_the_vocabulary_is_divided() -> None:
    assert saved("--tp", "2")["outside_layers"]["loss"] == pytest.approx(
        saved()["outside_layers"]["loss"] / 2, rel=1e-3
    )


def test_full_checkpointing_runs_to_the_end_of_a_block() -> None:
    late = saved("--checkpoint", "layer", "--loss", "none")["peak_backward_bytes"]
    early = saved("--checkpoint", "layer", "--loss", "none", "--stack-set", "early_stop=true")["peak_backward_bytes"]
    assert late >= early


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--kernels", "liger"), "torchtitan has no kernels liger"),
        (("--checkpoint", "every:2"), "torchtitan checkpoints each block on its own"),
        (("--loss", "fused"), "its chunked loss is --loss torchtitan"),
        (("--attention", "flash2"), "torchtitan has no attention flash2"),
        (("--lora-rank", "8"), "not planned with --stack torchtitan"),
        (("--loss", "torchtitan", "--loss-chunks", "3"), "are not 3 equal chunks"),
        (("--stack-set", "fused_qkv=true"), "did you mean 'fuse_qkv'?"),
        (("--stack-set", "rope=half"), "rope: invalid enum value"),
    ],
)
def test_what_torchtitan_has_not_is_refused(words: tuple[str, ...], says: str) -> None:
    assert says in refused("estimate", *LLAMA, *words)


def test_models_that_are_not_its_own_are_refused() -> None:
    assert "not planned with --stack torchtitan" in refused("estimate", "--preset", "gpt2", "--stack", "torchtitan")
    assert "a mixer of kind" in refused("estimate", "--preset", "qwen-27b", "--stack", "torchtitan")


def test_the_printed_command_is_a_users(said: dict[str, dict[str, Any]]) -> None:
    entry = said["llama3-70b-selective-chunked"]["peak_backward_bytes"]
    autograd = result(*shlex.split(entry["command"])[1:])["estimates"]["autograd"]
    assert autograd["peak_backward_bytes"] == entry["predicted_bytes"]
    assert "selective:attention,wqkv,w1,w2" in entry["command"]
