"""Show where the event loop spends a call.

`make profile` writes flame graphs of a server and of the no-op server.

Needs ghz, and py-spy on the PATH, whose samples these are. C code without Python frames, such as
gRPC's and uvloop's, counts for the Python function that called it.
"""

import argparse
import html
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from bench.run import CONCURRENCY, unary_with_ghz
from bench.servers import Server, running

FOLDER = Path("docs/operations")
_WARM_UP, _TURN = 6_000, 5_000
_SAMPLES_A_SECOND = 500
_ROOT, _OURS = "Runner.run", "idalloc_server"
_WIDTH, _ROW, _CHARACTER = 960, 17, 6.2

Stacks = Counter[tuple[str, ...]]


def read_stacks(raw: str) -> Stacks:
    """Return the samples of the event loop's thread by frames, from the outermost in the loop."""
    found: Stacks = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        # Lines of one function are one frame.
        frames = [re.sub(r":\d+\)$", ")", frame) for frame in stack.split(";")]
        starts = [place for place, frame in enumerate(frames) if frame.startswith(_ROOT)]
        if starts:
            found[tuple(frames[starts[0] :])] += int(count)
    return found


def share_of_ours(stacks: Stacks) -> float:
    """Return the share of the samples that have a frame of idalloc."""
    return sum(count for frames, count in stacks.items() if any(_OURS in each for each in frames)) / stacks.total()


def draw(stacks: Stacks, title: str) -> str:
    """Return a flame graph as SVG: each frame above its caller, as wide as its samples."""
    boxes: Counter[tuple[str, ...]] = Counter()
    for frames, count in stacks.items():
        for depth in range(1, len(frames) + 1):
            boxes[frames[:depth]] += count
    scale, height = _WIDTH / stacks.total(), (max(map(len, boxes)) + 2) * _ROW
    left: dict[tuple[str, ...], float] = {(): 0.0}
    drawn = [f'<text x="4" y="13">{html.escape(title)}</text>']
    for frames, count in sorted(boxes.items()):
        parent, width = frames[:-1], count * scale
        x = left[parent]
        left[parent], left[frames] = x + width, x
        if width < 1:
            continue
        y = height - (len(frames) + 1) * _ROW
        colour = "#e0793b" if _OURS in frames[-1] else "#c9d6e8"
        label = frames[-1][: int(width / _CHARACTER)] if width > 8 * _CHARACTER else ""
        about = html.escape(f"{frames[-1]}: {count / stacks.total():.1%}")
        box = f'x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.5):.1f}" height="{_ROW - 1}" fill="{colour}"'
        text = f'<text x="{x + 3:.1f}" y="{y + 12}">{html.escape(label)}</text>'
        drawn.append(f"<g><title>{about}</title><rect {box}/>{text}</g>")
    style = '<style>text{font:11px sans-serif;fill:#1b1b1b}</style><rect width="100%" height="100%" fill="#fff"/>'
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(drawn)}</svg>\n'


def _sample(server: Server, seconds: float, file: Path) -> Stacks:
    unary_with_ghz(server.address, _WARM_UP, CONCURRENCY)
    flags = (f"--duration={seconds:.0f}", f"--rate={_SAMPLES_A_SECOND}", "--format=raw", f"--output={file}")
    with subprocess.Popen(
        ["py-spy", "record", f"--pid={server.process.pid}", *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as sampler:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            unary_with_ghz(server.address, _TURN, CONCURRENCY)
        if sampler.wait():
            raise SystemExit("py-spy failed: it needs the right to trace the server")
    return read_stacks(file.read_text())


def main() -> None:
    """Sample both servers, and write their graphs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12.0)
    seconds = parser.parse_args().seconds
    for program in ("ghz", "py-spy"):
        if not shutil.which(program):
            parser.error(f"{program} is not installed")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        servers = {
            "idalloc": running("idalloc_server", "--listen=127.0.0.1:0", f"--store=sqlite://{folder}/ids.db"),
            "noop": running("bench.noop"),
        }
        for which, server in servers.items():
            stacks = _sample(stack.enter_context(server), seconds, folder / which)
            share = f"{share_of_ours(stacks):.1%} in idalloc's frames (orange)"
            title = f"{which}: the event loop, {CONCURRENCY} calls in flight, {stacks.total():,} samples, {share}"
            (FOLDER / f"flame-{which}.svg").write_text(draw(stacks, title))
            print(title)


if __name__ == "__main__":
    main()
