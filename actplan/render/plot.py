"""The trade-off as a picture: an SVG written by hand, or a page with it. No plotting library.

A PNG needs the optional package cairosvg (the extra `plot`).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

from ..basics.errors import MissingExtraError
from ..basics.units import GIB

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 64, 62
CURVE, MARK, INK, FAINT = "#1f6f8b", "#c8553d", "#222222", "#dddddd"
FORMATS = (".svg", ".html", ".png")


class Dot(NamedTuple):
    """A point: GiB and % on the axes, and the words beside it or shown when it is pointed at."""

    peak_bytes: int
    fraction: float
    label: str


def svg(title: str, curve: Sequence[Dot], marks: Sequence[Dot], *, limit: int | None = None, unit: str = "") -> str:
    """The frontier as a line with points, named policies beside it, the limit as a line across."""
    plot = _Plot([*curve, *marks], limit)
    y = unit or "FLOPs run again, % of a step"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="26" font-size="15" font-weight="600">{escape(title)}</text>',
        *plot.axes("peak, GiB", y),
    ]
    if limit is not None:
        x = plot.x(limit)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="{INK}" stroke-dasharray="5 4">'
            f"<title>limit {limit / GIB:.2f} GiB</title></line>"
        )
    path = " ".join(f"{plot.x(dot.peak_bytes):.1f},{plot.y(dot.fraction):.1f}" for dot in curve)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{CURVE}" stroke-width="1.6"/>')
    parts += [plot.dot(dot, CURVE, 2.2) for dot in curve]
    parts += [line for dot in marks for line in plot.marked(dot)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def page(title: str, picture: str) -> str:
    """A page with the picture; pointing at a dot says what it is."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        "<style>body{margin:2rem;font-family:system-ui,sans-serif}svg{max-width:100%;height:auto}</style>\n"
        f"</head>\n<body>\n{picture}</body>\n</html>\n"
    )


def png(picture: str) -> bytes:
    """The picture in pixels."""
    try:
        import cairosvg  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except (ImportError, OSError):  # without its C library it raises OSError
        raise MissingExtraError(
            "a PNG needs cairosvg, not usable here: pip install 'actplan[plot]', or write .svg or .html instead"
        ) from None
    made: bytes = cairosvg.svg2png(bytestring=picture.encode(), scale=2)
    return made


class _Plot:
    """Where data lie on the picture."""

    def __init__(self, dots: Sequence[Dot], limit: int | None) -> None:
        sizes = [dot.peak_bytes for dot in dots] + ([] if limit is None else [limit])
        self.top = max([dot.fraction for dot in dots], default=0.0) * 1.08 or 1.0
        self.high = max(sizes, default=GIB) * 1.04 or 1.0

    def x(self, size: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * size / self.high

    def y(self, fraction: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * fraction / self.top

    def axes(self, x_title: str, y_title: str) -> list[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        parts = []
        for value in ticks(self.high / GIB):
            x = self.x(value * GIB)
            parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{FAINT}"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
        for value in ticks(100 * self.top):
            y = self.y(value / 100)
            parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{FAINT}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        middle = (LEFT + right) / 2
        parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 18}" text-anchor="middle">{escape(x_title)}</text>')
        turned = f"rotate(-90 20 {(TOP + bottom) / 2:.0f})"
        place = f'x="20" y="{(TOP + bottom) / 2:.0f}"'
        parts.append(f'<text {place} transform="{turned}" text-anchor="middle">{escape(y_title)}</text>')
        return parts

    def dot(self, dot: Dot, colour: str, radius: float) -> str:
        x, y = self.x(dot.peak_bytes), self.y(dot.fraction)
        said = f"{dot.label}: {dot.peak_bytes / GIB:.2f} GiB, {100 * dot.fraction:.1f} %".lstrip(": ")
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"><title>{escape(said)}</title></circle>'

    def marked(self, dot: Dot) -> list[str]:
        x, y = self.x(dot.peak_bytes), self.y(dot.fraction)
        left = x > WIDTH - 160
        anchor, at = ("end", x - 8) if left else ("start", x + 8)
        label = f'<text x="{at:.1f}" y="{y - 5:.1f}" text-anchor="{anchor}" fill="{MARK}">{escape(dot.label)}</text>'
        return [self.dot(dot, MARK, 4), label]


def ticks(top: float, count: int = 8) -> list[float]:
    """Round values from 0 up to `top`: steps of 1, 2 or 5 times a power of ten."""
    if top <= 0:
        return [0.0]
    raw = top / count
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    return [step * i for i in range(int(top / step) + 1)]
