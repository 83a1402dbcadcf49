"""Commands and files made from a grammar, half right and half wrong: none is a bug, and none takes long.

    python tests/fuzz/fuzz.py 1000000          a million cases, by hand; --seed S begins elsewhere
    python tests/fuzz/fuzz.py 1 --seed S       one case again, with all that it says

A case is a function of its seed alone. It is run in this process, as from a shell in a folder with its files. What must
hold for each is in `verdict`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pickle
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "tests" / "reference"
LONGEST = 400
SECONDS = 30.0
"""Of computing, for one case."""


@dataclass
class Case:
    """A command and the files that it names."""

    arguments: list[str]
    files: dict[str, bytes] = field(default_factory=dict)


Text = Callable[[random.Random], str]
NUMBERS = ("1", "2", "3", "8", "64", "100", "1k", "0", "-1", "1.5", "2^3", "", "x", "nan", "1e9", "9" * 21, "9" * 5000)
SIZES = ("1GiB", "80GB", "1KiB", "0", "-1GiB", "8", "1ZiB", "GiB", "1e3MiB", "9" * 300 + "GiB", "")
WORDS = ("none", "layer", "bf16", "fsdp", "adamw", "h100", "a\tb", "é", "'", "--", "", "x" * 5000, "\u202e", "all", "0")
POLICIES = (
    *("none", "layer", "block", "sqrt", "every:2", "every:0", "one-in:2", "first:1", "heaviest:2", "segments:0-1"),
    *("segments:1-0", "segments:0..1", "selective:attention", "selective:", "modules:mlp", "modules:nothing", "every:"),
    *("segments:" + "9" * 21, "segments:0-1/attention@2", "segments:/attention@0..9:3", "none,layer", "offload"),
)
MODELS = ("gpt2", "llama-3.2-1b", "qwen3-0.6b", "mixtral-8x7b", "nowhere", "", "GPT2")


def _one(*texts: str) -> Text:
    return lambda rng: rng.choice(texts)


def _list(*texts: str) -> Text:
    return lambda rng: ",".join(rng.choice(texts) for _ in range(rng.randrange(1, 4)))


OPTIONS: dict[str, Text] = {
    **{f"--{name}": _one(*NUMBERS) for name in ("seq", "batch", "dp", "tp", "cp", "pp", "vpp", "ep", "etp")},
    **{f"--{name}": _one(*NUMBERS) for name in ("lora-rank", "loss-chunks", "freeze-layers", "microbatches", "gpus")},
    **{f"--{name}": _one(*SIZES) for name in ("limit", "reserved")},
    "--checkpoint": _one(*POLICIES),
    "--dtype": _one("bf16", "fp16", "fp32", "int8", ""),
    "--precision": _one("pure", "autocast", "mixed"),
    "--attention": _one("eager", "sdpa", "flash", "flex", "cudnn", "efficient", "fast"),
    "--kernels": _one("hf", "liger", "own"),
    "--loss": _one("naive", "fused", "trl", "torchtune", "torchtitan", "none", "parallel", "mse"),
    "--device": _one("cpu", "cuda", "tpu"),
    "--recipe": _one("bf16", "fsdp", "zero-3", "megatron-bf16", "lora", "qlora", "nothing"),
    "--optimizer": _one("adamw", "sgd", "muon", "adafactor", "none"),
    "--offload": _list("parameters", "optimizer", "activations", "x"),
    "--gpu": _one("h100", "a100-80gb", "none", "4090"),
    "--set": lambda rng: (
        f"{rng.choice(('num_layers', 'hidden_size', 'layers[0].mlp.width', '', '..'))}={rng.choice(NUMBERS)}"
    ),
    "--format": _one("table", "json", "csv", "markdown", "xml"),
    "--get": _one("estimates", "estimates.autograd.saved_bytes", "budget.stages.0", "rows.-1", "", ".", "9" * 30),
    "--pp-schedule": _one("1f1b", "gpipe", "zbv", "zb-h1", "none"),
    "--pp-split": _list("first=1", "last=1", "embedding", "loss", "middle=2"),
    "--lora-targets": _list("q_proj", "all-linear", "nothing"),
    "--freeze": _list("embed_tokens", "mlp", "layers.0", "x"),
    "--layer": _one(*NUMBERS),
    "--kind": _one("full_attention", "moe", ""),
    "--max": _one("seq", "batch", "layers", "gpus"),
    "--only": _one("any", "torch", "hf", "torchtitan", "megatron", "jax"),
    "--shard": _one("1/2", "3/2", "0/1", "1", "9" * 30 + "/1"),
    "--tokens": _one("1T", "chinchilla", *NUMBERS),
    "--mfu": _one("0.4", "0", "2", "nan", "x"),
    "--stack": _one("transformers", "megatron", "torchtitan", "jax"),
    "--bogus": _one(*WORDS),
}
FLAGS = ("--sp", "--padding", "--mtp", "--strict", "--at-peak", "--frontier", "--dora", "--merge", "--help")
COMMANDS = ("estimate", "estimate", "estimate", "plan", "sweep", "ledger", "gpus", "presets", "estimat")


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        return _with_file(rng)
    made = Case([rng.choice(COMMANDS)])
    if made.arguments[0] not in ("gpus", "presets"):
        made.arguments += ["--preset", rng.choice(MODELS), "--set", "num_layers=2", "--seq", "64"]
    for _ in range(rng.randrange(5)):
        made.arguments += _option(rng)
    return made


def _option(rng: random.Random) -> list[str]:
    if rng.random() < 0.2:
        return [rng.choice(FLAGS)]
    name = rng.choice(list(OPTIONS))
    return [name, OPTIONS[name](rng)]


def _with_file(rng: random.Random) -> Case:
    name, content, command = rng.choice(_sources())
    made = Case([*command, name], {name: _damaged(rng, content)})
    if rng.random() < 0.3:
        made.arguments += _option(rng)
    return made


def _sources() -> list[tuple[str, bytes, list[str]]]:
    """A right file of each kind, and the command that reads it."""
    if not _SOURCES:
        block = {"size": 512, "state": "active_allocated"}
        entry = {"action": "alloc", "size": 512}
        snapshot = {"segments": [{"total_size": 2048, "blocks": [block]}], "device_traces": [[entry] * 3]}
        chain = {"x": [4, 4, 4], "s": [8, 8], "tf": [2, 2], "tb": [3, 3], "f": [1, 2.5], "names": ["a", "b"]}
        ledger = (REFERENCE / "ledger_llama_3_2_1b.yaml").read_bytes()
        _SOURCES.extend(
            [
                ("m.yaml", (ROOT / "presets" / "models" / "gpt2.yaml").read_bytes(), ["estimate", "--model"]),
                ("c.json", (REFERENCE / "configs" / "gpt2.json").read_bytes(), ["estimate", "--model"]),
                ("l.yaml", ledger, ["estimate", "--ledger"]),
                ("n.json", json.dumps(chain).encode(), ["plan", "--limit", "1KiB", "--chain"]),
                ("n.json", json.dumps(chain).encode(), ["plan", "--frontier", "--chain"]),
                ("p.csv", b"sweep,points,point,peak_bytes\nx,2,0,5\nx,2,1,7.5\n", ["sweep", "--merge"]),
                ("p.json", b'{"rows": [{"sweep": "x", "points": 1, "point": 0, "a": 2}]}', ["sweep", "--merge"]),
                ("s.pickle", pickle.dumps(snapshot), ["trace", "--snapshot"]),
                ("s.pickle", pickle.dumps(snapshot, 0), ["trace", "--snapshot"]),
            ]
        )
    return _SOURCES


_SOURCES: list[tuple[str, bytes, list[str]]] = []
PIECES = (
    *(b"", b"-1", b"0", b"nan", b"Infinity", b"1e999", b"9" * 40, b"9" * 5000, b"null", b"true", b"[]", b"{}", b'""'),
    *(
        b"\xff",
        b"\x00",
        b"\xef\xbb\xbf",
        b"\\ud800",
        b"!!int x",
        b"&a [*a]",
        b"<<: *a",
        b"[" * 200,
        b"\t",
        b"\n",
        b": ",
    ),
    *(
        b"x" * 300,
        b"T*T*T",
        b"-4*B*T",
        b"ceil(T/0)",
        b"100000 x full_attention",
        b"r\xff\xff\xff\x7f",
        b"cos\nsystem\n",
    ),
)


def _damaged(rng: random.Random, content: bytes) -> bytes:
    """The content with a few pieces cut out, doubled, exchanged or put in."""
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        at, length = rng.randrange(len(content) + 1), rng.choice((0, 1, 1, 2, 5, 20))
        if rng.random() < 0.5:  # a whole word or number
            while at and content[at - 1 : at].isalnum():
                at -= 1
            length = 0
            while content[at + length : at + length + 1].isalnum():
                length += 1
        piece = rng.choice((rng.choice(PIECES), content[at : at + 200], bytes([rng.randrange(256)])))
        content = content[:at] + piece + content[at + length :]
    return content


@dataclass
class Outcome:
    """What a case did."""

    code: int
    out: str
    err: str
    seconds: float


def outcome(made: Case) -> Outcome:
    """Run a case."""
    from actplan.cli.main import run

    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    before, start = Path.cwd(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for name, content in made.files.items():
            (Path(folder) / name).write_bytes(content)
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
                code = run(made.arguments)
        finally:
            os.chdir(before)
    out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
    return Outcome(code, out, err, time.process_time() - start)


def verdict(done: Outcome) -> str:
    """What is wrong with an outcome; empty where nothing is."""
    if done.code not in (0, 1, 2):
        return f"exit {done.code}"
    if done.code == 2 and (done.out or done.err.count("\n") != 1 or len(done.err) > LONGEST + 1):
        return "exit 2 without one short line on stderr alone"
    if done.code != 2 and (done.err or not done.out.strip()):
        return "an answer that is empty, or that says something on stderr"
    if done.seconds > SECONDS:
        return f"{done.seconds:.0f} seconds"
    return ""


def main() -> int:
    """Run so many cases; 1 where one of them is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    wrong = 0
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        made = case(seed)
        done = outcome(made)
        said = verdict(done)
        if said or chosen.count == 1:
            wrong += bool(said)
            words = " ".join(argument[:80] for argument in made.arguments)
            print(
                f"seed {seed}: {said or 'as it must be'}: actplan {words}\n  {done.code} {done.err[:300]}", flush=True
            )
    print(f"{chosen.count:,} cases, {wrong:,} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
