"""The views of `trace`: a traced step, a comparison, a CUDA memory snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..render.blocks import Block, Column, Line, Note, Table
from ..render.csv import Sheet
from ..render.numbers import gib, whole
from ..report import STAMP
from .options import TraceOptions
from .result import TraceResult

Found = Mapping[str, Any]


def report(traced: TraceResult, options: TraceOptions) -> dict[str, Any]:
    """A traced step as JSON: its numbers, every saved tensor, and what is alive at the peaks."""
    return {
        **STAMP,
        "model": {
            "name": traced.name,
            "num_layers": traced.num_layers,
            "num_parameters": traced.num_parameters,
        },
        "run": {"sequence_length": options.seq, "micro_batch_size": options.batch, "checkpoint": options.checkpoint},
        "autograd": {
            "saved_bytes": traced.saved_bytes,
            "layer_saved_bytes": list(traced.layer_saved_bytes),
            "outside_layers": traced.outside_layers,
            "end_forward_bytes": traced.end_forward_bytes,
            "peak_forward_bytes": traced.peak_forward_bytes,
            "peak_backward_bytes": traced.peak_backward_bytes,
        },
        "ledger": [
            {"module": module, "shape": list(shape), "dtype": dtype, "bytes": size, "count": count}
            for _, module, shape, dtype, size, count in traced.rows()
        ],
        "versions": traced.versions,
        "notes": [{"code": "trace-note", "message": note} for note in traced.notes],
    }


def blocks(found: Found) -> list[Block]:
    """A traced step in words and one table."""
    model, autograd = found["model"], found["autograd"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    title = f"{model['name']} · {model['num_layers']} layers · {whole(model['num_parameters'])} parameters · {versions}"
    rows = [
        ("kept for backward", gib(autograd["saved_bytes"])),
        ("end of forward", gib(autograd["end_forward_bytes"])),
        ("peak of forward", gib(autograd["peak_forward_bytes"])),
        ("peak of backward", gib(autograd["peak_backward_bytes"])),
    ]
    table = Table((Column("Traced", right=False), Column("GiB")), tuple(rows))
    return [Line(title, title=True), table, *(Note(note["message"]) for note in found["notes"])]


def sheet(found: Found) -> Sheet:
    """One record for each saved tensor."""
    return Sheet(("module", "shape", "dtype", "bytes", "count"), iter(found["ledger"]))


def comparison(found: Found, limit: int) -> list[Block]:
    """Layers side by side, then the tensors that differ."""
    columns = (Column("layer"), Column("kind", right=False), Column("analytic", "bytes"), Column("traced", "bytes"))
    rows = tuple(
        (str(row["layer"]), row["kind"], whole(row["analytic_bytes"]), whole(row["traced_bytes"]))
        for row in found["layers"]
    )
    shown: list[Block] = [Line(f"{found['model']}, {found['num_layers']} layers", title=True), Table(columns, rows)]
    if found["differences"]:
        shown.append(_differences(found["differences"][:limit], len(found["differences"])))
    else:
        shown.append(Line("Every saved tensor agrees to the byte."))
    for name, (ours, theirs) in found["peaks"].items():
        off = "  ← differs" if name in found["peak_differences"] else ""
        shown.append(Line(f"{name}: {whole(ours)} analytic, {whole(theirs)} traced{off}"))
    return shown


def _differences(rows: list[dict[str, Any]], total: int) -> Table:
    columns = (
        Column(f"{total} tensors differ" if total != 1 else "1 tensor differs", right=False),
        Column("shape", right=False),
        Column("dtype", right=False),
        Column("analytic", "count"),
        Column("traced", "count"),
        Column("analytic", "bytes"),
        Column("traced", "bytes"),
    )
    cells = tuple(
        (
            row["module"],
            " × ".join(str(size) for size in row["shape"]),
            row["dtype"],
            whole(row["analytic_count"]),
            whole(row["traced_count"]),
            whole(row["analytic_bytes"]),
            whole(row["traced_bytes"]),
        )
        for row in rows
    )
    return Table(columns, cells)


def comparison_sheet(found: Found) -> Sheet:
    """One record for each difference."""
    header = (
        "module", "shape", "dtype", "analytic_bytes", "traced_bytes", "analytic_count", "traced_count",
    )  # fmt: skip
    return Sheet(header, ({key: row[key] for key in header} for row in found["differences"]))


def snapshot(found: Found) -> list[Block]:
    """A CUDA memory snapshot, and the plan beside it."""
    title = f"Device {found['device']}, {whole(found['events'])} allocator events"
    names = {"allocated_bytes": "allocated peak", "reserved_bytes": "reserved peak", "gap_bytes": "gap"}
    plan = found.get("plan")
    if plan is None:
        recorded = tuple((name, gib(found[key])) for key, name in names.items())
        return [Table((Column(title, right=False), Column("GiB")), recorded)]
    columns = (Column(title, right=False), Column("recorded", "GiB"), Column("planned", "GiB"))
    rows = tuple((name, gib(found[key]), _planned(plan[key])) for key, name in names.items())
    error, within = plan["allocated_error"], "lies in" if plan["reserved_within"] else "lies outside of"
    said = f"Planned with recipe {plan['recipe']}: allocated {error:+.1%}; the reserved peak {within} the band."
    return [Table(columns, rows), Line(said)]


def _planned(size: int | dict[str, int]) -> str:
    return gib(size) if isinstance(size, int) else f"{gib(size['low'])} to {gib(size['high'])}"


def snapshot_sheet(found: Found) -> Sheet:
    """One record; what was planned in columns of its own."""
    record = {key: value for key, value in found.items() if key != "plan"}
    for key, value in found.get("plan", {}).items():
        if isinstance(value, dict):
            record.update({f"planned_{key.removesuffix('_bytes')}_{end}_bytes": size for end, size in value.items()})
        else:
            record[f"planned_{key}"] = value
    return Sheet(tuple(record), iter([record]))
