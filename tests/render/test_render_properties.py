"""No renderer fails, and every number it prints is one of the report's."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import render_samples as samples
from hypothesis import given, settings
from hypothesis import strategies as st

from actplan.basics.units import GIB
from actplan.render import estimate, ledger, numbers, sweep
from actplan.render.blocks import Block, Table
from actplan.render.csv import to_csv
from actplan.render.encoding import escaped_json, representable
from actplan.render.markdown import to_markdown
from actplan.render.select import select
from actplan.render.text import to_text, width
from actplan.render.view import View
from actplan.report import Report, to_json

few = settings(max_examples=20, deadline=None)


def pages(report: Report, bars: Any, rows: Any) -> list[list[Block]]:
    return [estimate.blocks(report, bars=bars), ledger.blocks(report), sweep.blocks(rows, heading="a model")]


@few
@given(samples.reports, samples.bars, samples.rows)
def test_every_view_can_be_written_as_everything(report: Report, bars: Any, rows: Any) -> None:
    for blocks in pages(report, bars, rows):
        assert representable(to_text(blocks), "ascii").isascii()
        assert to_markdown(blocks)


@few
@given(samples.reports)
def test_what_the_table_says_is_the_reports_number_in_gib(report: Report) -> None:
    every = estimate.blocks(report, view=View(details=True))
    (table,) = [b for b in every if isinstance(b, Table) and b.columns[1].title == "segments"]
    assert isinstance(report.segmentations, tuple)
    for cells, row in zip(table.rows, report.segmentations, strict=True):
        titled = {c.full_title: cell for c, cell in zip(table.columns, cells, strict=True)}
        for name, accounting in (("textbook", row.textbook), ("autograd", row.autograd)):
            shown = titled[f"{name}, GiB peak"]
            assert shown == numbers.gib(accounting.peak_bytes)
            if not shown.startswith("<"):
                value = float(shown.replace(",", ""))
                assert abs(value - accounting.peak_bytes / GIB) <= max(0.0051, value * 1e-12)


@few
@given(samples.reports)
def test_csv_holds_the_json_numbers_exactly(report: Report) -> None:
    read = list(csv.DictReader(io.StringIO(to_csv(estimate.sheet(report)))))
    data = json.loads(to_json(report))
    assert tuple(read[0]) == estimate.HEADER
    assert [row["name"] for row in read if row["row"] == "estimate"] == list(data["estimates"])
    found = [row for row in read if row["row"] == "segmentation"]
    assert len(found) == len(data["segmentations"])
    for row, segmentation in zip(found, data["segmentations"], strict=True):
        assert float(row["recompute_flops_fraction"]) == segmentation["recompute_flops_fraction"]
        for kind in ("textbook", "autograd"):
            for key, value in segmentation[kind].items():
                assert float(row[f"{kind}.{key}"]) == float(value)
    saved = next(row for row in read if row["name"] == "autograd")
    assert int(saved["saved_bytes"]) == data["estimates"]["autograd"]["saved_bytes"]


@few
@given(samples.reports)
def test_a_collapsed_ledger_adds_up_to_the_same(report: Report) -> None:
    assert isinstance(report.ledger, tuple)
    total = sum(row.bytes * row.count for row in report.ledger)
    assert sum(row.bytes * row.count for row in ledger.collapsed(report.ledger)) == total


@few
@given(samples.reports)
def test_every_path_of_the_json_can_be_got(report: Report) -> None:
    def walk(value: Any, path: Sequence[str]) -> None:
        if path and not any("." in key for key in path):
            got = select(report, ".".join(path))
            assert (got if isinstance(value, str) else json.loads(got)) == value
        for key, inner in (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        ):
            walk(inner, [*path, str(key)])

    walk(msgspec.json.decode(to_json(report)), [])


@given(st.text(), st.sampled_from(["ascii", "latin-1", "cp437", "utf-8", "no-such-encoding"]))
def test_text_fits_its_encoding(text: str, encoding: str) -> None:
    shown = representable(text, encoding)
    if encoding != "no-such-encoding":
        shown.encode(encoding)
        document = json.dumps([text], ensure_ascii=False)
        escaped_json(document, encoding).encode(encoding)
        assert json.loads(escaped_json(document, encoding)) == [text]


@given(st.lists(st.tuples(st.text("ab×日", max_size=9), st.text("12", max_size=5)), min_size=1, max_size=5))
def test_columns_line_up(cells: list[tuple[str, str]]) -> None:
    from actplan.render.blocks import Column

    table = Table((Column("left", right=False), Column("right")), tuple((a, b + "|") for a, b in cells))
    ends = {width(line) for line in to_text([table]).splitlines()[1:]}
    assert len(ends) == 1
