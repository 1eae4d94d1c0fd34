"""Flame graphs have the shares of the samples."""

from xml.etree import ElementTree

from bench.profile import draw, read_stacks, share_of_ours

RAW = """\
main (app.py:1);Runner.run (asyncio/runners.py:118);call (idalloc_server/rpc/calls.py:200);<lambda> (x.py:3) 10
main (app.py:1);Runner.run (asyncio/runners.py:118);call (idalloc_server/rpc/calls.py:201) 10
main (app.py:1);Runner.run (asyncio/runners.py:118) 60
Thread.run (threading.py:982) 500
"""


def test_frames_are_as_wide_as_their_samples() -> None:
    """Only the event loop's thread counts; lines of a function are one box."""
    stacks = read_stacks(RAW)
    assert stacks.total() == 80
    assert share_of_ours(stacks) == 0.25
    graph = ElementTree.fromstring(draw(stacks, "a < b"))
    titles = {each.text for each in graph.iter("{http://www.w3.org/2000/svg}title")}
    assert titles == {
        "Runner.run (asyncio/runners.py): 100.0%",
        "call (idalloc_server/rpc/calls.py): 25.0%",
        "<lambda> (x.py): 12.5%",
    }
    widths = {float(each.get("width", "0")) for each in graph.iter("{http://www.w3.org/2000/svg}rect") if each.get("x")}
    assert widths == {959.5, 239.5, 119.5}
