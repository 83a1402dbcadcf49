"""Every setting of a run is declared once: its option, its field, its axis of a sweep and its key of the report."""

from __future__ import annotations

import pytest
from cli_harness import result
from msgspec import structs

from actplan.memory.setup import WORDS, Setup
from actplan.report import RunInfo
from actplan.training import FakeQuantised, Frozen, Lora, Run
from actplan.training.choices import options_of, with_settings
from actplan.training.mesh import Mesh
from actplan.training.policies import parse_policy
from actplan.training.settings import BY_COLUMN, SETTINGS

RUNS = {
    "plain": Run(),
    "sizes": Run(sequence_length=4096, micro_batch_size=3, kernels="liger", loss="torchtune", loss_chunks=4),
    "mesh": Run(mesh=Mesh(dp=2, tp=4, sp=True, cp=2), context_attention="all-gather"),
    "lora of the usual rank": Run(adapters=Lora(), input_require_grads=False),
    "dora": Run(adapters=Lora(rank=8, targets=("o_proj",), dropout=0.05, dora=True, modules_to_save=("lm_head",))),
    "frozen": Run(frozen=Frozen(first_layers=3, parts=("embed_tokens", "mlp")), padding_mask=True, hold_logits=True),
    "rounded": Run(fake_quantised=FakeQuantised(activations=False), mtp=True),
    "checkpointed": Run(checkpoint=parse_policy("segments:0-3,8-11"), input_require_grads=True),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_options_of_a_run_describe_it(run: Run) -> None:
    words = iter(options_of(run))
    by_flag = {setting.flag: setting for setting in SETTINGS} | {
        setting.flag_of(False): setting for setting in SETTINGS if setting.off
    }
    chosen: dict[str, object] = {}
    for word in words:
        setting = by_flag[word]
        if setting.read is None:
            chosen[setting.field] = word == setting.flag
        else:
            (chosen[setting.field],) = setting.read(next(words), word)
    assert with_settings(Run(), chosen) == run


def test_a_setup_has_a_line_for_each_field_with_what_it_is_unsaid() -> None:
    assert {word.name: word.unsaid for word in WORDS} == structs.asdict(Setup())


def test_every_key_is_in_the_report() -> None:
    assert {setting.reported for setting in SETTINGS if setting.shown} <= set(RunInfo.__struct_fields__)


def test_columns_of_a_sweep_have_names_of_their_own() -> None:
    assert len(BY_COLUMN) == sum(bool(setting.field) for setting in SETTINGS)


def test_a_setting_of_adapters_is_an_axis_of_a_sweep() -> None:
    small = ("--preset", "llama-3.2-1b", "--set", "num_layers=2", "--seq", "512")
    rows = result("sweep", *small, "--lora-rank", "8,16")["rows"]
    assert [row["lora_rank"] for row in rows] == [8, 16]
    each = [result("estimate", *small, "--lora-rank", rank)["estimates"]["autograd"] for rank in ("8", "16")]
    assert [row["autograd_bytes"] for row in rows] == [one["saved_bytes"] for one in each]
