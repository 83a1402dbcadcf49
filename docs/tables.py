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
from actplan.model.families import LINEAGES, READERS, WRAPPERS
from actplan.notes.registry import NOTES
from actplan.report import Report
from actplan.report.validation import Validation
from actplan.training import LOSSES
from actplan.training.megatron import MegatronOptions
from actplan.training.optimizers import OPTIMIZERS, Stepped
from actplan.training.recipes import RECIPES, Recipe

ROOT = Path(__file__).parent.parent
RANKS = 8
"""The number of data-parallel ranks in the table of recipes."""
WIDTH = 4096
"""Rows and columns of the weight in the table of optimizers."""
TABLE = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
WORD = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")


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
    """The notes of one answer; raises LookupError where the registry's codes are not those that the package yields."""
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


def families() -> str:
    """Which model types are read, one lineage a row, and which wrappers' towers are counted."""
    rows = []
    for lineage in LINEAGES:
        first = " ".join((lineage.__doc__ or "").partition("\n\n")[0].split())
        read = [name for name, reader in READERS.items() if _lineage_of(reader) == lineage.__name__]
        rows.append(
            (first.rstrip(".").removesuffix(" Defaults and sources as in `registry`").rstrip("."), _listed(read))
        )
    rows.append(("Wrappers of text models, whose towers are counted", _listed(WRAPPERS)))
    return table(("lineage", "`model_type`"), rows)


def _lineage_of(reader: object) -> str:
    return str(getattr(getattr(reader, "base", reader), "__module__", ""))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


# --- JSON -----------------------------------------------------------------------------------------------------


def json_keys(report: type[msgspec.Struct] = Report) -> str:
    """Every key of a report, with its type; `?` where a command may leave it out."""
    return "```text\n" + "\n".join(_keys(report, "", ())) + "\n```\n"


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


def megatron() -> str:
    """Megatron-Core's own settings."""
    plain, hints = MegatronOptions(), typing.get_type_hints(MegatronOptions, include_extras=True)
    rows = ["| setting | default | what it is |", "|---|---|---|"]
    for name in MegatronOptions.__struct_fields__:
        value = getattr(plain, name)
        shown = str(value).lower() if isinstance(value, bool) else value
        rows.append(f"| `{name}` | {'' if value is None else f'`{shown}`'} | {_described(hints[name])} |")
    return "\n".join(rows) + "\n"


def _described(hint: typing.Any) -> str:
    kind, *metas = typing.get_args(hint)
    words = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    choices = f" ({', '.join(f'`{word}`' for word in words)})" if words else ""
    return f"{metas[0].description}{choices}"


TABLES: Mapping[str, Callable[[], str]] = {
    "recipes": recipes,
    "optimizers": optimizers,
    "losses": losses,
    "families": families,
    "megatron": megatron,
    "json-keys": json_keys,
    "validation-keys": lambda: json_keys(Validation),
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
