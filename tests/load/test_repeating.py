"""The repeating block of a row of layers: one for a preset, a specification, a ledger and a measured chain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actplan.basics.repeating import in_words, repeating
from actplan.cli.main import run
from actplan.model.reading import load_model
from actplan.profile.ledger_file import kind_of

REFERENCE = Path(__file__).parent.parent / "reference"


@pytest.mark.parametrize(
    ("kinds", "found", "words"),
    [
        ("aaaa", (0, 1), "4 x a"),
        ("aaabaaab", (0, 4), "2 x [3 x a, b]"),
        ("aaabaaaba", (0, 4), "2 x [3 x a, b], a"),
        ("aaabaaabaa", (0, 4), "2 x [3 x a, b], 2 x a"),
        ("bbaaaa", (2, 1), "2 x b, 4 x a"),
        ("cababa", (1, 2), "c, 2 x [a, b], a"),
        ("abc", (0, 3), "a, b, c"),
        ("aab", (0, 3), "2 x a, b"),
        ("aaab", (0, 4), "3 x a, b"),
        ("a", (0, 1), "a"),
        ("", (0, 1), ""),
    ],
)
def test_where_it_begins_and_how_long_it_is(kinds: str, found: tuple[int, int], words: str) -> None:
    assert repeating(kinds) == found
    assert in_words(kinds, repeating(kinds)) == words


@given(st.lists(st.sampled_from("ab"), max_size=24))
def test_it_is_the_first_and_shortest_of_all(kinds: list[str]) -> None:
    n = len(kinds)
    every = [
        (lead, size)
        for lead in range(n // 2 + 1)
        for size in range(1, (n - lead) // 2 + 1)
        if all(kinds[i] == kinds[i - size] for i in range(lead + size, n))
    ]
    assert repeating(kinds) == min(every, default=(0, max(n, 1)))


def test_layers_beyond_a_models_own_continue_its_block() -> None:
    deeper = load_model("deepseek-v3", preset=True, overrides=["num_layers=64"])
    assert deeper.pattern() == "3 x latent_attention_dense, 61 x latent_attention"
    gemma = load_model("gemma-3-27b", preset=True, overrides=["num_layers=72"])
    assert gemma.pattern() == "12 x [5 x sliding_attention, full_attention]"


@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        ("GPT2Block (transformer.h.0)", "GPT2Block"),
        ("GPT2Block (7)", "GPT2Block"),
        ("Layer-2 (model.layers.5)", "Layer-2"),
        ("moe (big)", "moe (big)"),
        ("full_attention", "full_attention"),
    ],
)
def test_a_layer_that_saves_otherwise_is_of_its_kind(stage: str, kind: str) -> None:
    assert kind_of(stage) == kind


def _printed(capfd: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run([*arguments, "--format", "json"]) == 0
    return json.loads(capfd.readouterr().out)


def _segments(capfd: pytest.CaptureFixture[str], *model: str) -> int:
    rows = _printed(capfd, "estimate", *model, "--seq", "1024", "--checkpoint", "block")["segmentations"]
    (row,) = (row for row in rows if row["policy"] == "block")
    return int(row["num_segments"])


def _chain(path: Path, kinds: list[str]) -> Path:
    """Write a measured chain of layers of these kinds. Stored, a layer keeps 1000 bytes of its own."""
    n = len(kinds)
    chain = {"x": [1] * (n + 1), "s": [1000] * n, "tf": [0] * n, "tb": [0] * n, "f": [1] * n, "kinds": kinds}
    path.write_text(json.dumps(chain), encoding="utf-8")
    return path


MODELS = [
    ("gemma-3-27b", "gemma-3-27b", "ledger_gemma_3_27b.yaml", 11, 6),
    ("deepseek-v3", "deepseek-v3", "ledger_deepseek_v3.yaml", 61, 1),
    ("qwen-27b", "qwen3.8-27b", "", 16, 4),
]


@pytest.mark.parametrize(("preset", "config", "ledger", "segments", "longest"), MODELS)
def test_block_means_the_same_of_every_source(
    preset: str,
    config: str,
    ledger: str,
    segments: int,
    longest: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert _segments(capfd, "--preset", preset) == segments
    assert _segments(capfd, "--model", str(REFERENCE / "configs" / f"{config}.json")) == segments
    if ledger:
        assert _segments(capfd, "--ledger", str(REFERENCE / ledger)) == segments
    kinds = [layer.kind for layer in load_model(preset, preset=True).layers]
    chain = _chain(tmp_path / "chain.json", kinds)
    found = _printed(capfd, "plan", "--chain", str(chain), "--limit", "1GiB")["plan"]["alternatives"]
    (row,) = (row for row in found if row["policy"] == "block")
    # Highest while one segment of `longest` layers is stored again: its 1000 bytes a layer, the x inside it, and one x
    # for each segment and for what leaves the chain or runs backward, at most.
    inside = longest * 1000 + longest - 1
    assert 0 < row["peak_bytes"] - inside <= segments + 2


def test_a_specification_in_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["presets", "show", "gemma-3-27b"]) == 0
    spec = tmp_path / "gemma.yaml"
    spec.write_text(capfd.readouterr().out, encoding="utf-8")
    assert _segments(capfd, "--model", str(spec)) == 11
