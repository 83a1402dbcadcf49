"""The page about other tools' files: its example is planned by every command that it prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from actplan.cli.main import run

PAGE = (Path(__file__).parents[2] / "docs" / "configs.md").read_text(encoding="utf-8")
(FILE,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
LINES = [line for block in re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", LINES)
def test_the_page_s_commands_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "axolotl.yml").write_text(FILE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(line)[1:]) in (0, 1)
    out, err = capfd.readouterr()
    assert out or "-o" in line
    assert "error" not in err
