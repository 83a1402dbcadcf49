"""Every reader of files under the same bounds: what is hostile or broken is one line on stderr, exit 2, in no time."""

from __future__ import annotations

import json
import pickle
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_harness import CLEAN, COMMAND, inside, refused

REFERENCE = Path(__file__).parents[1] / "reference"
CONFIG = (REFERENCE / "configs" / "gpt2.json").read_text(encoding="utf-8")
LEDGER = (REFERENCE / "ledger_llama_3_2_1b.yaml").read_text(encoding="utf-8")
CHAIN = json.dumps({"x": [4, 4, 4], "s": [8, 8], "tf": [2, 2], "tb": [3, 3], "f": [1, 2]})
SPEC = (REFERENCE.parents[1] / "presets" / "models" / "gpt2.yaml").read_text(encoding="utf-8")
PART = "sweep,points,point,peak_bytes\nx,1,0,5\n"

READERS: dict[str, tuple[str, list[str]]] = {
    "spec": ("model.yaml", ["estimate", "--model"]),
    "config": ("config.json", ["estimate", "--model"]),
    "ledger": ("ledger.yaml", ["estimate", "--ledger"]),
    "chain": ("chain.json", ["plan", "--limit", "1KiB", "--chain"]),
    "part": ("part.csv", ["sweep", "--merge"]),
    "snapshot": ("snap.pickle", ["trace", "--snapshot"]),
}


def said(tmp_path: Path, reader: str, content: bytes) -> str:
    """What a reader says of a file that holds this; the file is named, and nothing is endless."""
    name, command = READERS[reader]
    (tmp_path / name).write_bytes(content)
    start = time.process_time()
    code, out, err = inside(*command, name, cwd=tmp_path)
    assert time.process_time() - start < 15
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith((f"actplan: error: {name}: ", "actplan: error: --ledger: ")), err
    assert len(err) <= 401
    return err.removeprefix("actplan: error: ").rstrip("\n")


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_of_the_kind_is_said_alike(reader: str, tmp_path: Path) -> None:
    name, command = READERS[reader]
    assert said(tmp_path, reader, b"") == f"{name}: is empty"
    if reader not in ("spec", "config"):  # there a folder or a name may be meant
        (tmp_path / "folder").mkdir()
        assert refused(*command, "nowhere", cwd=tmp_path) == "nowhere: no such file"
        assert inside(*command, "folder", cwd=tmp_path)[2].endswith(" folder: is a directory, not a file\n")


@pytest.mark.parametrize("reader", [one for one in READERS if one != "snapshot"])
def test_text_is_utf_8_whoever_reads_it(reader: str, tmp_path: Path) -> None:
    utf16 = said(tmp_path, reader, SPEC.encode("utf-16"))
    assert utf16.endswith(": is not a text file (byte 0 is not UTF-8); allowed: UTF-8 text")
    assert said(tmp_path, reader, b"a\0b").endswith(": is not a text file (it holds zero bytes); allowed: UTF-8 text")


@pytest.mark.parametrize(
    ("reader", "content"),
    [("config", CONFIG), ("ledger", LEDGER), ("chain", CHAIN), ("part", PART), ("spec", SPEC)],
    ids=["config", "ledger", "chain", "part", "spec"],
)
def test_a_byte_order_mark_changes_nothing(reader: str, content: str, tmp_path: Path) -> None:
    name, command = READERS[reader]
    outputs = []
    for mark in ("", "\ufeff"):
        (tmp_path / name).write_text(mark + content, encoding="utf-8")
        code, out, err = inside(*command, name, cwd=tmp_path)
        assert (code, err) == (0, "")
        outputs.append(out)
    assert outputs[0] == outputs[1] != ""


@pytest.mark.parametrize("reader", READERS)
def test_an_endless_file_is_refused(reader: str, tmp_path: Path) -> None:
    name = READERS[reader][0]
    (tmp_path / name).symlink_to("/dev/zero")
    assert refused(*READERS[reader][1], name, cwd=tmp_path) == f"{name}: is larger than 64 MiB"


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join(9 * [f'*a{i - 1}'])}]\n" for i in range(1, 12))
DEEP = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 3000))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (LAUGHS, "aliases stand for more than 400,000 values"),
        (DEEP, "nested deeper than 100 levels"),
        ("a: " + "[" * 5000, "nested deeper than 100 levels"),
        ("a: !!int abc", "the tag 'tag:yaml.org,2002:int' is not supported"),
        ("a: !!timestamp x", "is not supported"),
        ("a: !!binary /", "is not supported"),
        ("a: " + "9" * 5000, "a number of 5,000 digits is too large"),
        ('a: "\\ud800"', "invalid Unicode character"),
        ("? [1]\n: 2", "a key is neither a word nor a whole number"),
        ("a: 1\na: 2", "duplicate key 'a'"),
    ],
    ids=["laughs", "aliases", "brackets", "int", "timestamp", "binary", "digits", "surrogate", "key", "twice"],
)
@pytest.mark.parametrize("reader", ["spec", "ledger"])
def test_yaml_is_read_alike(reader: str, content: str, words: str, tmp_path: Path) -> None:
    assert words in said(tmp_path, reader, content.encode())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 5000, "is nested deeper than 100 levels"),
        ("[" * 200 + "]" * 200, "is nested deeper than 100 levels"),
        ('{"x": ' + "9" * 5000 + "}", "holds a number of too many digits"),
        ('{"name": "\\ud800"}', "holds \\ud800, half of a character"),
        ('{"x": 1, "x": 2}', "duplicate key 'x'"),
        ('{"x": [', "where the file ends"),
        ("[" + "1," * 9_000_000 + "1]", "holds more than 8,000,000 values"),
    ],
    ids=["deep", "levels", "digits", "surrogate", "twice", "cut", "many"],
)
@pytest.mark.parametrize("reader", ["config", "chain"])
def test_json_is_read_alike(reader: str, content: str, words: str, tmp_path: Path) -> None:
    assert words in said(tmp_path, reader, content.encode())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("sweep,points,point\nx,1,0,9\n", "line 2: 4 cells under 3 columns"),
        ("sweep,points,point,a\nx,1,0\n", "line 2: 3 cells under 4 columns"),
        ("sweep,points,point,a\nx,1,0,nan\n", "line 2: a: nan is not a number"),
        ("sweep,points,point,a\nx,1,0,-inf\n", "line 2: a: -inf is not a number"),
        ("sweep,points,point,a\nx,1,0,1e999\n", "line 2: a: 1e999 is not a number"),
        ("sweep,points,point,a\nx,1,0," + "9" * 5000 + "\n", "line 2: a: a number of 5,000 digits is too large"),
        ("sweep,points,point,a\nx,1,0," + "y" * 200_000 + "\n", "is not valid CSV: field larger than field limit"),
        ("sweep,points,point,point\nx,1,0,0\n", "line 1: a column comes twice"),
        ("sweep,points,point\nx,100000000,0\n", "a sweep of 100000000 points; allowed: 100,000"),
        ('{"rows": [{"sweep": "x", "points": 1, "point": 0, "a": [1]}]}', "rows[0].a: a list"),
        ('{"rows": [{"sweep": "x", "points": 1, "point": true}]}', "is no part of a sweep"),
        ('{"rows": [{"sweep": "x", "points": 1, "point": 0, "a": NaN}]}', "NaN is not a number"),
    ],
)
def test_parts_of_a_sweep_hold_words_and_finite_numbers(content: str, words: str, tmp_path: Path) -> None:
    assert words in said(tmp_path, "part", content.encode())


def _nested(build: Callable[[object], object], times: int) -> object:
    value: object = [1]
    for _ in range(times):
        value = build(value)
    return value


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"segments": [], _nested(lambda v: (v, v), 0).__len__: 1}, 2), "asks for more than plain data"),
        (b"\x80\x02}(K\x01\x86" + b"q\x00h\x00h\x00\x86" * 40 + b"K\x01u.", "is damaged"),
        (b"\x80\x02}K\x01\x85" + b"2\x86" * 40 + b"K\x01s.", "asks for more than plain data"),
        (b"\x80\x02}K\x01\x85" + b"q\x00h\x00\x86" * 40 + b"K\x01s.", "has a key that is neither a word nor a number"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "not a CUDA memory snapshot"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.", "is cut short"),
        (b"cos\nsystem\n(S'true'\ntR.", "asks for more than plain data"),
        (pickle.dumps({"segments": [_nested(lambda v: [v, v], 60)]}), "not a CUDA memory snapshot"),
        (pickle.dumps({"segments": [{"blocks": [], "total_size": 10**4000}]}), "too many digits"),
        (pickle.dumps({"segments": [{"blocks": [], "total_size": -1}]}), "a size is no whole number of bytes"),
        (pickle.dumps({"segments": [], "device_traces": [[{}] * 3000] * 5000}), "holds more than 8,000,000 values"),
        (b"\x80\x04.", "is damaged"),
        (b"]" * 30, "is damaged"),
    ],
)
def test_a_snapshot_is_plain_data(content: bytes, words: str, tmp_path: Path) -> None:
    assert words in said(tmp_path, "snapshot", content)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("role: layer", "role: banana", "role: unknown role 'banana'; allowed: embedding, between, layer"),
        ("kept_bytes: 256*T", "kept_bytes: -256*T", "-256*T is less than 0 at batch 1 and length 8,192"),
        ("kept_bytes: 256*T", "kept_bytes: 9*T*T*T*T*T*T", "is more than 1e+18 at batch 1"),
        ("kept_bytes: 256*T", "kept_bytes: " + "*".join("T" * 4000), "a product of 4,000 factors"),
        ("kept_bytes: 256*T", "kept_bytes: x*T", "unknown factor 'x'"),
        ("gradient_bytes: 525336576", "gradient_bytes: -1", "gradient_bytes: -1 is not a size"),
        ("pattern:\n", "pattern:\n" + "- {stage: embedding, count: 100000}\n" * 20, "pattern: more than 100,000"),
        ("actplan_ledger: 1", "actplan_ledger: 2", "actplan_ledger: version 2 is not known"),
    ],
)
def test_a_ledger_has_sizes_that_there_can_be(before: str, after: str, words: str, tmp_path: Path) -> None:
    assert before in LEDGER
    assert words in said(tmp_path, "ledger", LEDGER.replace(before, after, 1).encode())


def test_no_hostile_file_takes_much_memory(tmp_path: Path) -> None:
    """Below 200 MiB beyond what the command itself takes."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20))

    for reader, content in (
        ("ledger", LAUGHS.encode()),
        ("part", b"sweep,points,point\nx,100000000,0\n"),
        ("snapshot", b"\x80\x02]r\xff\xff\xff\x7f."),
        ("snapshot", pickle.dumps({"segments": [], "device_traces": [[{}] * 3000] * 5000})),
    ):
        name, command = READERS[reader]
        (tmp_path / name).write_bytes(content)
        done = subprocess.run(
            [COMMAND, *command, name],
            cwd=tmp_path,
            env=CLEAN,
            capture_output=True,
            text=True,
            preexec_fn=limited,
            check=False,
        )
        assert done.returncode == 2, done
