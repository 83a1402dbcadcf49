"""Every command, and every option that a command declares itself, under the Python that runs this file.

    python tests/smoke.py

It needs the installed package and nothing else: `.ci/run` runs it under every Python that is promised and there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

LEDGER = str(Path(__file__).parent / "reference" / "ledger_llama_3_2_1b.yaml")
SMALL = ["--preset", "llama-3.2-1b", "--seq", "512", "--set", "num_layers=3"]
CHAIN = json.dumps({"name": "c", "x": [4, 4, 4], "s": [8, 8], "tf": [2, 2], "tb": [3, 3], "f": [1, 2]})
SHARD = ["sweep", *SMALL, "--batch", "1,2", "--shard"]

COMMANDS: list[tuple[list[str], int, str]] = [
    (["--version"], 0, "actplan "),
    (["--help"], 0, "Usage: actplan"),
    (["estimate", *SMALL], 0, "llama-3.2-1b"),
    (["estimate", *SMALL, "--recipe", "fsdp", "--dp", "8", "--gpu", "h100", "--format", "json"], 0, '"budget"'),
    (["estimate", "--ledger", LEDGER, "--format", "csv"], 0, "policy"),
    (["estimate", *SMALL, "--limit", "1KiB"], 1, "llama-3.2-1b"),
    (["plan", *SMALL, "--limit", "8GiB", "--reserved", "1GiB", "--only", "torch", "--no-per-op"], 0, "GiB"),
    (["plan", *SMALL, "--limit", "8GiB", "--max", "seq"], 0, "largest"),
    (["plan", *SMALL, "--frontier", "-o", "plan.svg"], 0, ""),
    (["plan", "--chain", "chain.json", "--chain-name", "c", "--limit", "1KiB"], 0, "c"),
    ([*SHARD, "1/2", "-o", "one.csv"], 0, ""),
    ([*SHARD, "2/2", "-o", "two.csv"], 0, ""),
    (["sweep", "--merge", "one.csv", "two.csv"], 0, "autograd"),
    (["ledger", *SMALL, "--layer", "1"], 0, "layer 1"),
    (["ledger", *SMALL, "--kind", "full_attention"], 0, "full_attention"),
    (["ledger", *SMALL, "--at-peak"], 0, "alive at the peak"),
    (["presets"], 0, "qwen-27b"),
    (["presets", "list"], 0, "qwen-27b"),
    (["presets", "show", "gpt2"], 0, "name: gpt2"),
    (["gpus"], 0, "h100-80gb"),
    (["gpus", "h100"], 0, "h100-80gb"),
    (["trace", "--snapshot", "nowhere"], 2, ""),
    (["trace", *SMALL[2:4], "--python", "nowhere:f", "--autocast", "bf16", "--whole", "--compare"], 2, ""),
    (["trace", "--model", "nowhere", "--image-tokens", "4", "--snapshot", "nowhere"], 2, ""),
]


def failures(folder: Path) -> list[str]:
    """What went wrong, a line for each command that did not do what it should."""
    (folder / "chain.json").write_text(json.dumps({"chains": [json.loads(CHAIN)]}), encoding="utf-8")
    found = []
    for arguments, code, words in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "actplan", *arguments],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            env={"PYTHONIOENCODING": "utf-8", "PATH": ""},
            check=False,
        )
        right = done.returncode == code and words in done.stdout and bool(done.stderr) is (code == 2)
        if not right or "unknown option" in done.stderr:
            found.append(f"actplan {' '.join(arguments)}: exit {done.returncode}, {done.stdout[:200]!r} {done.stderr}")
    return found


def main() -> int:
    """Run them all; 1 where one of them did not do what it should."""
    with tempfile.TemporaryDirectory() as folder:
        found = failures(Path(folder))
    print("\n".join(found) or f"Python {sys.version.split()[0]}: {len(COMMANDS)} commands do what they should")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
