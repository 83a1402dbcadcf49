"""The screens that a person reads: the answer first, the same at every width, nothing that does not help to decide."""

from __future__ import annotations

import re

import pytest
from cli_harness import actplan, on_a_terminal, refused, result

BUDGET = ("estimate", "--preset", "llama-3-8b", "--recipe", "fsdp", "--dp", "8", "--gpu", "h100-80gb")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def screen(*arguments: str, width: int) -> list[str]:
    """The lines that a terminal so wide shows, without colour."""
    text = on_a_terminal(*arguments, columns=width)
    return ESCAPES.sub("", text).replace("\r", "").splitlines()


def test_the_first_24_lines_say_whether_it_fits_by_how_much_and_what_helps() -> None:
    lines = screen(*BUDGET, width=80)[:24]
    assert lines[4].startswith("  TIGHT  74.67 GiB allocated of 79.65")
    text = " ".join(" ".join(lines).split())
    assert "typically takes 90.50" in text
    assert "expandable_segments:True" in text
    assert "dp 8" in text
    assert "activations" in text
    at = next(i for i, line in enumerate(lines) if line.startswith("  Makes it fit, cheapest first"))
    assert "fits" in lines[at + 1]
    assert "0.0 %" in lines[at + 1]


@pytest.mark.parametrize(("gpu", "tone", "colour"), [("h200-141gb", "FITS", 32), ("h100-80gb", "TIGHT", 33),
                                                     ("a100-40gb", "NO", 31)])  # fmt: skip
def test_the_verdict_has_a_colour(gpu: str, tone: str, colour: int) -> None:
    text = on_a_terminal(*BUDGET[:-1], gpu, columns=120, code=int(tone == "NO"))
    line = next(line for line in text.splitlines() if tone in line)
    assert f"{colour}m" in line


@pytest.mark.parametrize("arguments", [("estimate",), BUDGET, ("ledger", "--preset", "llama-3-8b")])
def test_eighty_columns_hold_what_the_answer_is(arguments: tuple[str, ...]) -> None:
    narrow, wide = screen(*arguments, width=80), screen(*arguments, width=120)
    assert max(map(len, narrow)) <= 80
    assert max(map(len, wide)) <= 120 or arguments[0] == "ledger"
    if arguments[0] == "estimate":
        for row in result(*arguments)["segmentations"]:
            peak = f"{row['autograd']['peak_bytes'] / 2**30:,.2f}"
            for lines in (narrow, wide):
                assert any(row["policy"] in line and peak in line for line in lines), row["policy"]


def test_a_ledger_never_drops_the_reason() -> None:
    rows = result("ledger", "--preset", "llama-3-8b")["ledger"]
    narrow = screen("ledger", "--preset", "llama-3-8b", width=80)
    for reason in {row["reason"] for row in rows}:
        assert any(reason in line for line in narrow), reason
    lines = actplan("ledger", "--preset", "llama-3-8b").stdout.splitlines()
    sizes = [float(line.split()[0].replace(",", "")) for line in lines[6:-1] if "<" not in line.split()[0]]
    assert sizes == sorted(sizes, reverse=True)
    assert lines[-1].split() == ["53.20", "total"]


def test_policies_with_one_outcome_are_one_row() -> None:
    lines = actplan("estimate", "--preset", "llama-3-8b").stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  checkpointing "))
    rows = lines[at + 1 : lines.index("", at)]
    assert [row.split("  ")[1].strip() for row in rows] == [
        "none", "selective:attention,matmul", "layer, block, every:1", "one-in:2, first:16, heaviest:16", "sqrt",
        "every:7",
    ]  # fmt: skip


def test_the_three_estimates_and_the_factor_stay_on_the_first_screen() -> None:
    lines = screen("estimate", width=80)[:24]
    for size in ("5.00", "96.00", "172.12", "187.27", "19.2", "159.15", "8.39"):
        assert any(size in line.split() for line in lines), size


def test_at_most_three_notes_are_shown_unasked() -> None:
    few, every = actplan(*BUDGET).stdout, actplan(*BUDGET, "--notes").stdout
    messages = [note["message"] for note in result(*BUDGET)["notes"]]
    assert sum(message in few for message in messages) <= 3
    assert all(message in every for message in messages)
    assert "--notes (" in few
    assert "--notes (" not in every


def test_details_are_asked_for() -> None:
    plain, full = actplan("estimate").stdout, actplan("estimate", "--details").stdout
    assert "boundary" not in plain
    assert "boundary" in full
    assert "A layer, by tensor" in full
    for name in ("--details", "--notes"):
        assert refused("estimate", name, "--format", "json").startswith(f"{name}: ")
        assert refused("estimate", name, "--get", "run").startswith(f"{name}: ")


def test_a_sweep_shows_what_varies_then_the_verdict() -> None:
    axes = ("--seq", "4k,8k", "--recipe", "fsdp,zero-3", "--dp", "8", "--gpu", "h100-80gb")
    lines = actplan("sweep", "--preset", "llama-3.2-1b", *axes).stdout.splitlines()
    heads = next(line for line in lines if "verdict" in line).split("  ")
    assert [head.strip() for head in heads if head.strip()][:4] == ["sequence", "recipe", "verdict", "device typical"]
    assert "batch 1" in lines[1]


def test_quiet_prints_nothing_and_answers_by_its_exit_code() -> None:
    assert (actplan(*BUDGET, "--quiet").returncode, actplan(*BUDGET, "--quiet").stdout) == (0, "")
    done = actplan(*BUDGET, "--strict", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert "--quiet" in refused(*BUDGET, "-q", "--get", "fit.fits")


def test_colour_can_be_forced_and_lines_keep_their_width() -> None:
    forced = actplan(*BUDGET, env={"FORCE_COLOR": "1", "TERM": "xterm-256color"}).stdout
    assert "\x1b[" in forced
    assert ESCAPES.sub("", forced) == actplan(*BUDGET).stdout


def test_every_run_says_its_mesh_its_recipe_and_who_answered() -> None:
    for arguments in (("estimate",), BUDGET, ("ledger", "--layer", "0"), ("plan", "--limit", "60GiB")):
        found = result(*arguments)
        assert found["actplan_version"]
        assert found["run"]["mesh"]["tp"] == 1
        assert found["run"]["recipe"] == ("fsdp" if arguments is BUDGET else "bf16")
