"""Files: what cannot be read says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import message

from actplan.basics.files import MAX_BYTES, parse_json, read_text
from actplan.basics.strict_yaml import read_yaml


def read_json(path: str) -> object:
    return parse_json(read_text(path), path)


def written(folder: Path, data: bytes) -> str:
    path = folder / "a.json"
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"\x7fELF\x00\x00", "not a text file"),
        (b'{"a": 1, "a": 2}', "duplicate key 'a'"),
        (b'{"a": {"b": 1, "b": 1}}', "duplicate key 'b'"),
        (b'{"a": 1,\n "b": ', "line 2, column 7"),
        (b'{"a": 1,\n "b": ', "cut short"),
        (b'{"a" 1}', "line 1, column 6"),
        (b"[" * 200_000, "deeper"),
        (b"[" * 300 + b"]" * 300, "deeper"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b"{}" + b" " * MAX_BYTES, "larger than 64 MiB"),
    ],
)
def test_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = written(tmp_path, data)
    text = message(read_json, path)
    assert text.startswith(path)
    assert said in text


def test_read(tmp_path: Path) -> None:
    assert read_json(written(tmp_path, b'\xef\xbb\xbf{"a": [1, 2.5, null, NaN]}')) is not None
    assert read_yaml(written(tmp_path, "a: é".encode())) == {"a": "é"}


def test_missing_folder_and_unreadable(tmp_path: Path) -> None:
    assert "no such file" in message(read_text, tmp_path / "nothing")
    assert "directory" in message(read_text, tmp_path)
    assert "cannot be read" in message(read_text, "a\0b")
    assert "cannot be read" in message(read_text, "a" * 5000)
    path = tmp_path / "locked"
    path.write_text("{}")
    path.chmod(0)
    if os.geteuid() != 0:
        assert "cannot be read" in message(read_text, path)
