"""Budget, verdict, cost and stages, from the outside."""

from __future__ import annotations

import csv
import io
import json
import subprocess

import pytest
from cli_harness import CLEAN, COMMAND, actplan, refused, result
from test_cli_start_up import heavy, modules

from actplan.basics.units import GIB

SMALL = ("--preset", "llama-3.2-1b", "--set", "num_layers=4", "--seq", "1k")
LLAMA = ("--preset", "llama-3-8b", "--recipe", "fsdp", "--dp", "8")
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "loss", "workspace", "communication")


def answer(*arguments: str) -> tuple[int, dict[str, object]]:
    """Exit code and JSON of an `estimate`."""
    done = actplan("estimate", *arguments, "--format", "json")
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


# --- the verdict --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--gpu", "h100-80gb"), 0),
        (("--gpu", "H100-80GB"), 0),
        (("--gpu", "t4", "--recipe", "bf16"), 0),  # tight
        (("--gpu", "t4", "--recipe", "bf16", "--strict"), 1),
        (("--limit", "76GiB"), 0),
        (("--limit", "1GiB"), 1),
        (("--recipe", "bf16"), 0),
    ],
)
def test_the_exit_code_is_the_verdict(arguments: tuple[str, ...], code: int) -> None:
    done = actplan("estimate", "--preset", "llama-3.2-1b", "--seq", "4k", "--loss", "fused", *arguments)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(("limit", "shown"), [("80GiB", "fits\n"), ("2GiB", "stopped\n")])
def test_it_guards_a_batch_script(limit: str, shown: str) -> None:
    line = (
        f"{COMMAND} estimate {' '.join(SMALL)} --limit {limit} > /dev/null && echo fits || {{ echo stopped; exit 1; }}"
    )
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=CLEAN, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (shown, 0 if shown == "fits\n" else 1)


def test_a_limit_is_bytes_with_a_unit() -> None:
    assert answer(*SMALL, "--limit", "76GiB")[1]["fit"]["limit_bytes"] == 76 * GIB  # type: ignore[index]
    assert answer(*SMALL, "--limit", "80GB")[1]["fit"]["limit_bytes"] == 80 * 10**9  # type: ignore[index]
    assert "--limit" in refused("estimate", *SMALL, "--limit", "76 giga")


def test_what_must_be_within_the_limit() -> None:
    found = result("estimate", *SMALL, "--recipe", "bf16", "--gpu", "h100-80gb")["budget"]
    total = found["total_bytes"]
    edges = {
        "allocated": (total, total),
        "reserved": (found["reserved_bytes"]["low"], found["reserved_bytes"]["typical"]),
        "device": (found["device_bytes"]["low"], found["device_bytes"]["typical"]),
    }
    for word, (low, typical) in edges.items():
        tight = "tight" if low < typical else "no"
        for limit, verdict in ((typical, "fits"), (typical - 1, tight), (low, tight), (low - 1, "no")):
            expected = "fits" if limit >= typical else verdict
            asked = (*SMALL, "--recipe", "bf16", "--gpu", "h100-80gb", "--limit", f"{limit}B", "--fit-on", word)
            for strict in ((), ("--strict",)):
                code, said = answer(*asked, *strict)
                fit: dict[str, object] = said["fit"]  # type: ignore[assignment]
                assert fit["verdict"] == expected
                assert fit["headroom_bytes"] == limit - typical
                runs = expected == "fits" or (expected == "tight" and not strict)
                assert (code == 0) is fit["fits"] is runs


def test_expandable_segments_leave_more_room() -> None:
    """They are what a tight run is told to set; with them it typically takes what it needs at least."""
    asked = (*LLAMA, "--gpu", "h100-80gb")
    tight = answer(*asked)[1]["fit"]
    assert (tight["verdict"], tight["setting"]) == (  # type: ignore[index, call-overload]
        "tight",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    )
    found = answer(*asked, "--allocator", "expandable")[1]
    assert found["budget"]["reserved_bytes"]["typical"] < tight["needed_bytes"]["typical"]  # type: ignore[index, call-overload]
    assert "setting" not in found["fit"]  # type: ignore[operator]
    assert "did you mean 'expandable'?" in refused("estimate", *SMALL, "--allocator", "expandible")
    assert "with --gpu or --limit" in refused("estimate", *SMALL, "--recipe", "bf16", "--strict")


def test_wrong_words_suggest_the_nearest() -> None:
    assert "did you mean 'h100-80gb'?" in refused("estimate", *SMALL, "--gpu", "h100-80g")
    assert "did you mean 'zero-3'?" in refused("estimate", *SMALL, "--recipe", "zero3")
    assert "did you mean 'adamw8bit'?" in refused("estimate", *SMALL, "--optimizer", "adamw8bits")
    assert "did you mean 'reserved'?" in refused("estimate", *SMALL, "--limit", "1GiB", "--fit-on", "reserve")
    assert "did you mean 'activations'?" in refused("estimate", *SMALL, "--offload", "activation")
    assert "with --gpu or --limit" in refused("estimate", *SMALL, "--fit-on", "allocated")
    assert "did you mean 'never'?" in refused("estimate", *SMALL, "--recipe", "fsdp", "--reshard", "nevr")
    assert "only FSDP reshards" in refused("estimate", *SMALL, "--recipe", "zero-3", "--reshard", "never")


def test_when_it_does_not_fit_blame_and_remedies_that_were_tried() -> None:
    code, found = answer(*LLAMA, "--gpu", "a6000-48gb")
    fit: dict[str, object] = found["fit"]  # type: ignore[assignment]
    assert code == 1
    assert fit["blame"] == "activations"
    remedies = {remedy["change"]: remedy for remedy in fit["remedies"]}  # type: ignore[attr-defined]
    tried = answer(*LLAMA, "--gpu", "a6000-48gb", "--checkpoint", "layer")
    assert tried[0] == 0
    assert remedies["--checkpoint layer"]["device_bytes"] == tried[1]["budget"]["device_bytes"]  # type: ignore[index]
    assert remedies["--checkpoint layer"]["fits"]


# --- the price ----------------------------------------------------------------------------------------------------


def test_the_price_by_hand() -> None:
    """989 TFLOP/s dense; 6 FLOPs a parameter and token, attention on top; recomputation on top of that."""
    cost = result("estimate", *LLAMA, "--tokens", "1T", "--gpus", "64", "--mfu", "0.4", "--checkpoint", "layer")["cost"]
    plain = result("estimate", *LLAMA, "--tokens", "1T", "--gpus", "64", "--mfu", "0.4")
    fraction = next(row for row in plain["segmentations"] if row["policy"] == "layer")["recompute_flops_fraction"]
    assert 6 * 7.5e9 < cost["step_flops_per_token"] < 1.25 * 6 * 8.03e9
    hours = 1e12 * cost["step_flops_per_token"] / (989.4e12 * 0.4) / 3600
    assert plain["cost"]["gpu_hours"] == pytest.approx(hours, rel=0.001)
    assert cost["gpu_hours"] == pytest.approx(hours * (1 + fraction), rel=0.001)
    assert cost["recompute_gpu_hours"] == pytest.approx(hours * fraction, rel=0.001)
    assert cost["recompute_share"] == pytest.approx(fraction / (1 + fraction), rel=0.001)
    assert 0.15 < cost["recompute_share"] < 0.25
    assert plain["cost"]["recompute_share"] == 0
    assert (cost["tokens"], cost["gpus"], cost["mfu"]) == (10**12, 64, 0.4)


def test_twenty_tokens_a_parameter() -> None:
    found = result("estimate", *SMALL, "--tokens", "chinchilla")
    assert found["cost"]["tokens"] == 20 * found["model"]["num_parameters"]
    assert found["cost"]["gpus"] == 1
    assert "budget" not in found


def test_the_price_does_not_depend_on_the_mesh() -> None:
    one = result("estimate", *SMALL, "--tokens", "1B", "--gpus", "8")["cost"]
    assert result("estimate", *SMALL, "--tokens", "1B", "--gpus", "8", "--tp", "4", "--dp", "2")["cost"] == one
    assert result("estimate", *SMALL, "--tokens", "1B", "--tp", "4", "--dp", "2")["cost"] == one


def test_prices_that_mean_nothing() -> None:
    assert "--mfu" in refused("estimate", *SMALL, "--tokens", "1B", "--mfu", "1.5")
    assert "--mfu" in refused("estimate", *SMALL, "--tokens", "1B", "--mfu", "fast")
    assert "--tokens" in refused("estimate", *SMALL, "--tokens", "many")
    assert "with --tokens" in refused("estimate", *SMALL, "--gpus", "8")


# --- what is printed ------------------------------------------------------------------------------------------------


def test_the_keys_of_the_contract() -> None:
    found = answer(*LLAMA, "--gpu", "h100-80gb", "--checkpoint", "layer", "--pp", "2", "--tokens", "1B")[1]
    budget: dict[str, object] = found["budget"]  # type: ignore[assignment]
    phases: list[dict[str, object]] = budget["phases"]  # type: ignore[assignment]
    assert [phase["phase"] for phase in phases] == ["forward_loss", "backward", "optimizer_step"]
    sizes = {f"{name}_bytes" for name in CATEGORIES}
    for phase in phases:
        assert set(phase) == {"phase", "total_bytes", "first_step_total_bytes", *sizes}
        assert phase["total_bytes"] == sum(phase[name] for name in sizes)  # type: ignore[misc]
    assert {"peak_phase", "total_bytes", "reserved_bytes", "framework_bytes", "device_bytes"} <= set(budget)
    for band in ("reserved_bytes", "framework_bytes", "device_bytes"):
        typical = set() if band == "framework_bytes" else {"typical"}
        assert set(budget[band]) == {"low", "high"} | typical  # type: ignore[call-overload]
    assert {"limit_bytes", "fits", "headroom_bytes"} <= set(found["fit"])  # type: ignore[call-overload]
    assert "null" not in json.dumps(found)


def test_one_value() -> None:
    assert actplan("estimate", *SMALL, "--recipe", "bf16", "--get", "budget.total_bytes").stdout.strip().isdigit()
    done = actplan("estimate", *SMALL, "--limit", "1GiB", "--get", "fit.fits")
    assert (done.stdout, done.returncode) == ("false\n", 1)
    assert actplan("estimate", *SMALL, "--limit", "90GiB", "--get", "fit.fits").stdout == "true\n"


def test_nothing_of_a_budget_unless_it_is_asked_for() -> None:
    found = result("estimate", *SMALL)
    assert not {"budget", "fit", "cost"} & set(found)
    assert "not-counted" in {note["code"] for note in found["notes"]}
    assert "not-counted" not in {note["code"] for note in result("estimate", *SMALL, "--recipe", "bf16")["notes"]}


def test_csv_and_markdown_have_the_budget() -> None:
    arguments = ("estimate", *SMALL, "--recipe", "bf16", "--gpu", "h100-80gb", "--tokens", "1B")
    data = json.loads(actplan(*arguments, "--format", "json").stdout)
    rows = list(csv.DictReader(io.StringIO(actplan(*arguments, "--format", "csv").stdout)))
    phases = [row for row in rows if row["row"] == "budget"]
    assert [row["name"] for row in phases] == ["forward_loss", "backward", "optimizer_step"]
    for row, phase in zip(phases, data["budget"]["phases"], strict=True):
        assert {key: int(row[key]) for key in phase if key != "phase"} == {
            k: v for k, v in phase.items() if k != "phase"
        }
    device = next(row for row in rows if (row["row"], row["name"]) == ("band", "device"))
    assert {end: int(device[end]) for end in ("low", "high", "typical")} == data["budget"]["device_bytes"]
    assert next(row for row in rows if row["row"] == "fit")["fits"] == "true"
    assert float(next(row for row in rows if row["row"] == "cost")["gpu_hours"]) == data["cost"]["gpu_hours"]
    text = actplan(*arguments, "--format", "markdown").stdout
    assert "| GiB a GPU | backward |" in text
    assert "**FITS  " in text


def test_the_table() -> None:
    text = actplan("estimate", *LLAMA, "--gpu", "h100-80gb", "--tokens", "1T", "--gpus", "64").stdout
    assert "recipe fsdp · adamw · 8 × h100-80gb (dp 8) · no checkpointing" in text
    for name in (*CATEGORIES, "total"):
        assert f"\n  {'logits and loss' if name == 'loss' else name} " in text
    assert "TIGHT  74.67 GiB allocated of 79.65" in text
    assert "perhaps only with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text
    assert "total, first step" in actplan("estimate", *LLAMA, "--gpu", "h100-80gb", "--details").stdout
    small = actplan("estimate", *LLAMA, "--gpu", "a6000-48gb").stdout
    assert "NO  at least" in small
    assert " GiB of 47.99, " in small
    assert "--checkpoint layer" in text
    assert "hours on 64 GPUs" in text


def test_categories_of_the_table_are_those_of_the_json() -> None:
    found = result("estimate", *SMALL, "--recipe", "fp32")["budget"]["phases"][2]
    line = next(
        x for x in actplan("estimate", *SMALL, "--recipe", "fp32").stdout.splitlines() if x.startswith("  optimizer ")
    )
    assert line.split()[-1] == f"{found['optimizer_bytes'] / GIB:.2f}"


# --- recipes, stages, degrees -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "dtype", "more"),
    [
        ("autocast", "bf16", {"precision": "autocast"}),
        ("fp16", "fp16", {"precision": "autocast"}),
        ("fp32", "fp32", {}),
        ("fsdp", "bf16", {}),
        ("lora", "bf16", {"adapters": "lora of rank 16 on q_proj, v_proj"}),
        (
            "qlora",
            "bf16",
            {"adapters": "lora of rank 16 on q_proj, v_proj", "quantised": "nf4-double, the rest in fp32"},
        ),
        (
            "qlora-plain",
            "bf16",
            {"adapters": "lora of rank 16 on q_proj, v_proj", "quantised": "nf4-double, the rest in bf16"},
        ),
    ],
)
def test_a_recipe_says_how_the_step_runs(recipe: str, dtype: str, more: dict[str, str]) -> None:
    run = result("estimate", *SMALL, "--recipe", recipe)["run"]
    assert run["dtype"] == dtype
    assert {key: run[key] for key in ("precision", "adapters", "quantised") if key in run} == more


def test_contradictions_name_both_sides() -> None:
    said = refused("estimate", *SMALL, "--recipe", "fp32", "--dtype", "bf16")
    assert said == "--dtype: bf16 activations contradict recipe fp32, which computes in fp32"
    assert "recipe autocast runs under autocast" in refused(
        "estimate", *SMALL, "--recipe", "autocast", "--precision", "pure"
    )
    assert "recipe fsdp" in refused("estimate", *SMALL, "--recipe", "fsdp", "--precision", "autocast")


def test_autocast_counts_its_copies_of_the_weights_once() -> None:
    """The ledger's copies are the states' line: the matrices of the layers and the tied head, in bf16."""
    rows = result("ledger", *SMALL, "--precision", "autocast")["ledger"]
    found = result("estimate", *SMALL, "--recipe", "autocast")["budget"]
    matrices = 4 * (2 * 2048 * 2048 + 2 * 512 * 2048 + 3 * 2048 * 8192) + 128256 * 2048
    shapes = {(2048, 2048), (512, 2048), (8192, 2048), (2048, 8192), (128256, 2048)}
    flipped = {shape[::-1] for shape in shapes}
    copies = [r for r in rows if tuple(r["shape"]) in shapes | flipped and r["dtype"] == "bfloat16"]
    assert sum(row["bytes"] * row["count"] for row in copies) == 2 * matrices
    assert not [line for line in found["lines"] if line["name"] == "autocast copies"]
    assert found["phases"][0]["activations_bytes"] > 2 * matrices


def test_stages_have_a_table() -> None:
    arguments = ("--preset", "llama-3.2-1b", "--recipe", "megatron-bf16", "--pp", "4", "--seq", "2k")
    found = result("estimate", *arguments)["budget"]
    assert [(s["first_layer"], s["last_layer"], s["in_flight"]) for s in found["stages"]] == [
        (0, 3, 4), (4, 7, 3), (8, 11, 2), (12, 15, 1),
    ]  # fmt: skip
    assert found["total_bytes"] == max(stage["total_bytes"] for stage in found["stages"])
    interleaved = result("estimate", *arguments, "--vpp", "2")["budget"]["stages"]
    assert [stage["in_flight"] for stage in interleaved] == [11, 9, 7, 5]
    text = actplan("estimate", *arguments).stdout
    table = [line.split() for line in text.splitlines()]
    at = next(i for i, words in enumerate(table) if words[:3] == ["pipeline", "stage,", "1f1b"])
    assert table[at][3:] == ["0", "1", "2", "3"]
    assert table[at + 1] == ["layers", *["0", "to", "3", "4", "to", "7", "8", "to", "11", "12", "to", "15"]]
    assert table[at + 2] == ["in", "flight", "4", "3", "2", "1"]
    totals = next(words for words in table[at:] if words[:1] == ["total"])
    assert totals[1:] == [f"{stage['total_bytes'] / 2**30:.2f}" for stage in found["stages"]]
    for stage in found["stages"]:
        peak = next(phase for phase in stage["phases"] if phase["phase"] == stage["peak_phase"])
        assert peak["total_bytes"] == stage["total_bytes"] == sum(peak[f"{name}_bytes"] for name in CATEGORIES)
    rows = actplan("estimate", *arguments[:4], "--pp", "16", "--seq", "2k").stdout.splitlines()
    at = next(i for i, line in enumerate(rows) if "pipeline stage, 1f1b" in line)
    assert [row.split()[:4] for row in rows[at + 1 : at + 17]] == [[str(i), str(i), "to", str(i)] for i in range(16)]


def test_a_stage_without_layers_has_no_numbers_of_layers() -> None:
    chosen = ("--preset", "llama-3.2-1b", "--seq", "128", "--set", "num_layers=2", "--recipe", "megatron-bf16")
    stages = result("estimate", *chosen, "--pp", "4", "--pp-split", "embedding,loss")["budget"]["stages"]
    ends = [(stage.get("first_layer"), stage.get("last_layer")) for stage in stages]
    assert ends == [(None, None), (0, 0), (1, 1), (None, None)]
    halves = result("estimate", *chosen, "--pp", "2", "--vpp", "2", "--pp-split", "embedding,loss")["budget"]["stages"]
    assert [stage["chunks"] for stage in halves] == [[[], [1, 1]], [[0, 0], []]]
    assert [(stage["first_layer"], stage["last_layer"]) for stage in halves] == [(1, 1), (0, 0)]


def test_a_schedule_without_bubbles() -> None:
    arguments = ("--preset", "llama-3.2-1b", "--recipe", "megatron-bf16", "--pp", "4", "--seq", "2k")
    found = result("estimate", *arguments, "--pp-schedule", "zb-h1")
    stages = found["budget"]["stages"]
    assert [stage.get("weights_owed", {}).get("microbatches", 0) for stage in stages] == [0, 1, 2, 3]
    assert found["budget"]["schedule"] == "zb-h1"
    assert "split-backward" in {note["code"] for note in found["notes"]}
    text = actplan("estimate", *arguments, "--pp-schedule", "zb-h1").stdout
    assert "pipeline stage, zb-h1" in text
    assert "weights owed" in text
    folded = result("estimate", *arguments, "--vpp", "2", "--pp-schedule", "zbv")["budget"]["stages"]
    assert [stage["chunks"] for stage in folded] == [[[2 * i, 2 * i + 1], [14 - 2 * i, 15 - 2 * i]] for i in range(4)]


def test_stages_of_uneven_length() -> None:
    arguments = ("--preset", "llama-3.2-1b", "--recipe", "megatron-bf16", "--seq", "1k", "--pp", "4")

    def spans(split: str, *more: str) -> list[tuple[int, int]]:
        found = result("estimate", *arguments, *more, "--pp-split", split)["budget"]["stages"]
        return [(stage.get("first_layer", 0), stage.get("last_layer", -1)) for stage in found]

    assert spans("first=3,last=3") == [(0, 2), (3, 7), (8, 12), (13, 15)]
    assert spans("last=1") == [(0, 4), (5, 9), (10, 14), (15, 15)]
    assert spans("embedding,loss", "--set", "num_layers=14") == [(0, 2), (3, 6), (7, 10), (11, 13)]
    assert spans("embedding", "--set", "num_layers=3") == [(0, -1), (0, 0), (1, 1), (2, 2)]
    assert "first=N, last=N, embedding, loss" in refused("estimate", *arguments, "--pp-split", "middle=2")
    assert "cannot be divided into 3 stages" in refused("estimate", *arguments, "--pp-split", "first=3")
    assert "exclude each other" in refused("estimate", *arguments, "--pp-split", "first=4,loss")
    assert "one pipeline stage" in refused("estimate", *SMALL, "--pp-split", "first=1")


def test_routing_at_best_and_at_worst() -> None:
    arguments = ("--preset", "qwen3-30b-a3b", "--set", "num_layers=4", "--seq", "2k", "--ep", "4", "--dp", "4")
    found = result("estimate", *arguments, "--recipe", "bf16")["budget"]
    routing = found["routing"]
    assert routing["balanced_total_bytes"] == found["total_bytes"] < routing["worst_total_bytes"]
    worst = result("estimate", *arguments, "--recipe", "bf16", "--expert-imbalance", "4")["budget"]
    assert worst["total_bytes"] == routing["worst_total_bytes"]
    assert worst["routing"] == routing
    assert "Routing balanced" in actplan("estimate", *arguments, "--recipe", "bf16").stdout
    assert "routing" not in result("estimate", *SMALL, "--recipe", "bf16")["budget"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tp", "3"), "--tp: attention heads (32) cannot be divided by 3"),
        (("--pp", "3"), "--pp: 4 layers cannot be divided into 3 pipeline stages"),
        (("--pp-schedule", "zb-h1"), "--pp-schedule: zb-h1 orders the micro-batches of pipeline stages"),
        (("--pp", "2", "--pp-schedule", "zbv"), "--pp-schedule: zbv has 2 chunks a stage, and --vpp is 1"),
        (("--pp", "2", "--pp-schedule", ""), "--pp-schedule: unknown schedule ''"),
        (("--pp", "2", "--pp-split", ""), "--pp-split: unknown part ''"),
        (("--gpu", ""), "--gpu: unknown GPU ''"),
        (("--pp", "2", "--pp-schedule", "zb-h9"), "--pp-schedule: unknown schedule 'zb-h9'; did you mean 'zb-h"),
        (
            ("--pp", "2", "--vpp", "2", "--pp-schedule", "dualpipev", "--microbatches", "3"),
            "--microbatches: dualpipev on 2 stages needs 4 micro-batches, not 3",
        ),
        (("--pp", "2", "--vpp", "3"), "--vpp: the 2 layers of pipeline stage 0 cannot be divided into 3 chunks"),
        (("--cp", "3"), "--cp: the sequence length (1,024) cannot be divided by 3"),
        (("--ep", "2"), "--ep: ep × etp = 2 × 1 does not divide dp × cp × tp = 1 × 1 × 1 = 1"),
        (("--sp",), "--sp: sequence parallelism divides by --tp"),
        (("--dp", "0"), "--dp: '0' is not positive"),
        (("--dp", "8", "--recipe", "fsdp", "--replicas", "3"), "3 HSDP replicas do not divide 8"),
    ],
)
def test_degrees_that_do_not_divide(arguments: tuple[str, ...], said: str) -> None:
    recipe = () if "--recipe" in arguments else ("--recipe", "bf16")
    assert said in refused("estimate", *SMALL, *recipe, *arguments)


def test_fsdp_as_it_is_asked_for() -> None:
    lines = {
        word: {
            line["name"]
            for line in result("estimate", *SMALL, "--recipe", "fsdp", "--dp", "8", "--reshard", word)["budget"][
                "lines"
            ]
        }
        for word in ("always", "default", "never")
    }
    assert "gathered last layer" in lines["default"] - lines["always"]
    assert "all-gather buffer" not in lines["never"]
    hybrid = result("estimate", *SMALL, "--recipe", "fsdp", "--dp", "8", "--replicas", "2")["budget"]["phases"][2]
    plain = result("estimate", *SMALL, "--recipe", "fsdp", "--dp", "8")["budget"]["phases"][2]
    assert hybrid["parameters_bytes"] == pytest.approx(2 * plain["parameters_bytes"], rel=0.01)


def test_gradients_that_are_zeroed_stay() -> None:
    given = ("estimate", *SMALL, "--recipe", "bf16")
    freed, kept = (result(*given, "--zero-grad", word)["budget"]["phases"] for word in ("none", "zeros"))
    assert freed == result(*given)["budget"]["phases"]
    whole = kept[2]["gradients_bytes"]
    assert [phase["gradients_bytes"] for phase in kept] == [whole] * 3
    assert kept[0]["total_bytes"] - freed[0]["total_bytes"] == whole
    first = [[phase["first_step_total_bytes"] for phase in phases[:2]] for phases in (freed, kept)]
    assert first[0] == first[1]


def test_wrong_ways_to_zero_gradients() -> None:
    given = ("estimate", *SMALL, "--recipe", "bf16", "--zero-grad")
    assert "did you mean 'zeros'" in refused(*given, "zero")
    assert "frees each gradient at once" in refused(*given, "zeros", "--optimizer-in-backward")


def test_who_takes_the_trainers_optimizer() -> None:
    """training_args.py: adamw_torch_fused, which needs no temporaries; torch.optim.AdamW alone takes foreach."""
    names = {"autocast": 0, "fp16": 0, "lora": 0, "bf16": 1, "fp32": 1, "fsdp": 1}
    for recipe, temporaries in names.items():
        lines = result("estimate", *SMALL, "--recipe", recipe)["budget"]["lines"]
        assert sum(line["name"] == "optimizer temporaries" for line in lines) == temporaries


def test_microbatches_accumulate_gradients() -> None:
    one, four = (
        result("estimate", *SMALL, "--recipe", "bf16", "--microbatches", n)["budget"]["phases"] for n in ("1", "4")
    )
    assert one[0]["gradients_bytes"] == 0
    assert four[0]["gradients_bytes"] == one[2]["gradients_bytes"]


def test_a_budget_loads_nothing_heavy() -> None:
    loaded = modules(
        "estimate", *SMALL, "--recipe", "fsdp", "--dp", "8", "--gpu", "h100-80gb", "--tokens", "1T", "--format", "json"
    )
    assert heavy(loaded) == set()
    assert heavy(modules("sweep", *SMALL, "--gpu", "h100-80gb", "--format", "json")) == set()
    plain = modules("estimate", "--format", "json")
    rooms = ("budget", "gpus", "verdict", "states")
    unwanted = {"actplan.training.recipes", "actplan.notes.budget", *(f"actplan.memory.{room}" for room in rooms)}
    assert not plain & unwanted


def test_training_with_rounding_in_the_way() -> None:
    """torchao's fake quantisation keeps a rounded copy and a mask of each weight."""
    found = result("estimate", *SMALL, "--recipe", "bf16", "--qat", "weights")
    assert found["run"]["fake_quantised"] == "weights"
    note = next(note["message"] for note in found["notes"] if note["code"] == "qat-copies")
    plain = result("estimate", *SMALL, "--recipe", "bf16")
    more = found["estimates"]["autograd"]["saved_bytes"] - plain["estimates"]["autograd"]["saved_bytes"]
    assert f"{more / GIB:.2f} GiB more" in note
    assert more > 4 * (2 * 2048 * 2048 + 2 * 512 * 2048 + 3 * 2048 * 8192)
    assert "did you mean 'weights'?" in refused("estimate", *SMALL, "--qat", "weight")


def test_the_devices_that_are_known() -> None:
    listed = result("gpus")["gpus"]
    assert len(listed) >= 25
    assert [gpu["name"] for gpu in listed] == sorted({gpu["name"] for gpu in listed})
    assert all(gpu["memory_bytes"] > 10 << 30 and gpu["memory_source"] and gpu["source"] for gpu in listed)
    assert result("gpus", "A100")["gpus"] == [gpu for gpu in listed if gpu["name"] == "a100-80gb"]
    assert "a100-80gb" in actplan("gpus").stdout
    assert actplan("gpus", "--format", "csv").stdout.count("\n") == len(listed) + 1
    said = refused("gpus", "h10")
    assert said == "--gpu: unknown GPU 'h10'; did you mean 'h100'?; allowed: a name that `actplan gpus` lists"
    assert refused("estimate", *SMALL, "--gpu", "h10") == said


# --- adapters in the type that a recipe gives them --------------------------------------------------------------------

ADAPTED = (*SMALL, "--lora-rank", "8", "--lora-targets", "all-linear")


@pytest.mark.parametrize(
    ("words", "lora", "base"),
    [
        ("lora", "fp32", "bf16"),
        ("lora --lora-dtype bf16", "bf16", "bf16"),
        ("lora --dtype fp16", "fp32", "fp16"),
        ("lora --dtype fp32", "fp32", "fp32"),
        ("lora --precision autocast", "fp32", "bf16"),
        ("lora --precision autocast --dtype fp16", "fp32", "fp16"),
        ("lora --precision autocast --base-dtype fp32", "fp32", "fp32"),
        ("autocast", "fp32", "bf16"),
        ("autocast --dtype fp16", "fp32", "fp16"),
        ("fp16", "fp32", "fp16"),
        ("bf16", "bf16", "bf16"),
        ("fsdp", "bf16", "bf16"),
        ("fsdp --dtype fp16", "fp16", "fp16"),
        ("fsdp --base-dtype fp32", "bf16", "fp32"),
        ("zero-2", "bf16", "bf16"),
        ("zero-3 --dtype fp16", "fp16", "fp16"),
        ("megatron-bf16", "bf16", "bf16"),
        ("megatron-fp16", "fp16", "fp16"),
        ("qlora", "fp32", None),
        ("qlora --dtype fp16 --lora-dtype fp16", "fp16", None),
    ],
)
def test_a_recipe_gives_adapters_their_type(words: str, lora: str, base: str | None) -> None:
    run = result("estimate", *ADAPTED, "--recipe", *words.split())["run"]
    assert run["lora_dtype"] == lora
    assert run.get("base_dtype") == base


def test_what_a_framework_casts_keeps_no_wide_copies_of_inputs() -> None:
    def saved(*words: str) -> int:
        saved_bytes: int = result("estimate", *ADAPTED, *words)["estimates"]["autograd"]["saved_bytes"]
        return saved_bytes

    in_bf16 = saved("--recipe", "lora", "--lora-dtype", "bf16")
    for recipe in ("fsdp", "zero-0", "zero-3", "megatron-bf16", "bf16"):
        assert saved("--recipe", recipe) == in_bf16
    assert saved("--recipe", "zero-1", "--dtype", "fp16") == in_bf16
    assert in_bf16 < saved("--recipe", "lora", "--precision", "autocast") < saved("--recipe", "lora")
    assert saved("--recipe", "autocast") == saved("--recipe", "lora", "--precision", "autocast")


def test_autocast_leaves_a_base_in_16_bits() -> None:
    words = ("estimate", "--preset", "llama-3-8b", "--seq", "512", "--lora-rank", "16")
    held = {}
    for more in ("autocast", "lora --precision autocast", "autocast --base-dtype fp32"):
        lines = result(*words, "--recipe", *more.split())["budget"]["lines"]
        held[more] = next(line["bytes"] for line in lines if line["name"] == "frozen weights")
    assert held["autocast"] == held["lora --precision autocast"] == 2 * 8_030_261_248
    assert held["autocast --base-dtype fp32"] == 2 * held["autocast"]


def test_adapters_are_stored_as_each_framework_stores_them() -> None:
    """Values of an adapter on one rank: 4 bytes in FSDP's shards and under peft alone, 2 under DeepSpeed, which has
    an fp32 master copy beside them."""
    trained = 8 * sum((2 * (2048 + 2048), 2 * (2048 + 512), 3 * (2048 + 8192))) * 4
    for recipe, weights, master in (("lora", 4, 0), ("fsdp", 4, 0), ("zero-1", 2, 4), ("bf16", 2, 0)):
        lines = result("estimate", *ADAPTED, "--recipe", recipe)["budget"]["lines"]
        found = {line["name"]: line["bytes"] for line in lines}
        assert found["weights"] == weights * trained
        assert found.get("master weights", 0) == master * trained


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fsdp --lora-dtype fp32", "recipe fsdp runs adapters in bf16"),
        ("zero-2 --lora-dtype fp32", "deepspeed/runtime/engine.py"),
        ("lora --base-dtype fp32", "a base in fp32 computes in fp32"),
        ("qlora --base-dtype fp32", "the base is quantised"),
        ("lora --base-dtype fp16", "a base in fp16 beside products in bf16 is not planned"),
        ("lora --lora-dropout 1", "is no probability"),
        ("lora --lora-dropout x", "is no probability"),
        ("megatron-bf16 --dtype fp16", "contradict recipe megatron-bf16"),
        ("lora --dtype fp16 --precision autocast --lora-dtype fp16", "loss scaling refuses fp16 gradients"),
        ("fp16 --lora-save lm_head", "loss scaling refuses fp16 gradients"),
    ],
)
def test_types_of_adapters_that_cannot_be(words: str, said: str) -> None:
    assert said in refused("estimate", *ADAPTED, "--recipe", *words.split())


def test_a_frozen_base_needs_adapters() -> None:
    assert "--base-dtype: no adapters" in refused("estimate", *SMALL, "--base-dtype", "fp32")


def test_adapters_drop_their_inputs() -> None:
    """A mask of one byte a value on a GPU, and the dropped input in the place of the plain one; the first layer's
    input needs no gradient, so that its mask is not kept."""

    def saved(*words: str) -> int:
        more = ("--recipe", "lora", "--device", "cuda", "--lora-targets", "q_proj", *words)
        saved_bytes: int = result("estimate", *SMALL, *more)["estimates"]["autograd"]["saved_bytes"]
        return saved_bytes

    run = result("estimate", *ADAPTED, "--recipe", "lora", "--lora-dropout", "0.05")["run"]
    assert run["lora_dropout"] == 0.05
    assert saved("--lora-dropout", "0") == saved()
    values = 2048 * 1024 * 3
    assert saved("--lora-dropout", "0.1") - saved() == values
    assert saved("--lora-dropout", "0.1", "--lora-dtype", "bf16") - saved("--lora-dtype", "bf16") == values
