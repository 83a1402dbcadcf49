"""References: files, folders, hub ids."""

from __future__ import annotations

import json
import os
from pathlib import Path

from helpers import LLAMA, message

from actplan.model import reading as load


def named(folder: Path, name: str = "config.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(LLAMA))
    return folder


def test_a_folder(tmp_path: Path) -> None:
    model = load.load_model(str(named(tmp_path / "my-model")), preset=False)
    assert (model.name, model.source) == ("my-model", str(tmp_path / "my-model"))
    assert load.load_model(str(tmp_path / "my-model" / "config.json"), preset=False).name == "my-model"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no config.json" in message(load.load_model, str(empty), preset=False)
    (empty / "model.yaml").write_text("hidden_size: 1")
    assert "vocab_size: missing" in message(load.load_model, str(empty), preset=False)


def test_json_under_another_name(tmp_path: Path) -> None:
    assert load.load_model(str(named(tmp_path, "x.txt") / "x.txt"), preset=False).name == "x"


def test_no_such_file(tmp_path: Path) -> None:
    for ref in (str(tmp_path / "nothing.json"), "", " ", "a\0b", "a" * 5000, "x/y.json", "a/b/c"):
        message(load.load_model, ref, preset=False)
    assert "--preset qwen-27b" in message(load.load_model, "qwen-27b", preset=False)


def test_the_local_hub_cache(tmp_path: Path) -> None:
    root = tmp_path / "models--org--Model-1.5"
    named(root / "snapshots" / "old")
    named(root / "snapshots" / "new")
    os.utime(root / "snapshots" / "old" / "config.json", (1, 1))
    (root / "snapshots" / "new" / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": 7}))
    model = load.load_model("org/Model-1.5", preset=False, hub_cache=tmp_path)
    assert (model.name, model.source, model.vocab_size) == ("org/Model-1.5", "org/Model-1.5", 7)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("old\n")
    assert load.load_model("org/Model-1.5", preset=False, hub_cache=tmp_path).vocab_size == 100
    (root / "refs" / "main").write_text("../../../etc")
    assert load.load_model("org/Model-1.5", preset=False, hub_cache=tmp_path).vocab_size == 7
    assert "hf download org/other" in message(load.load_model, "org/other", preset=False, hub_cache=tmp_path)
    assert "no local Hugging Face cache" in message(load.load_model, "org/Model-1.5", preset=False)
