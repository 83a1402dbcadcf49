"""The tables of these pages that are made from the code: recipes, optimizers, losses, notes, JSON keys, test records.

`python docs/tables.py` writes them between `<!-- table: NAME -->` and `<!-- end -->`. With `--check` it says which
pages are out of date, and exits with 1 if any is. The package must be importable.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

import msgspec

from actplan.basics.units import BF16, FP32, DType
from actplan.report import Report
from actplan.training import LOSSES
from actplan.training.optimizers import OPTIMIZERS, Stepped
from actplan.training.recipes import RECIPES, Recipe

ROOT = Path(__file__).parent.parent
RANKS = 8
"""The number of data-parallel ranks in the table of recipes."""
WIDTH = 4096
"""Rows and columns of the weight in the table of optimizers."""
TABLE = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
WORD = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")

# What each note says, by the answer that it stands under. A code that the package can print and that is not here, or
# the other way round, is an error (`notes_in`).
ESTIMATE_NOTES = {
    "widest": "the widest tensors of a layer and their share",
    "loss-decides": "with layers checkpointed the loss decides the peak, and what a fused loss makes of it",
    "hold-logits": "with `--hold-logits`: how much is held, until when, and where that is so",
    "better-segmentation": "equal segments that beat the natural block",
    "needs-fla": "a linear mixer is counted with flash-linear-attention's kernels",
    "torch-fallback": "a linear mixer is counted with the torch operations that Transformers falls back to",
    "eager-attention": "attention that keeps T × T probabilities: GiB a copy, a layer, in all layers",
    "sdpa-mask": "sdpa is given a mask (a window, padding), and what it keeps because of it",
    "flash-fp32": "FlashAttention does not run in fp32",
    "cpu-kernels": "dropout masks and LayerNorm statistics as CPU kernels keep them; `--device cuda`, which also takes "
    "sdpa's kernels of a GPU",
    "lora-experts": "adapters that peft gives to stacked experts are not counted: the copy of the experts that they "
    "keep",
    "too-long": "more tokens than the model has learned positions",
    "recompute-dropout": "running a layer twice draws other random numbers, unless the state is kept",
    "recompute-state": "what a layer must not do if running it twice is to give the same numbers",
    "nothing-kept": "a selective policy keeps nothing in some layers, and why",
    "quantised-checkpoint": "a checkpoint that is stored in few bits, and what it is planned as",
    "left-out": "parts that the configuration mentions and Transformers does not train",
    "not-counted": "what comes on top where no budget is asked for",
}
BUDGET_NOTES = {
    "logits-share": "logits are a fifth of the peak or more, and what a fused loss makes of it",
    "logits-copies": "each copy of the logits that the loss makes, their type, and that chunking behind the head does "
    "not help",
    "logits-held": "what a reference kept across steps (`--hold-logits`), or evaluation with `compute_metrics`, adds",
    "big-vocabulary": "embedding and head are much of a small model",
    "gpu-without-flash": "the device has no FlashAttention: which kernel is assumed, and what T × T would take",
    "context-parallel": "the peak with ring, gathered or all-to-all attention",
    "context-parallel-recurrent": "Gated DeltaNet and Mamba need their own kind of context parallelism",
    "checkpoint-needs-grad": "the first checkpoint's input needs no gradient of its own, what Transformers' switch "
    "keeps for one, and what falling back to no checkpointing takes",
    "checkpoint-boundaries": "what segment inputs take, on the device or in host memory",
    "frozen-stores": "frozen layers still keep activations, since something in or below them is trained",
    "lora-dtype": "the type that adapters run in, who decides it, and what another one would keep",
    "saved-modules": "`modules_to_save`: parameters, bytes each, GiB",
    "unquantised-experts": "experts that bitsandbytes leaves alone, their size, and the peak with them in 4 bits",
    "quantised-experts": "experts in 4 bits, and a layer's dequantised copy",
    "quantised-inputs": "inputs that 8-bit and old 4-bit products keep in spite of checkpointing",
    "quantised-shards": "what sharding a quantised base needs, and what of it stays whole",
    "kbit-upcast": "what `prepare_model_for_kbit_training` makes fp32, and the difference",
    "autocast-copies": "autocast's low-precision copies of the weights, and how long they live",
    "qat-copies": "what fake quantisation keeps beside the weights",
    "first-step": "forward and backward before and after the optimizer states appear",
    "moe-total": "what this rank holds of all parameters, and of it for experts that a token does not meet",
    "expert-routing": "the peak with the worst routing, and how much more than with balanced routing",
    "host-memory": "host memory of offloading, for this rank and for all",
    "paged-states": "optimizer states in managed memory, outside the totals",
    "sharding-scope": "ZeRO and FSDP divide states, never activations or logits",
    "replicated": "what each data-parallel rank holds whole",
    "gathered": "the shard, what is gathered beside it at a time, and the buffers",
    "gather-volume": "GiB gathered and reduced for a micro-batch, and what recomputation adds: nothing under FSDP2, a "
    "third gather under ZeRO-3",
    "pipeline-in-flight": "what the first and the last stage hold; more micro-batches add nothing",
    "split-backward": "what waits for the gradients of the weights, and how much more it is where whole graphs wait",
    "tolerance": "where the reserved band comes from; ±10 % between runs is normal",
    "stream-pools": "what is reserved for streams that gather and reduce, and when it is given back",
    "framework": "context, driver reserve and NCCL's communicators, with sources",
    "versions": "the versions that the figures follow",
}
PLAN_NOTES = {
    "per-op": "how much better single outputs are than whole layers",
    "last-stored": "why the last layers are stored",
    "hybrid": "which kinds of layer are stored in a model with several",
    "per-layer-floor": "what each layer on its own cannot go below",
    "best-uniform": "the best equal segments, and the formula that finds them",
    "slow-down": "how the slow-down is estimated",
    "weights-not-counted": "the limit of `--max layers` leaves weights and states out",
    "search-stopped": "the search for the largest stopped at its bound: more fits",
}
LEDGER_NOTES = {
    "traced": "where a ledger comes from: model, versions, sizes",
    "trace-checked": "how well the fit did at a size that it had not seen",
    "trace-note": "what the tracer had to say",
    "no-loss": "head and loss are not in the ledger",
    "idle-parameters": "which parameters get no gradient in the ledger's step",
    "image-tokens": "what of a sequence is images",
}
NOTES = {"estimate": ESTIMATE_NOTES, "budget": BUDGET_NOTES, "plan": PLAN_NOTES, "ledger": LEDGER_NOTES}


# --- what the package can print -------------------------------------------------------------------------------


@cache
def codes() -> frozenset[str]:
    """Every code of a note in the package's source: `Note(code="…")` anywhere, `yield "…", …` in `actplan/notes`."""
    found: set[str] = set()
    for path in sorted((ROOT / "actplan").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                found.update(_words(k.value for k in node.keywords if k.arg == "code"))
            elif isinstance(node, ast.Yield) and "notes" in path.parts:
                pairs = [part for part in ast.walk(node) if isinstance(part, ast.Tuple) and len(part.elts) == 2]
                found.update(_words(pair.elts[0] for pair in pairs[:1]))
    return frozenset(found)


def _words(nodes: Iterable[ast.expr]) -> Iterator[str]:
    """The string constants that are words of a code."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and WORD.match(node.value):
            yield node.value


def notes_in(answer: str) -> str:
    """The notes of one answer; raises LookupError where the texts above are not those of the package's codes."""
    known = {code for notes in NOTES.values() for code in notes}
    if known != codes():
        raise LookupError(f"no text: {sorted(codes() - known)}; no such code: {sorted(known - codes())}")
    return table(("code", "says"), [(f"`{code}`", text) for code, text in sorted(NOTES[answer].items())])


# --- recipes, optimizers, losses ------------------------------------------------------------------------------


def recipes() -> str:
    """Bytes of each recipe for a parameter, on one rank and on one of eight."""
    columns = ("recipe", "what it is", "bytes a parameter", f"of {RANKS} ranks", "optimizer", "source")
    rows = [
        (f"`{name}`", recipe.title, _alone(recipe), _divided(recipe), f"`{_optimizer(recipe)}`", recipe.source)
        for name, recipe in RECIPES.items()
    ]
    return table(columns, rows)


def _alone(recipe: Recipe) -> str:
    per = recipe.per_parameter()
    trained = f"{_number(per.parameters)} + {_number(per.gradients)} + {_number(per.optimizer)} = {_number(per.total)}"
    return trained if recipe.frozen is None else f"base {_base(recipe, Fraction(1))}; adapters {trained}"


def _divided(recipe: Recipe) -> str:
    one, all_ = recipe.per_parameter(), recipe.per_parameter(RANKS)
    if recipe.frozen is None:
        return _number(all_.total)
    share = all_.parameters / one.parameters
    base = "base whole" if share == 1 else f"base {_base(recipe, share)}"
    return f"{base}; adapters {_number(all_.total)}"


def _base(recipe: Recipe, share: Fraction) -> str:
    """Bytes of a frozen parameter."""
    assert recipe.frozen is not None
    if recipe.base is None:
        return _number(recipe.frozen.itemsize * share)
    return f"{_number(Fraction(1, 2) * share)} + scales"


def _optimizer(recipe: Recipe) -> str:
    return next(name for name, optimizer in OPTIMIZERS.items() if optimizer == recipe.optimizer)


def optimizers() -> str:
    """What each optimizer keeps for a value of a linear's weight, trained in fp32 or in bf16."""
    rows = [(f"`{name}`", _kept(name, FP32), _kept(name, BF16), one.source) for name, one in OPTIMIZERS.items()]
    return table(("optimizer", "fp32 weights", "bf16 weights", "source"), rows)


def _kept(optimizer: str, dtype: DType) -> str:
    weight = Stepped("model.layers.0.mlp.up_proj.weight", (WIDTH, WIDTH), WIDTH * WIDTH, dtype, dtype)
    kept = OPTIMIZERS[optimizer].state_bytes([weight]) + OPTIMIZERS[optimizer].paged_bytes([weight])
    return _number(Fraction(round(kept * 1000 / WIDTH**2), 1000))


def losses() -> str:
    """What each loss does, and whose code it is."""
    rows = [(f"`{name}`", kind.what, kind.source or "–") for name, kind in LOSSES.items()]
    return table(("`--loss`", "what runs", "source"), rows)


# --- JSON -----------------------------------------------------------------------------------------------------


def json_keys() -> str:
    """Every key of a report, with its type; `?` where a command may leave it out."""
    return "```text\n" + "\n".join(_keys(Report, "", ())) + "\n```\n"


def _keys(struct: type[msgspec.Struct], indent: str, outer: Sequence[type]) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        kinds, optional = _alternatives(field.type)
        inner = [kind for kind in map(_struct, kinds) if kind is not None]
        words = " | ".join(dict.fromkeys(_word(kind) for kind in kinds))
        yield f"{indent}{field.encode_name}{'?' if optional else ''}".ljust(44) + f"  {words}"
        for kind in inner[:1]:
            if kind in outer:
                yield f"{indent}  … as {kind.__name__}"
            else:
                yield from _keys(_widest(kind), indent + "  ", (*outer, kind))


def _alternatives(kind: object) -> tuple[list[object], bool]:
    """The types of a key that is there, and whether it may be absent."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    parts = list(typing.get_args(kind)) if union else [kind]
    there = [part for part in parts if part is not msgspec.UnsetType]
    return there, len(there) < len(parts)


def _struct(kind: object) -> type[msgspec.Struct] | None:
    """The struct that a type is, or has as its elements."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    found = (_struct(part) for part in typing.get_args(kind))
    return next((part for part in found if part is not None), None)


def _widest(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The subclass with the most keys, where a part has further ones at times."""
    return max([kind, *kind.__subclasses__()], key=lambda one: len(one.__struct_fields__))


def _word(kind: object) -> str:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return "object"
    arguments = [part for part in typing.get_args(kind) if part is not Ellipsis]
    if typing.get_origin(kind) is tuple:
        pair = len(arguments) > 1
        inside = ", ".join(_union(part) for part in arguments)
        return f"[{inside}]" if pair else f"[{inside}, …]"
    if typing.get_origin(kind) is dict:
        return "{" + f"{_union(arguments[0])}: {_union(arguments[1])}" + "}"
    return {"str": "string", "float": "number"}.get(getattr(kind, "__name__", ""), getattr(kind, "__name__", str(kind)))


def _union(kind: object) -> str:
    return " | ".join(_word(part) for part in _alternatives(kind)[0])


# --- reference data -------------------------------------------------------------------------------------------


def records() -> str:
    """How many records each file of tests/reference has."""
    rows = []
    for path in sorted((ROOT / "tests" / "reference").glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        lists = {"records": found} if isinstance(found, list) else found
        counted = [f"{len(one):,} {name}" for name, one in lists.items() if _holds_records(one)]
        rows.append((f"`{path.name}`", ", ".join(counted)))
    return table(("file of `tests/reference`", "records"), rows)


def _holds_records(value: object) -> bool:
    """Whether it is a list or a dict of objects."""
    items = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    return bool(items) and all(isinstance(item, dict) for item in items)


# --- pages ----------------------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("|--- ", "|---")


def _number(value: Fraction | float) -> str:
    return f"{float(value):.4f}".rstrip("0").rstrip(".")


TABLES: Mapping[str, Callable[[], str]] = {
    "recipes": recipes,
    "optimizers": optimizers,
    "losses": losses,
    "json-keys": json_keys,
    "records": records,
    "estimate-notes": lambda: notes_in("estimate"),
    "budget-notes": lambda: notes_in("budget"),
    "plan-notes": lambda: notes_in("plan"),
    "ledger-notes": lambda: notes_in("ledger"),
}


def filled(text: str) -> str:
    """A page with its tables made anew."""
    return TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def pages() -> dict[Path, str]:
    """Every page that has a table, as it should read."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
    return {path: filled(text) for path, text in texts.items() if TABLE.search(text)}


def main(check: bool) -> int:
    """Write the pages, or say which are out of date."""
    stale = [(path, text) for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
