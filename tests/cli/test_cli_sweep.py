"""`actplan sweep`: the points, their order, and that each is what `estimate` says."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

from cli_harness import CLEAN, actplan, on_a_terminal, refused, result

SMALL = ("--preset", "llama-3.2-1b", "--set", "num_layers=4")


def test_points_in_order() -> None:
    rows = result("sweep", *SMALL, "--seq", "1k..4k", "--batch", "1,2", "--checkpoint", "none,layer")["rows"]
    places = [(row["sequence_length"], row["micro_batch_size"], row["checkpoint"]) for row in rows]
    assert places == [(t, b, c) for t in (1024, 2048, 4096) for b in (1, 2) for c in ("none", "layer")]


def test_a_row_is_what_estimate_says() -> None:
    data = result("sweep", *SMALL, "--seq", "1k,3000", "--checkpoint", "none,segments:0-1,2-3,sqrt")
    assert data["schema_version"] == 1
    assert len(data["rows"]) == 6
    row = data["rows"][-1]
    assert (row["sequence_length"], row["checkpoint"]) == (3000, "sqrt")
    one = result("estimate", *SMALL, "--seq", "3000", "--checkpoint", "sqrt")
    estimates = one["estimates"]
    autograd = estimates["autograd"]
    assert row["residual_bytes"] == estimates["residual"]["saved_bytes"]
    assert row["textbook_bytes"] == estimates["textbook"]["saved_bytes"]
    assert row["autograd_bytes"] == autograd["saved_bytes"]
    assert row["checkpointed_textbook_bytes"] == estimates["checkpointed"]["textbook"]["peak_bytes"]
    assert row["checkpointed_autograd_bytes"] == estimates["checkpointed"]["autograd"]["peak_bytes"]
    assert row["peak_bytes"] == max(autograd["peak_forward_bytes"], autograd["peak_backward_bytes"])


def test_words_and_fields_of_the_model_are_axes_too() -> None:
    rows = result("sweep", *SMALL, "--seq", "256", "--loss", "naive,fused", "--set", "num_layers=2..8")["rows"]
    assert [(row["num_layers"], row["loss"]) for row in rows] == [
        (n, loss) for n in (2, 4, 8) for loss in ("naive", "fused")
    ]
    one = result("estimate", *SMALL, "--seq", "256", "--set", "num_layers=4")
    row = next(row for row in rows if (row["num_layers"], row["loss"]) == (4, "naive"))
    assert row["autograd_bytes"] == one["estimates"]["autograd"]["saved_bytes"]


def test_formats_agree() -> None:
    arguments = ("sweep", *SMALL, "--seq", "1k..4k")
    rows = result(*arguments)["rows"]
    read = list(csv.DictReader(io.StringIO(actplan(*arguments, "--format", "csv").stdout)))
    assert [{key: str(value) for key, value in row.items()} for row in rows] == read
    assert json.loads(actplan(*arguments, "--get", "rows").stdout) == rows
    table = actplan(*arguments).stdout.splitlines()
    assert len([line for line in table if line.split()[:1] == ["4,096"]]) == 1


def test_a_single_point_is_a_sweep_of_one() -> None:
    assert len(result("sweep", *SMALL)["rows"]) == 1


def test_an_error_at_any_point_prints_nothing() -> None:
    assert "layers 0 to 3" in refused("sweep", *SMALL, "--checkpoint", "none,segments:0-4")


def test_a_short_sweep_shows_no_bar() -> None:
    assert on_a_terminal("sweep", *SMALL, "--seq", "1k,2k", stream=2) == ""


def test_a_long_sweep_shows_a_bar_on_a_terminal_and_takes_it_away(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import actplan.cli.progress as p\np.PATIENCE = 0.0\n")
    impatient = {"PYTHONPATH": os.pathsep.join([str(tmp_path), CLEAN.get("PYTHONPATH", "")])}
    arguments = ("sweep", *SMALL, "--seq", "256..320:+8")
    seen = on_a_terminal(*arguments, stream=2, **impatient)
    assert "/9" in seen
    assert seen.rstrip("\n").endswith("\x1b[2K")
    done = actplan(*arguments, env=impatient)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == actplan(*arguments).stdout


# --- recipes, devices, meshes; parts of a sweep -------------------------------------------------------------------

LISTS = ("--recipe", "fsdp,zero-3", "--gpu", "h100-80gb,t4-16gb", "--tp", "1,2,3")
BUDGET = ("sweep", *SMALL, "--seq", "1k", "--dp", "8", *LISTS)


def test_a_sweep_over_meshes_recipes_and_devices() -> None:
    rows = result(*BUDGET)["rows"]
    assert [(row["tp"], row["recipe"], row["gpu"]) for row in rows] == [
        (tp, recipe, gpu) for tp in (1, 2, 3) for recipe in ("fsdp", "zero-3") for gpu in ("h100-80gb", "t4-16gb")
    ]
    row = next(row for row in rows if (row["tp"], row["recipe"], row["gpu"]) == (2, "zero-3", "t4-16gb"))
    arguments = ("--seq", "1k", "--recipe", "zero-3", "--dp", "8", "--gpu", "t4-16gb", "--tp", "2")
    done = actplan("estimate", *SMALL, *arguments, "--format", "json")
    one = json.loads(done.stdout)
    assert row["total_bytes"] == one["budget"]["total_bytes"]
    ends = {end: row[f"device_{end}_bytes"] for end in ("low", "high", "typical")}
    assert ends == one["budget"]["device_bytes"]
    assert row["verdict"] == one["fit"]["verdict"]
    assert row["fits"] == one["fit"]["fits"]
    assert row["peak_phase"] == one["budget"]["peak_phase"]


def test_a_point_that_does_not_divide_has_a_reason_and_no_sizes() -> None:
    rows = [row for row in result(*BUDGET)["rows"] if row["tp"] == 3]
    assert len(rows) == 4
    for row in rows:
        assert row["reason"].startswith("--tp: ")
        assert "cannot be divided by 3" in row["reason"]
        assert "total_bytes" not in row
        assert row["recipe"] in ("fsdp", "zero-3")
    table = actplan(*BUDGET).stdout
    assert "reason" in table
    assert "None" not in table


def test_a_sweep_without_any_answer_is_an_error() -> None:
    assert "cannot be divided by 3" in refused("sweep", *SMALL, "--seq", "1k", "--tp", "3", "--batch", "1,2")


def test_pipeline_schedules_are_an_axis() -> None:
    arguments = ("--preset", "llama-3.2-1b", "--seq", "1k", "--pp", "4", "--recipe", "megatron-bf16")
    rows = result("sweep", *arguments, "--vpp", "1,2", "--pp-schedule", "1f1b,zb-h1,zbv")["rows"]
    assert [(row["vpp"], row["pp_schedule"]) for row in rows] == [
        (vpp, name) for vpp in (1, 2) for name in ("1f1b", "zb-h1", "zbv")
    ]
    reason = "--pp-schedule: "
    assert [row.get("reason", "")[: len(reason)] for row in rows] == ["", "", reason, reason, reason, ""]
    assert all(("total_bytes" in row) != ("reason" in row) for row in rows)


def test_a_wrong_word_in_a_list_is_an_error() -> None:
    assert "did you mean 'fsdp'?" in refused("sweep", *SMALL, "--recipe", "fsdp,fsdpp")
    assert "did you mean 't4-16gb'?" in refused("sweep", *SMALL, "--gpu", "h100-80gb,t4-16g")
    assert "unexpected argument" in refused("sweep", *SMALL, "part.json")


def test_types_of_a_recipe_are_the_rows() -> None:
    rows = result("sweep", *SMALL, "--seq", "1k", "--recipe", "fp32,bf16,autocast")["rows"]
    assert [row["dtype"] for row in rows] == ["fp32", "bf16", "bf16"]
    assert rows[2]["autograd_bytes"] > rows[0]["autograd_bytes"] > rows[1]["autograd_bytes"]  # autocast's copies


def parts(folder: Path, kind: str, count: int) -> list[str]:
    """The sweep in parts, a file each."""
    files = []
    for i in range(1, count + 1):
        path = folder / f"part-{i}.{kind}"
        assert actplan(*BUDGET, "--shard", f"{i}/{count}", "--format", kind, "-o", str(path)).returncode == 0
        files.append(str(path))
    return files


def test_parts_put_together_are_the_whole(tmp_path: Path) -> None:
    for kind, count in (("json", 5), ("csv", 4)):
        files = parts(tmp_path, kind, count)
        for out in ("json", "csv"):
            done = actplan("sweep", "--merge", *reversed(files), "--format", out)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout == actplan(*BUDGET, "--format", out).stdout


def test_more_parts_than_points(tmp_path: Path) -> None:
    files = parts(tmp_path, "csv", 13)
    assert actplan("sweep", "--merge", *files, "--format", "csv").stdout == actplan(*BUDGET, "--format", "csv").stdout


def test_parts_are_disjoint_and_the_same_each_time(tmp_path: Path) -> None:
    files = parts(tmp_path, "json", 3)
    seen = [row["point"] for path in files for row in json.loads(Path(path).read_text())["rows"]]
    assert sorted(seen) == list(range(12))
    first = json.loads(Path(files[0]).read_text())["rows"]
    assert [row["point"] for row in first] == [0, 3, 6, 9]


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    files = parts(tmp_path, "json", 3)
    assert "1 of 12 points are missing (1" not in refused("sweep", "--merge", *files[:2])
    assert "4 of 12 points are missing (2, 5, 8, 11)" in refused("sweep", "--merge", *files[:2])
    assert "which another part has already" in refused("sweep", "--merge", *files, files[0])
    other = tmp_path / "other.json"
    actplan("sweep", *SMALL, "--seq", "1k..8k", "--shard", "1/2", "-o", str(other))
    assert "is a part of another sweep" in refused("sweep", "--merge", files[0], str(other))
    whole = tmp_path / "whole.json"
    actplan(*BUDGET, "-o", str(whole))
    assert "is no part of a sweep" in refused("sweep", "--merge", str(whole))
    assert "nowhere.json: no such file" in refused("sweep", "--merge", str(tmp_path / "nowhere.json"))
    assert "no parts" in refused("sweep", "--merge")


def test_which_part() -> None:
    wrong = {"0/4": "no part 0 of 4", "5/4": "no part 5 of 4", "a/b": "is no part", "3": "is no part"}
    for text, said in wrong.items():
        assert said in refused("sweep", *SMALL, "--shard", text)
    assert "--array=1-8" in refused("sweep", *SMALL, "--shard", "0/8")
    assert "one of them" in refused("sweep", "--merge", "--shard", "1/2", "x")


def test_uneven_routing_is_an_axis() -> None:
    """The busiest rank holds more with every step; what no rank can get is a reason."""
    moe = ("sweep", "--preset", "mixtral-8x7b", "--set", "num_layers=2", "--seq", "512", "--ep", "4", "--dp", "4")
    rows = result(*moe, "--expert-imbalance", "1,2.5,4,5")["rows"]
    assert [row["expert_imbalance"] for row in rows] == [1.0, 2.5, 4.0, 5.0]
    sizes = [row["autograd_bytes"] for row in rows[:3]]
    assert sizes == sorted(set(sizes))
    assert "--expert-imbalance" in rows[3]["reason"]
    for wrong in ("0.5", "nan", "-1", "x", ""):
        assert actplan(*moe, "--expert-imbalance", wrong).returncode == 2
    dense = actplan("estimate", *SMALL, "--expert-imbalance", "2")
    assert (dense.returncode, dense.stdout) == (2, "")
    assert "has no experts" in dense.stderr
