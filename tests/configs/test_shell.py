"""A shell script is read as the commands that bash would start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actplan.basics.errors import InputError
from actplan.configs.shell import commands
from actplan.configs.shell_words import Variables, arithmetic

SCRIPTS = {
    "defaults": "TP=${TP:-4}\nrecorder --tp $TP --pp ${PP:-2}",
    "arrays": 'A=(--a 1\n  --b "two words"\n)\nA+=(--c)\nrecorder ${A[@]} x "${A[@]}"',
    "continued": "recorder --a 1 \\\n  --b 2  # a comment\n",
    "quotes": "X='a $b'\nrecorder \"$X\" 'single $X' pre\"mid dle\"post",
    "arithmetic": "N=8\nW=$(($N*4))\nrecorder --w $W --v $((W / 3 + 1))",
    "strings": 'OPT=" --x 1 --y 2 "\nrecorder $OPT "$OPT"',
    "if": 'F=1\nif [ "${F}" = 1 ]; then recorder yes; else recorder no; fi\nif [ -n "$UNSET" ]; then recorder a; fi',
    "elif": "M=b\nif [ $M = a ]; then recorder a\nelif [ $M = b ]; then recorder b\nelse recorder c\nfi",
    "case": "M=big\ncase $M in small) recorder s;; big|huge) recorder b;; *) recorder o;; esac",
    "function": 'go() { recorder --first $1 --all "$@"; }\ngo 1 "2 3"',
    "heredoc": 'read -r -d "" C <<EOF\n--a 1 \\\n--b 2\nEOF\nrecorder $C',
    "inner": 'T=3\nC="recorder --t ${T}"\nbash -c "$C"',
    "and": '[ -z "$NONE" ] && recorder empty\n[ -n "$NONE" ] || recorder unset',
    "export": "export A=1 B=2\nrecorder $A $B",
    "cut": "P=a/b/c.txt\nrecorder ${P##*/} ${P^^} ${P/b/x}",
    "nested": "recorder ${A:-${B:-deep}} ${A:+set}",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_words_are_those_that_bash_makes(script: str, tmp_path: Path) -> None:
    """bash runs the script with a `recorder` that writes its arguments down."""
    bash = shutil.which("bash")
    assert bash is not None
    recorder = tmp_path / "recorder"
    recorder.write_text(f"#!{sys.executable}\nimport sys\nprint('|'.join(sys.argv[1:]))\n", encoding="utf-8")
    recorder.chmod(0o755)
    env = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([bash, "-c", script], env=env, capture_output=True, text=True, timeout=20, check=False)
    ours = ["|".join(one.words[1:]) for one in commands(script, "x.sh") if one.words[0].endswith("recorder")]
    assert ours == done.stdout.splitlines()


def test_what_only_the_machine_knows_stays_as_it_is_written() -> None:
    (one,) = commands("run --data $1 --host $(hostname) --home ${HOME}/x", "x.sh")
    assert one.words == ("run", "--data", "${1}", "--host", "$(hostname)", "--home", "${HOME}/x")


def test_nothing_is_run(tmp_path: Path) -> None:
    commands(
        f"touch {tmp_path}/made; $(touch {tmp_path}/made); `touch {tmp_path}/made`; eval touch {tmp_path}/made", "x"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "script",
    [
        "A='never closed",
        'A="never closed',
        "B=(1 2",
        "X=${A",
        "f() { f; }\nf",
        "A=aaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 12,
        "eval \"eval 'eval eval'\"",
        "bash -c '" + "bash -c " * 40 + "'",
    ],
)
def test_a_script_without_end_is_one_error_or_none(script: str) -> None:
    try:
        commands(script, "x.sh")
    except InputError as error:
        assert error.where is not None


@given(st.text(alphabet="ab$(){}[]'\"\\|&;<>=\n #`!~*-:+/0", max_size=60))
def test_no_text_crashes_the_reader(text: str) -> None:
    try:
        commands(text, "x.sh")
    except InputError:
        return


@given(st.integers(0, 999), st.integers(1, 99), st.sampled_from(["+", "-", "*", "/", "%"]))
def test_arithmetic_is_bash_s(left: int, right: int, sign: str) -> None:
    wanted = {"+": left + right, "-": left - right, "*": left * right, "/": left // right, "%": left % right}[sign]
    assert arithmetic(f"{left} {sign} {right}", Variables("x")) == wanted


def test_arithmetic_is_bounded() -> None:
    for text in ("9**9**9", "1/0", "(" * 200, "__import__('os')", "1 if 1 else 2", "2**2000000000"):
        assert arithmetic(text, Variables("x")) is None
