"""Draws boxes, arrows, charts and sequence diagrams as SVG on a card that fits both themes.

An image does not know the site's theme, since the reader can choose another one than the system's.
So each drawing brings its background, and its colours have a contrast of at least 4.5 on it.
"""

from collections.abc import Sequence
from html import escape

INK, FAINT, CARD, LINE = "#1f2328", "#57606a", "#f6f8fa", "#6e7781"
# Fill and outline by kind of part.
COLOURS = {
    "client": ("#ddf4ff", "#0969da"),
    "server": ("#dafbe1", "#1a7f37"),
    "lease": ("#fff8c5", "#9a6700"),
    "store": ("#fbefff", "#8250df"),
    "note": ("#ffffff", "#afb8c1"),
    "process": ("#eaeef2", "#57606a"),
    "end": ("#ffebe9", "#cf222e"),
}
_LINE_HEIGHT = 18

Point = tuple[float, float]


def number(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


class Drawing:
    """A picture of a fixed size.

    Args:
        title: What the picture shows, for those who cannot see it.
        width: In pixels, as all measures.
        height: The height.
    """

    def __init__(self, title: str, width: float, height: float) -> None:
        self._title = title
        self._width = width
        self._height = height
        self._parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        *lines: str,
        anchor: str = "middle",
        colour: str = INK,
        size: int = 14,
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        """Write lines of text; ``y`` is the baseline of the first. A halo keeps lines off it."""
        weight = ' font-weight="600"' if bold else ""
        weight += f' paint-order="stroke" stroke="{CARD}" stroke-width="5"' if halo else ""
        for row, line in enumerate(lines):
            self._parts.append(
                f'<text x="{number(x)}" y="{number(y + row * _LINE_HEIGHT)}" text-anchor="{anchor}" fill="{colour}" '
                f'font-size="{size}"{weight}>{escape(line)}</text>'
            )

    def box(self, x: float, y: float, width: float, height: float, kind: str, *lines: str, top: bool = False) -> None:
        """Draw a box; the first line is bold, except of a note. With ``top`` it is not centred."""
        fill, outline = COLOURS[kind]
        self._parts.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" rx="6" '
            f'fill="{fill}" stroke="{outline}"/>'
        )
        first = y + 22 if top else y + height / 2 - (len(lines) - 1) * _LINE_HEIGHT / 2 + 5
        if kind == "note":
            self.text(x + width / 2, first, *lines, size=13)
        else:
            self.text(x + width / 2, first, *lines[:1], bold=True)
            self.text(x + width / 2, first + _LINE_HEIGHT, *lines[1:], colour=FAINT, size=13)

    def band(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Fill a rectangle without an outline."""
        place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        self._parts.append(f'<rect {place} fill="{colour}"/>')

    def line(
        self, *points: Point, colour: str = LINE, dashed: bool = False, arrow: bool = True, wide: bool = False
    ) -> None:
        """Draw a line through points, with an arrow at its end."""
        path = "M" + " L".join(f"{number(x)} {number(y)}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        width = 2.5 if wide else 1.5
        self._parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>')
        if arrow:
            (from_x, from_y), (x, y) = points[-2:]
            length = ((x - from_x) ** 2 + (y - from_y) ** 2) ** 0.5
            along, down = (x - from_x) / length, (y - from_y) / length
            corners = [(x, y), *((x - 9 * along - side * down, y - 9 * down + side * along) for side in (4, -4))]
            path = " ".join(f"{number(left)},{number(top)}" for left, top in corners)
            self._parts.append(f'<polygon points="{path}" fill="{colour}"/>')

    def svg(self) -> str:
        """Return the file."""
        width, height, title = number(self._width), number(self._height), escape(self._title)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-labelledby="title" font-family="system-ui, -apple-system, sans-serif">\n'
            f'<title id="title">{title}</title>\n'
            f'<rect x="0.5" y="0.5" width="{number(self._width - 1)}" height="{number(self._height - 1)}" rx="8" '
            f'fill="{CARD}" stroke="#d0d7de"/>\n'
        )
        return head + "\n".join(self._parts) + "\n</svg>\n"


# A step of a sequence diagram: from, to, lines of text; a note if both are the same actor.
Step = tuple[str, str, Sequence[str]]


def sequence_diagram(title: str, actors: Sequence[tuple[str, str]], steps: Sequence[Step], width: float = 800) -> str:
    """Draw who sends what to whom, from top to bottom.

    Args:
        title: What the diagram shows.
        actors: Names with their kinds (``COLOURS``), from left to right.
        steps: Messages, and notes over one actor. A message that begins with "<" is a reply.
        width: The width.
    """
    heights = [_LINE_HEIGHT * len(lines) + (34 if sender == receiver else 22) for sender, receiver, lines in steps]
    height = 76 + sum(heights) + 10
    drawing = Drawing(title, width, height)
    column = width / len(actors)
    centres = {name: column * (index + 0.5) for index, (name, _) in enumerate(actors)}
    for name, kind in actors:
        drawing.line((centres[name], 50), (centres[name], height - 12), dashed=True, arrow=False, colour="#afb8c1")
        drawing.box(centres[name] - column / 2 + 14, 14, column - 28, 36, kind, name)
    y = 66.0
    for (sender, receiver, lines), step_height in zip(steps, heights, strict=True):
        if sender == receiver:
            room = max(len(line) for line in lines) * 7 + 24
            left = min(max(centres[sender] - room / 2, 10), width - 10 - room)
            drawing.box(left, y, room, step_height - 14, "note", *lines)
        else:
            start, end = centres[sender], centres[receiver]
            is_reply = lines[0].startswith("<")
            drawing.text((start + end) / 2, y + 14, *(line.removeprefix("<") for line in lines), size=13, halo=True)
            arrow_y = y + _LINE_HEIGHT * len(lines) + 4
            drawing.line((start, arrow_y), (end, arrow_y), dashed=is_reply)
        y += step_height
    return drawing.svg()
