"""The chart of docs/operations/benchmarks.md: bars on a logarithmic scale, as SVG."""

import math
from collections.abc import Sequence
from html import escape

_WIDTH, _LEFT, _RIGHT, _LINE = 960, 440, 80, 20
# The page shows the chart as an image, which knows the reader's theme only by this query.
_STYLE = (
    "<style>.paper{fill:#fff}text{fill:#222}.value{fill:#555}.line{stroke:#ddd}.ours{fill:#0072b2}.others{fill:#999}"
    "@media(prefers-color-scheme:dark){.paper{fill:#1b1d23}text{fill:#e6e6e6}.value{fill:#b0b3ba}.line{stroke:#3a3d45}"
    ".ours{fill:#56b4e9}.others{fill:#8a8d94}}</style>"
)


def bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Return a chart of bars, the largest first; those of idalloc have their own colour."""
    values = sorted(values, key=lambda pair: -pair[1])
    low = math.floor(math.log10(min((value for _, value in values), default=1)))
    high = math.ceil(math.log10(max((value for _, value in values), default=10)))
    bottom = 40 + _LINE * len(values)

    def place(power: float) -> float:
        return round(_LEFT + (power - low) / max(high - low, 1) * (_WIDTH - _LEFT - _RIGHT), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 24}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12">',
        _STYLE,
        f'<rect class="paper" width="{_WIDTH}" height="{bottom + 24}"/>',
        f'<text x="10" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        x = place(power)
        parts.append(f'<path class="line" d="M{x} 32V{bottom}"/>')
        parts.append(f'<text class="value" x="{x}" y="{bottom + 16}" text-anchor="middle">{_short(10.0**power)}</text>')
    for number, (name, value) in enumerate(values):
        y, x = 38 + _LINE * number, place(math.log10(value))
        kind = "ours" if name.startswith("idalloc") else "others"
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 11}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{max(x - _LEFT, 1):.1f}" height="14"/>')
        parts.append(f'<text class="value" x="{x + 4:.1f}" y="{y + 11}">{_short(value)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _short(value: float) -> str:
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
