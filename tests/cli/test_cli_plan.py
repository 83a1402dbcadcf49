"""`actplan plan`, as a user runs it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cli_harness import actplan, refused, result

CHAINS = Path(__file__).parent.parent / "reference" / "chains.json"
SMALL = ("--set", "num_layers=8", "--seq", "2048")


def test_a_plan_in_json() -> None:
    said = result("plan", "--preset", "qwen-27b", "--seq", "8192", "--limit", "40GiB")
    plan = said["plan"]
    assert plan["feasible"] is True
    assert plan["peak_bytes"] <= plan["limit_bytes"] == 40 << 30
    assert {"policy", "units", "recompute_cost", "recompute_flops_fraction", "optimality", "alternatives"} <= set(plan)
    assert {unit["kind"] for unit in plan["units"]} <= {"stored", "checkpointed", "selective"}
    layer = next(row for row in plan["alternatives"] if row["policy"] == "layer")
    assert layer["fits"] is True
    assert plan["recompute_flops_fraction"] < layer["recompute_flops_fraction"]
    assert plan["slowdown"]["low"] == pytest.approx(plan["recompute_flops_fraction"])
    assert plan["slowdown"]["high"] > plan["slowdown"]["low"]
    assert {note["code"] for note in said["notes"]} >= {"per-op", "best-uniform", "slow-down"}


@pytest.mark.parametrize("more", [(), ("--no-per-op",), ("--only", "hf"), ("--loss", "fused", "--only", "torchtitan")])
def test_estimate_agrees_with_the_plan_to_the_byte(more: tuple[str, ...]) -> None:
    loss = more[:2] if "--loss" in more else ()
    policy = actplan("plan", "--limit", "60GiB", *more, "--get", "plan.policy").stdout.strip()
    planned = actplan("plan", "--limit", "60GiB", *more, "--get", "plan.peak_bytes").stdout.strip()
    estimated = result("estimate", "--checkpoint", policy, *loss)
    assert estimated["peak"]["bytes"] == int(planned)
    assert estimated["run"]["checkpoint"] == policy


def test_nothing_fits() -> None:
    done = actplan("plan", "--limit", "20GiB", "--format", "json")
    assert (done.returncode, done.stderr) == (1, "")
    plan = json.loads(done.stdout)["plan"]
    assert plan["feasible"] is False
    assert plan["lowest_peak_bytes"] > 20 << 30
    assert plan["dominated_by"] == "the backward of the head and loss"
    assert not {"policy", "units", "peak_bytes"} & set(plan)
    fused = next(row for row in plan["remedies"] if row["flags"] == "--loss fused")
    assert fused["fits"] is True
    assert actplan("plan", "--limit", "20GiB", "--loss", "fused", "--get", "plan.feasible").stdout == "true\n"
    half = next(row for row in plan["remedies"] if row["flags"] == "--seq 4096")
    lowest = result("plan", "--frontier", "--seq", "4096", "--no-per-op")["frontier"][0][0]
    assert half["lowest_peak_bytes"] == lowest


def test_the_table() -> None:
    done = actplan("plan", "--limit", "40GiB", "--no-per-op")
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("Within 40.00 GiB", "proven optimal", "policy ", "every layer", "the plan saves", "sqrt"):
        assert words in done.stdout
    assert "No schedule fits 20.00 GiB" in actplan("plan", "--limit", "20GiB").stdout


def test_a_named_policy_is_named() -> None:
    layer = result("estimate", "--checkpoint", "layer")["peak"]["bytes"]
    assert actplan("plan", "--limit", f"{layer}B", "--only", "hf", "--get", "plan.policy").stdout == "layer\n"
    assert actplan("plan", "--limit", "200GiB", "--get", "plan.policy").stdout == "none\n"


def test_the_frontier() -> None:
    said = result("plan", "--frontier", *SMALL)
    peaks, costs = zip(*said["frontier"], strict=True)
    assert list(peaks) == sorted(set(peaks))
    assert list(costs) == sorted(set(costs), reverse=True)
    assert costs[-1] == 0
    assert {row["policy"] for row in said["alternatives"]} >= {"none", "layer"}
    assert "Peak against recomputation" in actplan("plan", "--frontier", *SMALL).stdout


def test_pictures(tmp_path: Path) -> None:
    svg, page = tmp_path / "f.svg", tmp_path / "f.html"
    assert actplan("plan", "--frontier", *SMALL, "--limit", "20GiB", "-o", str(svg)).returncode == 0
    root = ET.fromstring(svg.read_text(encoding="utf-8"))
    assert root.tag.endswith("svg")
    titles = [e.text or "" for e in root.iter() if e.tag.endswith("title")]
    assert any(title.startswith("plan: ") for title in titles)
    assert any("limit 20.00 GiB" in title for title in titles)
    assert actplan("plan", "--frontier", *SMALL, "-o", str(page)).returncode == 0
    assert page.read_text(encoding="utf-8").count("<svg") == 1
    done = actplan("plan", "--frontier", *SMALL, "-o", str(tmp_path / "f.png"))
    if done.returncode:
        assert "cairosvg" in done.stderr
        assert ".svg or .html" in done.stderr
    else:
        assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("axis", ["seq", "batch", "layers"])
def test_the_largest(axis: str) -> None:
    said = result("plan", "--max", axis, "--limit", "40GiB", "--only", "hf", "--loss", "fused", *SMALL)["largest"]
    assert said["with_checkpointing"]["value"] >= said["without_checkpointing"]["value"]
    assert said["with_checkpointing"]["peak_bytes"] <= 40 << 30
    assert said["ratio"] == pytest.approx(said["with_checkpointing"]["value"] / said["without_checkpointing"]["value"])


def test_not_even_one_fits() -> None:
    done = actplan("plan", "--max", "batch", "--limit", "1GiB")
    assert done.returncode == 1
    assert "not even 1" in done.stdout


def test_a_measured_chain(tmp_path: Path) -> None:
    file = tmp_path / "chain.json"
    data = {"x": [4, 4, 4, 0], "s": [20, 20, 20], "tf": [1, 1, 1], "tb": [5, 5, 5], "f": [1.5, 2.5, 3.5]}
    file.write_text(json.dumps(data), encoding="utf-8")
    said = result("plan", "--chain", str(file), "--limit", "1000")
    assert said["plan"]["policy"] == "none"
    assert "model" not in said
    points = result("plan", "--chain", str(file), "--frontier")["frontier"]
    assert points[-1][1] == 0
    for peak, cost in points:
        plan = result("plan", "--chain", str(file), "--limit", str(peak))["plan"]
        assert (plan["peak_bytes"], plan["recompute_cost"]) == (peak, cost)
    below = actplan("plan", "--chain", str(file), "--limit", "10", "--format", "json")
    assert below.returncode == 1
    assert json.loads(below.stdout)["plan"]["lowest_peak_bytes"] > 10


def test_a_larger_limit_is_never_dearer_and_no_point_is_dominated(tmp_path: Path) -> None:
    """A chain whose cheapest schedule at 502 bytes has a checkpoint in a checkpoint, though one level fits as well."""
    sizes = {"x": [97, 62, 3, 95, 7], "s": [162, 252, 28, 165], "tf": [38, 3, 80, 73], "tb": [48, 36, 28, 27]}
    file = tmp_path / "chain.json"
    file.write_text(json.dumps({**sizes, "f": [2, 4, 7, 2]}), encoding="utf-8")
    plans = [result("plan", "--chain", str(file), "--limit", str(limit))["plan"] for limit in (468, 502, 530)]
    costs = [plan["recompute_cost"] for plan in plans]
    assert costs == sorted(costs, reverse=True) == [8, 8, 6]
    assert {plan["optimality"] for plan in plans} == {"proven"}
    points = result("plan", "--chain", str(file), "--frontier")["frontier"]
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
    assert len({cost for _, cost in points}) == len(points)


def test_reference_chains_by_name() -> None:
    best = json.loads(CHAINS.read_text(encoding="utf-8"))["chains"][0]
    said = result("plan", "--chain", str(CHAINS), "--chain-name", best["name"], "--limit", "30GiB")["plan"]
    assert said["optimality"] == "proven"
    assert said["peak_bytes"] <= 30 << 30
    assert "several chains" in refused("plan", "--chain", str(CHAINS), "--limit", "30GiB")


@pytest.mark.parametrize("kind", ["csv", "markdown"])
def test_other_formats(kind: str) -> None:
    done = actplan("plan", "--limit", "20GiB", *SMALL, "--format", kind)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("row,policy,name,peak_bytes" if kind == "csv" else "**qwen-27b")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan",), "--limit: no limit"),
        (("plan", "--limit", "forty"), "--limit: 'forty' is not a size"),
        (("plan", "--limit", "40GiB", "--only", "hff"), "--only: unknown framework 'hff'; did you mean 'hf'"),
        (("plan", "--limit", "40GiB", "--only", "hf", "--per-op"), "--per-op: hf cannot keep single outputs"),
        (("plan", "--limit", "40GiB", "--max", "depth"), "--max: unknown axis 'depth'"),
        (("plan", "--max", "seq"), "--limit: no limit"),
        (("plan", "--limit", "40GiB", "--max", "seq", "--frontier"), "--max"),
        (("plan", "--limit", "40GiB", "-o", "x.svg"), "add --frontier"),
        (("plan", "--frontier", "-o", "x.svg", "--format", "json"), "-o: a picture has no --format"),
        (("plan", "--chain", "no.json", "--limit", "1GiB"), "no.json: no such file"),
        (
            ("plan", "--chain", "x.json", "--preset", "qwen-27b", "--limit", "1GiB"),
            "--chain stands in place of a model",
        ),
        (("plan", "--chain-name", "x", "--limit", "1GiB"), "with --chain FILE"),
        (("estimate", "--checkpoint", "selective:attnetion"), "did you mean 'attention'"),
        (("estimate", "--checkpoint", "segments:/a-b@3"), "no list of outputs"),
    ],
)
def test_wrong_input(arguments: tuple[str, ...], words: str) -> None:
    assert words in refused(*arguments)


def test_policies_in_a_sweep() -> None:
    rows = result("sweep", "--checkpoint", "none,selective:attention,up_proj,layer", *SMALL)["rows"]
    assert [row["checkpoint"] for row in rows] == ["none", "selective:attention,up_proj", "layer"]


def test_start_up() -> None:
    from test_cli_start_up import heavy, modules

    assert heavy(modules("plan", "--limit", "40GiB", "--format", "json", *SMALL)) == set()
    assert heavy(modules("plan", "--frontier", "-o", "/dev/null", *SMALL)) == set()
