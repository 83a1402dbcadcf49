"""`actplan validate` from outside: what it prints, that its commands say the same, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from cli_harness import actplan, refused, result

from actplan.validation import read_records
from actplan.validation.files import SHARED

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "tests" / "reference"
MEASUREMENTS = (
    "saved_bytes",
    "layer_saved_bytes",
    "outside_layers",
    "measured",
    "measured_value",
    "measured_gib",
    "truth",
)
"""Fields of records that a mapping must not read."""


def some(folder: Path, name: str, step: int = 9) -> str:
    """Every so many records of a shared file, in a file of its own beside their configurations."""
    records = json.loads((REFERENCE / name).read_text(encoding="utf-8"))[::step]
    (folder / name).write_text(json.dumps(records), encoding="utf-8")
    for configs in ("configs", f"{Path(name).stem}_configs"):
        if (REFERENCE / configs).is_dir() and not (folder / configs).exists():
            (folder / configs).symlink_to(REFERENCE / configs)
    return str(folder / name)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("records")
    return {name: some(folder, name) for name in SHARED}


@pytest.fixture(scope="module")
def published(files: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = result("validate", "--records", files["measured.json"])
    return found


def test_an_entry_is_a_quantity_of_a_record(files: dict[str, str]) -> None:
    found = result("validate", "--records", files["executed.json"])
    assert set(found) == {"schema_version", "actplan_version", "records", "summary"}
    keys = {"id", "source", "group", "confidence", "expressed", "quantity", "measured_bytes", "tags"}
    for entry in found["records"]:
        assert set(entry) == keys | ({"command", "predicted_bytes", "error"} if entry["expressed"] else {"reason"})
    assert found["summary"]["records"] == found["summary"]["expressed"] == 12
    saved = [one for one in found["records"] if one["quantity"] == "saved_bytes"]
    assert {one["error"] for one in saved} == {0.0}


@pytest.mark.parametrize(
    ("file", "number", "key"),
    [
        ("autograd.json", 3, "estimates.autograd.saved_bytes"),
        ("executed.json", 4, "estimates.autograd.peak_backward_bytes"),
        ("measured.json", 0, "budget.total_bytes"),
    ],
)
def test_the_printed_command_gives_the_same_number(file: str, number: int, key: str, files: dict[str, str]) -> None:
    quantity = key.rpartition(".")[2].replace("total_bytes", "peak")
    found = [one for one in result("validate", "--records", files[file])["records"] if one["quantity"] == quantity]
    entry = [one for one in found if one["expressed"]][number]
    words = shlex.split(entry["command"])
    assert words[0] == "actplan"
    said: Any = result(*words[1:])
    for name in key.split("."):
        said = said[name]
    assert said == entry["predicted_bytes"]
    assert entry["error"] == pytest.approx(said / entry["measured_bytes"] - 1, abs=1e-6)


def test_a_mapping_reads_no_measurement(tmp_path: Path) -> None:
    """The same records with other measured numbers make the same commands."""

    def scaled(value: object) -> object:
        if isinstance(value, Mapping):
            return {key: scaled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [scaled(inner) for inner in value]
        return 3 * value if isinstance(value, int | float) and not isinstance(value, bool) else value

    for name in SHARED:
        (tmp_path / name).mkdir()
        file = Path(some(tmp_path / name, name, step=1))
        records = json.loads(file.read_text(encoding="utf-8"))
        for record in records:
            for key in record:
                if key in MEASUREMENTS or key.startswith(("peak_", "end_", "static_", "retained_", "forward_")):
                    record[key] = scaled(record[key])
        plain = read_records(file)
        file.write_text(json.dumps(records), encoding="utf-8")
        changed = read_records(file)
        assert [one.words for one in changed] == [one.words for one in plain]
        assert [one.reason for one in changed] == [one.reason for one in plain]


@pytest.mark.parametrize("folder", ["mine_configs", "configs", "../configs"])
def test_a_configuration_lies_beside_the_file(folder: str, tmp_path: Path) -> None:
    record = json.loads((REFERENCE / "autograd.json").read_text(encoding="utf-8"))[1]
    here = tmp_path / "records"
    (here / folder).mkdir(parents=True)
    config = here / folder / record["config"]
    config.write_bytes((REFERENCE / "configs" / record["config"]).read_bytes())
    (here / "mine.json").write_text(json.dumps([record]), encoding="utf-8")
    found = result("validate", "--records", str(here / "mine.json"))["records"]
    assert all(one["expressed"] for one in found)
    assert str(config.resolve()) in found[0]["command"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "is no list of records"),
        ('[{"id": "a"}]', "is in no format that is known"),
        ("[", "is not valid JSON"),
        ('[{"config": "x.json", "num_layers": 1, "attn": "fa2", "saved_bytes": 1}]', "gdn: is missing"),
        ('[{"config": "x.json", "args": [], "truth": {}, "area": "a"}]', "id: is missing"),
    ],
)
def test_a_file_that_is_no_file_of_records(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    file.write_text(text, encoding="utf-8")
    message = refused("validate", "--records", str(file))
    assert says in message
    assert "records.json" in message


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    record = json.loads((REFERENCE / "executed.json").read_text(encoding="utf-8"))[0]
    (tmp_path / "mine.json").write_text(json.dumps([record]), encoding="utf-8")
    message = refused("validate", "--records", str(tmp_path / "mine.json"))
    assert f"no configuration {record['config']!r}" in message
    assert "mine_configs" in message
    assert "no such file" in refused("validate", "--records", str(tmp_path / "absent.json"))
    assert "is no share" in refused("validate", "--confidence", "2")


def test_compiled_records_are_summed_up_apart(published: dict[str, Any]) -> None:
    summary, entries = published["summary"], published["records"]
    compiled = {one["group"] for one in entries if "compile" in one["tags"] and one["expressed"]}
    groups = {one["group"] for one in summary["sources"]}
    assert compiled
    assert {f"{group}, compiled" for group in compiled} <= groups
    trusted = {
        one["id"] for one in entries if one["confidence"] >= summary["trusted_from"] and "compile" not in one["tags"]
    }
    assert summary["trusted"]["records"] == len(trusted)


def test_what_cannot_be_expressed_has_a_reason(published: dict[str, Any]) -> None:
    refused_ = [one for one in published["records"] if not one["expressed"]]
    assert all(one["reason"] and "predicted_bytes" not in one for one in refused_)
    assert any("seq is not a number in the record" in one["reason"] for one in refused_)


def test_the_errors_of_a_source(published: dict[str, Any]) -> None:
    """Median, 90th percentile, worst and bias, counted again from the entries."""
    line = next(one for one in published["summary"]["sources"] if one["group"] == "modelscope/ms-swift")
    found = [one for one in published["records"] if one["group"] == line["group"] and one["quantity"] == "reserved"]
    errors = sorted((one["error"] for one in found if one["expressed"]), key=abs)
    assert (line["records"], line["expressed"]) == (len(found), len(errors))
    assert line["median"] == pytest.approx(median(map(abs, errors)))
    assert line["worst"] == errors[-1]
    assert abs(errors[-2]) <= line["p90"] <= abs(errors[-1])
    assert line["bias"] == pytest.approx(sum(errors) / len(errors))


def test_confidence_leaves_records_out(published: dict[str, Any], files: dict[str, str]) -> None:
    found = result("validate", "--records", files["measured.json"], "--confidence", "0.8")["records"]
    assert found == [one for one in published["records"] if one["confidence"] >= 0.8]


def test_tables_and_csv(files: dict[str, str]) -> None:
    file = files["executed.json"]
    table = actplan("validate", "--records", file)
    assert (table.returncode, table.stderr) == (0, "")
    first = table.stdout.splitlines()
    assert first[0] == "12 of 12 records expressed"
    assert "saved_bytes" in "\n".join(first[:24])
    rows = actplan("validate", "--records", file, "--format", "csv").stdout.splitlines()
    assert rows[0].startswith("id,source,group,confidence,expressed,quantity,predicted_bytes,measured_bytes,error")
    assert len(rows) == 1 + len(result("validate", "--records", file)["records"])
    assert "| source |" in actplan("validate", "--records", file, "--format", "markdown").stdout


def test_the_shared_records_are_in_the_wheel() -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    inside = dict(re.findall(r'^"(tests/reference/[^"]+)" = "([^"]+)"$', settings, flags=re.MULTILINE))
    assert all(target == source.replace("tests/reference", "actplan/records") for source, target in inside.items())
    for name in SHARED:
        assert f"tests/reference/{name}" in inside
        for record in json.loads((REFERENCE / name).read_text(encoding="utf-8")):
            if "config" in record:
                folders = (f"tests/reference/{Path(name).stem}_configs", "tests/reference/configs")
                assert any(folder in inside and (ROOT / folder / record["config"]).is_file() for folder in folders)
