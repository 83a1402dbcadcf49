"""The README's and the documents' commands run, their links and paths lead somewhere, and every note is named."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from actplan.cli.app import COMMANDS
from actplan.cli.main import run

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
PLACEHOLDERS = ("config.json", "ledger.yaml", "mypackage", "snapshot.pickle", "part-", "chain.json", "$", "(", ".py")
SIZE = 9_000
"""Bytes of the README at most: it is to be read."""


def commands() -> list[str]:
    """Every example of every page, once, that names no file of the reader's."""
    blocks = [block for text in TEXTS.values() for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)]
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    own = [line for line in lines if line.startswith("actplan ") and not any(p in line for p in PLACEHOLDERS)]
    return list(dict.fromkeys(own))


def test_there_are_examples() -> None:
    assert len(commands()) >= 30


@pytest.mark.parametrize("line", commands())
def test_every_example_runs(
    line: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    for operator in (">", "||", "|"):
        words = words[: words.index(operator)] if operator in words else words
    assert run(words) in (0, 1)
    out, err = capfd.readouterr()
    assert "error" not in err
    assert out or "-o" in words


def test_the_specification_of_the_page_is_planned(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXTS["docs/models.md"], flags=re.DOTALL)
    file = tmp_path / "mine.yaml"
    file.write_text(block, encoding="utf-8")
    assert run(["estimate", "--model", str(file), "--get", "model.num_layers"]) == 0
    assert capfd.readouterr().out == "64\n"


def test_the_readme_is_short_and_gives_the_two_commands() -> None:
    """`.ci/run` takes the first line of the first block under each of these headings."""
    text = README.read_bytes().decode()
    assert len(text.encode()) <= SIZE
    for heading, command in (("Install and run", "actplan estimate"), ("Run the tests", "pytest")):
        section = text.partition(f"\n## {heading}\n")[2]
        assert command in section.partition("```sh\n")[2].splitlines()[0]


def test_every_command_is_in_the_readme() -> None:
    for command in COMMANDS:
        assert f"actplan {command}" in TEXTS["README.md"], command


def test_the_readme_leads_to_every_page() -> None:
    for page in TEXTS:
        assert page == "README.md" or f"]({page})" in TEXTS["README.md"], page


# --- what a page refers to ------------------------------------------------------------------------------------


def links() -> Iterator[tuple[str, str]]:
    """(page, target) of every link to a file of the repository."""
    for page, text in TEXTS.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" not in target:
                yield page, target


def paths() -> Iterator[tuple[str, str]]:
    """(page, path) of everything in backticks that is a path from the root of the repository."""
    rooms = r"(?:actplan|docs|presets|tests)"
    for page, text in TEXTS.items():
        for found in re.findall(rf"`({rooms}/[\w./-]*)`", text):
            yield page, found


@pytest.mark.parametrize(("page", "target"), [*dict.fromkeys(links())])
def test_a_link_leads_to_a_file(page: str, target: str) -> None:
    assert ((ROOT / page).parent / target.partition("#")[0]).exists()


@pytest.mark.parametrize(("page", "path"), [*dict.fromkeys(paths())])
def test_a_path_is_there(page: str, path: str) -> None:
    assert (ROOT / path).exists(), page


def test_every_file_of_reference_data_has_its_origin() -> None:
    folder = ROOT / "tests" / "reference"
    text = (folder / "README.md").read_text(encoding="utf-8")
    named = [f"`{path.name}{'/' if path.is_dir() else ''}`" for path in folder.iterdir() if path.name != "README.md"]
    assert [name for name in named if name not in text] == []


# --- notes and JSON -------------------------------------------------------------------------------------------

RUNS = [
    ["estimate"],
    ["estimate", "--checkpoint", "layer", "--linear-attention", "torch", "--attention", "eager"],
    ["estimate", "--preset", "gpt2"],
    ["estimate", "--preset", "gemma-3-27b"],
    ["estimate", "--preset", "llama-3-8b", "--dtype", "fp32"],
    ["estimate", "--preset", "mixtral-8x7b", "--recipe", "zero-2", "--dp", "8", "--gpu", "t4-16gb"],
    ["estimate", "--preset", "llama-3-8b", "--recipe", "qlora", "--checkpoint", "layer", "--gpu", "a100-80gb"],
    ["estimate", "--recipe", "megatron-bf16-dist", "--dp", "4", "--pp", "4", "--cp", "2", "--limit", "80GiB"],
    ["estimate", "--recipe", "autocast", "--gpu", "h100-80gb", "--offload", "activations"],
    ["plan", "--preset", "llama-3-8b", "--limit", "40GiB"],
]


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_every_note_and_every_key_is_listed(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--format", "json"]) in (0, 1)
    found = json.loads(capfd.readouterr().out)
    assert found["notes"]
    for note in found["notes"]:
        assert f"| `{note['code']}` |" in TEXTS["docs/notes.md"], note["code"]
    for key in found:
        assert re.search(rf"^{key}\b", TEXTS["docs/json.md"], flags=re.MULTILINE), key


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "--preset", "llama-3-8b", "--seq", "1k,2k", "--tp", "1,3", "--gpu", "h100-80gb"],
        ["gpus"],
        ["presets"],
    ],
    ids=" ".join,
)
def test_every_column_of_a_row_is_listed(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--format", "json"]) == 0
    found = json.loads(capfd.readouterr().out)
    (rows,) = (value for value in found.values() if isinstance(value, list))
    for key in {key for row in rows for key in row}:
        assert f"`{key}`" in TEXTS["docs/json.md"], key
