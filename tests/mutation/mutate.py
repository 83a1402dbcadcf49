"""Random mutants of the package against the suite: which part of the code no test would miss.

    python tests/mutation/mutate.py 200 --seed 1                       a random sample of the whole package
    python tests/mutation/mutate.py 20 --in actplan/memory             of one folder
    python tests/mutation/mutate.py 5 --in actplan/ops -- tests/golden tests to run in place of the suite's

Each mutant changes one thing in one line: a comparison, an operator, a number, a condition, a truth value. It lives in
a copy of the tree, where the tests run until the first one fails; a mutant that none of them notices survived, and is
printed as a difference. The share that dies is in docs/validation.md. What only shows (`render/`), asks (`cli/`) or
needs PyTorch (`trace/`) is left out, and text is never changed.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = ("render", "cli", "trace", "notes")
TESTS = ["tests", "-m", "not torch", "--ignore", "tests/corpus", "--ignore", "tests/fuzz", "--ignore", "tests/docs"]
SECONDS = 3600
"""For the tests of one mutant; one that hangs is dead."""
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.LShift: ast.RShift,
    ast.Mod: ast.Mult,
}


def places(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of a module that can be changed, in the order of the text."""
    annotations = {id(inner) for node in ast.walk(tree) for one in _annotations(node) for inner in ast.walk(one)}
    for node in ast.walk(tree):
        if id(node) not in annotations and changed(node) is not None:
            yield node


def _annotations(node: ast.AST) -> list[ast.AST]:
    """What of a node is a type, which no test runs."""
    found = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    return [one for one in found if one is not None]


def changed(node: ast.AST) -> str | None:
    """The text of a node with one thing changed; None where nothing of it is changed."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = ast.Compare(node.left, [COMPARED[type(node.ops[0])]()], node.comparators)
        return ast.unparse(other)
    if isinstance(node, ast.BinOp) and type(node.op) in COMPUTED and not _is_text(node):
        return f"({ast.unparse(ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right))})"
    if isinstance(node, ast.BoolOp):
        other_op: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return f"({ast.unparse(ast.BoolOp(other_op, node.values))})"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"({ast.unparse(node.operand)})"
    return _changed_value(node.value) if isinstance(node, ast.Constant) else None


def _changed_value(value: object) -> str | None:
    if type(value) is bool:
        return str(not value)
    return str(value + 1) if type(value) is int else None


def _is_text(node: ast.AST) -> bool:
    """Whether text is put together or taken apart in a node (`|` of types is no operator that is changed)."""
    parts = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set)
    return any(
        isinstance(one, parts) or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in ast.iter_child_nodes(node)
    )


def mutant(source: str, node: ast.AST) -> str:
    """The module with that node changed, every other byte as it was."""
    text = changed(node)
    assert text is not None
    assert isinstance(node, ast.expr) and node.end_lineno is not None and node.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    return (before + text.encode() + after).decode()


def modules(folder: Path) -> list[Path]:
    """The modules that are changed, below a folder."""
    found = sorted(folder.rglob("*.py"))
    return [path for path in found if not set(path.relative_to(ROOT).parts) & set(LEFT_OUT)]


def sample(count: int, seed: int, folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Random mutants: the module, its text, and the changed one. Each place is as likely as any other."""
    rng = random.Random(seed)
    every = [(path, i) for path in modules(folder) for i, _ in enumerate(places(ast.parse(path.read_text("utf-8"))))]
    for path, i in rng.sample(every, min(count, len(every))):
        source = path.read_text("utf-8")
        node = list(places(ast.parse(source)))[i]
        yield path, source, mutant(source, node)


def survives(copy: Path, module: Path, text: str, tests: list[str]) -> bool:
    """Whether the tests pass with a module exchanged in a copy of the tree."""
    place = copy / module.relative_to(ROOT)
    before = place.read_text("utf-8")
    place.write_text(text, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, timeout=SECONDS, check=False)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        place.write_text(before, "utf-8")


def main() -> int:
    """Run so many mutants; 1 where less than `--least` of them die."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("tests", nargs="*", default=TESTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in", dest="folder", default="actplan")
    parser.add_argument("--least", type=float, default=0.92)
    chosen = parser.parse_args()
    left = total = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache"))
        for module, source, text in sample(chosen.count, chosen.seed, ROOT / chosen.folder):
            total += 1
            if survives(copy, module, text, chosen.tests):
                left += 1
                name = str(module.relative_to(ROOT))
                lines = (source.splitlines(True), text.splitlines(True))
                print("".join(difflib.unified_diff(*lines, name, "survived", n=1)))
            print(f"{total} mutants, {total - left} dead ({(total - left) / total:.0%})", file=sys.stderr, flush=True)
    return 0 if total and (total - left) / total >= chosen.least else 1


if __name__ == "__main__":
    sys.exit(main())
