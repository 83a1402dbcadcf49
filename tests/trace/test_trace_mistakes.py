"""A user's mistakes under `actplan trace --python`: errors in words, exit 2, with the line of their code."""

from __future__ import annotations

from pathlib import Path

import pytest

from actplan.cli.main import run

pytestmark = pytest.mark.torch
MODULE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        {statement}
        return y.sum()

def build(batch, seq):
    return Model(), (torch.zeros({shape}, 8),)
"""


def traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, statement: str, shape: str = "batch, seq"
) -> int:
    (tmp_path / f"{name}.py").write_text(MODULE.replace("{statement}", statement).replace("{shape}", shape))
    monkeypatch.chdir(tmp_path)
    return run(["trace", "--python", f"{name}:build", "--seq", "64", "-o", str(tmp_path / "ledger.yaml")])


@pytest.mark.parametrize(
    ("name", "statement", "said"),
    [
        ("widths", "y = self.linear(y[..., :7])", "tensors do not fit together"),
        ("fixed", "y = y + torch.zeros(1, 16, 8)", "tensors do not fit together"),
        ("gpu", "y = y.cuda()", "it asks for a GPU"),
        ("items", "y = y * y.sum().item()", "it looks at a tensor's value"),
        ("arrays", "y = y * float(y.detach().numpy().sum())", "it looks at a tensor's value"),
        ("rows", "y = y[y.nonzero()]", "it looks at a tensor's value"),
        ("own", "raise KeyError('missing')", "KeyError: 'missing'"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    statement: str,
    said: str,
) -> None:
    assert traced(tmp_path, monkeypatch, name, statement) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert f"{name}.py, line 12, `{statement}`" in err
    assert said in err


def test_inputs_of_one_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert traced(tmp_path, monkeypatch, "one_length", "pass", "2, 16") == 2
    assert "inputs are of one length" in capfd.readouterr().err


def test_what_a_model_prints_is_no_data_and_the_last_line_says_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert traced(tmp_path, monkeypatch, "speaks", "print('hello')") == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "hello" in err
    assert err.splitlines()[-1].startswith(f"actplan: written {tmp_path / 'ledger.yaml'}: 72 parameters, 0 layers")
