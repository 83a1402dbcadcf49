"""`actplan sweep`: the points, their order, and that each is what `estimate` says."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

from cli_harness import CLEAN, actplan, refused, result
from test_cli_output import on_a_terminal

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
    rows = result("sweep", *SMALL, "--seq", "256", "--loss", "naive,fused", "--set", "num_layers=2..8")[
        "rows"
    ]
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
