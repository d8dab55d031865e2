"""Plots as SVG text. No resources from elsewhere: colours are CSS classes that page.py defines."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

BAR = 16
GAP = 3
LABEL_WIDTH = 96
VALUE_WIDTH = 180
WIDTH = 560


@dataclass(frozen=True)
class Bar:
    peer: str
    title: str
    value: float
    least: float
    most: float
    text: str


@dataclass(frozen=True)
class Line:
    peer: str
    title: str
    points: list[tuple[float, float]]


def bars(group: list[Bar], width: int = WIDTH) -> str:
    """One workload: bars to scale with each other, whiskers from the least to the most of the rounds."""
    top = max((bar.most for bar in group), default=0.0) or 1.0
    room = width - LABEL_WIDTH - VALUE_WIDTH
    height = len(group) * (BAR + GAP) + GAP
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" class="plot">']
    for number, bar in enumerate(group):
        y = GAP + number * (BAR + GAP)
        length = max(bar.value / top * room, 1)
        middle = y + BAR / 2
        parts.append(f'<g><title>{escape(bar.title)}: {escape(bar.text)} (rounds {bar.least:.4g} to {bar.most:.4g})</title>'
                     f'<text x="{LABEL_WIDTH - 6}" y="{middle + 4}" text-anchor="end" class="label">{escape(bar.title)}</text>'
                     f'<rect x="{LABEL_WIDTH}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" class="fill {css(bar.peer)}"/>')
        if bar.most > bar.least:
            left, right = LABEL_WIDTH + bar.least / top * room, LABEL_WIDTH + bar.most / top * room
            parts.append(f'<path d="M{left:.1f} {middle}H{right:.1f}M{left:.1f} {middle - 4}v8M{right:.1f} {middle - 4}v8" class="whisker"/>')
        at = LABEL_WIDTH + max(length, bar.most / top * room) + 8
        parts.append(f'<text x="{at:.1f}" y="{middle + 4}" class="value">{escape(bar.text)}</text></g>')
    return "".join(parts) + "</svg>"


def curves(lines: list[Line], width: int = 380, height: int = 250) -> str:
    """Latency over percentiles, both axes logarithmic: each step to the right is ten times rarer."""
    lines = [line for line in lines if line.points]
    values = [y for line in lines for _, y in line.points if y > 0]
    rarest = [x for line in lines for x, _ in line.points]
    if not values:
        return ""
    decades_x = max(math.ceil(math.log10(max(rarest))), 1)
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    frame = Frame(width, height, (0, decades_x), (low, high))
    parts = [frame.open()]
    names = ["50%" if decade == 0 else f"{100 - 100 / 10 ** decade:.10g}%" for decade in range(decades_x + 1)]
    names[0] = "0%"
    for decade, name in enumerate(names):
        parts.append(frame.vertical(decade, name))
    for decade in range(low, high + 1):
        parts.append(frame.horizontal(decade, milliseconds(10.0 ** decade)))
    for line in lines:
        points = [(math.log10(max(x, 1)), math.log10(y)) for x, y in line.points if y > 0]
        parts.append(frame.line(line, points))
    return "".join(parts) + "</svg>"


def over_time(lines: list[Line], unit: str, width: int = 380, height: int = 220) -> str:
    """Linear axes from zero; seconds to the right."""
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    seconds = max(x for line in lines for x, _ in line.points) or 1.0
    top = nice(max(y for line in lines for _, y in line.points) or 1.0)
    frame = Frame(width, height, (0, seconds), (0, top))
    parts = [frame.open()]
    for step in range(5):
        parts.append(frame.horizontal(top * step / 4, f"{top * step / 4:g} {unit}" if step else "0"))
    for step in range(5):
        parts.append(frame.vertical(seconds * step / 4, f"{seconds * step / 4:.0f} s"))
    for line in lines:
        parts.append(frame.line(line, line.points))
    return "".join(parts) + "</svg>"


@dataclass(frozen=True)
class Frame:
    width: int
    height: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: int = 62
    bottom: int = 24
    top: int = 8
    right: int = 26

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.height - self.bottom - (value - low) / (high - low) * (self.height - self.bottom - self.top)

    def open(self) -> str:
        return f'<svg viewBox="0 0 {self.width} {self.height}" role="img" class="plot">'

    def horizontal(self, value: float, name: str) -> str:
        y = self.y(value)
        return (f'<path d="M{self.left} {y:.1f}H{self.width - self.right}" class="grid"/>'
                f'<text x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end" class="tick">{escape(name)}</text>')

    def vertical(self, value: float, name: str) -> str:
        x = self.x(value)
        return (f'<path d="M{x:.1f} {self.top}V{self.height - self.bottom}" class="grid"/>'
                f'<text x="{x:.1f}" y="{self.height - 8}" text-anchor="middle" class="tick">{escape(name)}</text>')

    def line(self, line: Line, points: list[tuple[float, float]]) -> str:
        path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        return f'<path d="M{path}" class="stroke {css(line.peer)}"><title>{escape(line.title)}</title></path>'


def milliseconds(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:g} s"
    return f"{value:g} ms" if value >= 1 else f"{value * 1000:g} µs"


def nice(value: float) -> float:
    """The next of 1, 2, 4, 5, 10 times a power of ten, or of 256, 512 by halves: whatever divides by four well."""
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10, 20) if step * power >= value)


def css(peer: str) -> str:
    return f"peer-{peer}"


def escape(text: str) -> str:
    return html.escape(text, quote=True)
