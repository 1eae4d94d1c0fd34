"""A page with charts of a bench: one self-contained HTML file."""

from collections.abc import Iterable, Sequence
from html import escape

from idalloc.bench._engine import INTERVAL_NS, Bench
from idalloc.bench._report import to_text

_WIDTH = 800
_HEIGHT = 220
_LEFT = 70
_BOTTOM = 30
_MARGIN = 20  # at the top and on the right
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#000000")
_MAX_POINTS = 200

Points = Sequence[tuple[float, float]]

# Each step about halves the remainder: the tail gets as much space as the rest.
_PERCENTAGES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<title>{title}</title>
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 820px; }}
svg {{ width: 100%; }}
text {{ font-size: 11px; fill: #555; }}
</style>
</head>
<body>
<h1>{title}</h1>
{figures}
<pre>{report}</pre>
</body>
</html>
"""


def to_html(bench: Bench) -> str:
    latencies: list[tuple[str, Points]] = [
        (name, [(index, value / 1e6) for index, (_, value) in enumerate(recorded.percentiles(_PERCENTAGES))])
        for tally in bench.tallies.values()
        for name, recorded in ((tally.rpc, tally.latencies), (f"{tally.rpc}, message", tally.messages))
        if recorded.count
    ]
    calls, ids = (_rate(counts, bench.seconds) for counts in (bench.calls_over_time, bench.ids_over_time))
    figures = [
        _figure("Calls and stream messages per second", [("calls/s", calls)], "s"),
        _figure("Ids per second", [("ids/s", ids)], "s"),
        _figure("Latency in ms", latencies, "%", [f"{percentage:g}" for percentage in _PERCENTAGES]),
    ]
    title = f"idalloc bench {bench.plan.scenario}, {bench.date:%Y-%m-%d %H:%M} UTC"
    return _PAGE.format(title=escape(title), figures="\n".join(figures), report=escape(to_text(bench)))


def _rate(counts: dict[int, int], seconds: float) -> Points:
    """Return rates per second, at times in seconds, from counts by interval of `INTERVAL_NS`."""
    intervals = max(counts, default=0) + 1
    intervals_per_point = -(-intervals // _MAX_POINTS)
    points = []
    for first in range(0, intervals, intervals_per_point):
        begin = first * INTERVAL_NS / 1e9
        end = min((first + intervals_per_point) * INTERVAL_NS / 1e9, max(seconds, begin + 1e-9))
        count = sum(counts.get(interval, 0) for interval in range(first, first + intervals_per_point))
        points.append((end, count / (end - begin)))
    return points


def _figure(title: str, lines: Iterable[tuple[str, Points]], unit: str, names: Sequence[str] = ()) -> str:
    """Return an SVG chart of lines over time, or over named points."""
    lines = [(name, points) for name, points in lines if points]
    right = max((x for _, points in lines for x, _ in points), default=0) or 1
    top = max((y for _, points in lines for _, y in points), default=0) or 1

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            round(_LEFT + x / right * (_WIDTH - _LEFT - _MARGIN), 1),
            round(_HEIGHT - _BOTTOM - y / top * (_HEIGHT - _MARGIN - _BOTTOM), 1),
        )

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for step in range(5):
        value = top * step / 4
        x, y = place(0, value)
        parts.append(f'<path d="M{x} {y}H{_WIDTH - _MARGIN}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{_number(value)}</text>')
    ticks: list[tuple[float, str]] = list(enumerate(names))
    if not names:
        ticks = [(right * n / 5, f"{right * n / 5:.3g}") for n in range(6)]
    for tick, name in ticks:
        x, y = place(tick, 0)
        parts.append(f'<text x="{x}" y="{y + 16}" text-anchor="middle">{escape(name)} {unit}</text>')
    legend = []
    for number, (name, points) in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        placed = " ".join(f"{x},{y}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{placed}"/>')
        legend.append(f'<b style="color:{colour}">{escape(name)}</b>')
        for point in points:
            x, y = place(*point)
            parts.append(
                f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}" fill-opacity="0.2">'
                f"<title>{escape(name)}: {_number(point[1])}</title></circle>"
            )
    parts.append("</svg>")
    return f"<h2>{escape(title)}</h2>\n<p>{' · '.join(legend)}</p>\n" + "\n".join(parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
