"""Does the page of a report work in a browser?"""

from __future__ import annotations

from pathlib import Path

import pytest

from occl.tools.report import analyse, html, merge, read
from tests.support import chromium
from tests.support import synthetic_traces as traces
from tests.support.chromium import Chromium

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        chromium.PROGRAM is None, reason="no Chromium is installed (apt-get install chromium)"
    ),
]


def write(directory: Path, processes: list[traces.Process], most: int = html.MOST) -> str:
    for process in processes:
        process.write(directory)
    job = merge.merge(merge.load(directory).recordings)
    path = directory / "report.html"
    html.write(job, analyse.analyse(job), path, most)
    return path.as_uri()


def has_drawn(browser: Chromium, colour: str, rows: str = "0, canvas.height") -> bool:
    """Whether the time line has a pixel of a named colour."""
    found = browser.value(
        f"""(() => {{
          draw();
          const probe = document.createElement("canvas").getContext("2d");
          probe.fillStyle = colours.{colour};
          probe.fillRect(0, 0, 1, 1);
          const want = probe.getImageData(0, 0, 1, 1).data.slice(0, 3).join();
          const data = paint.getImageData(0, 0, canvas.width, canvas.height).data;
          for (let i = 0; i < data.length; i += 4)
            if (data[i] + "," + data[i + 1] + "," + data[i + 2] === want) return true;
          return false;
        }})()"""
    )
    assert isinstance(found, bool)
    return found


def test_a_page_is_clicked_through(tmp_path: Path) -> None:
    processes = traces.straggling(4, operations=40, late=2)
    processes[0].operation(7, 500, 500, 600, 900, kind=read.RECEIVE, peer=3, size=1 << 20, detail=5)
    processes[3].operation(7, 600, 600, 601, 900, kind=read.SEND, peer=0, size=1 << 20, detail=5)
    processes[1].operation(41, 41_000, 41_000)
    url = write(tmp_path, processes)
    with Chromium(tmp_path / "profile") as browser:
        browser.open(url)
        assert browser.value("document.documentElement.dataset.ready") == "yes"
        assert "for rank 2." in browser.text("#findings") and "never ended" in browser.text("#findings")
        assert browser.text("#details") == "No operation is selected."
        for colour in ("waiting", "moving", "message", "bad", "mark"):
            assert has_drawn(browser, colour), colour

        # A click on the time line, where all_reduce #20 moves on rank 0. (The job begins at 500 us.)
        browser.value("look(19400, 20000)")
        left, top, _, _ = browser.place("canvas")
        x, y = browser.value(
            "[toX(ops.called[rows[0].ops.find((i) => ops.number[i] === 20)] + 320), tops[0] + 4]"
        )
        browser.click(left + x, top + y)
        details = browser.text("#details")
        assert details.startswith("all_reduce #20 group 0 (4 ranks), 4 KiB of float32, SUM, took 350 µs")
        assert "rank 0" in details and "300 µs\trank 2" in details
        assert browser.value("location.hash") == "#group=0&number=20"

        # The keyboard: everything, then nearer, then nothing selected.
        browser.value("canvas.focus()")
        for key in ("0", "+", "Escape"):
            for kind in ("keyDown", "keyUp"):
                browser.call("Input.dispatchKeyEvent", type=kind, key=key)
        seen, whole = browser.value("[view.to - view.from, END]")
        assert seen == pytest.approx(0.6 * whole)
        assert browser.text("#details") == "No operation is selected."

        # A drag moves the time line, and does not select.
        before = browser.value("view.from")
        left, top, width, _ = browser.place("canvas")
        for kind, x in (("mousePressed", 600), ("mouseMoved", 400), ("mouseReleased", 400)):
            browser.call(
                "Input.dispatchMouseEvent", type=kind, x=left + x, y=top + 30, button="left", buttons=1
            )
        moved = browser.value("view.from") - before
        assert moved == pytest.approx(200 / (width - 96) * seen, rel=0.02)
        assert browser.text("#details") == "No operation is selected."

        # A line of the slowest operations, sorted by what the ranks waited.
        left, top, width, height = browser.place("document.querySelectorAll('#slowest th')[5]")
        browser.click(left + width / 2, top + height / 2)
        left, top, width, height = browser.place("document.querySelector('#slowest tbody tr')")
        browser.click(left + width / 2, top + height / 2)
        assert browser.text("#details").startswith(browser.text("#slowest tbody td"))

        assert (
            browser.value("document.querySelectorAll('#matrix tbody td')[2].title")
            == "rank 0 waited 12.0 ms for rank 2"
        )
        assert browser.errors == []
        assert all(request.startswith(("file:", "blob:", "data:", "about:")) for request in browser.requests)


def test_the_address_selects_an_operation(tmp_path: Path) -> None:
    url = write(tmp_path, traces.straggling(2, operations=9))
    with Chromium(tmp_path / "profile") as browser:
        browser.open(url + "#group=0&number=4")
        assert browser.text("#details").startswith("all_reduce #4 ")
        begin, end = browser.value("[view.from, view.to]")
        assert begin < 3000 and 3000 + 350 < end < 5000
        assert browser.errors == []


def test_64_ranks_and_100_000_operations_are_drawn_and_found(tmp_path: Path) -> None:
    url = write(tmp_path, traces.straggling(64, operations=1600, late=40))
    with Chromium(tmp_path / "profile") as browser:
        browser.open(url)
        assert browser.value("ops.count") == 64 * 1600
        assert has_drawn(browser, "waiting") and has_drawn(browser, "moving")
        assert browser.value("hit(toX(ops.called[rows[63].ops[800]]) + 1, tops[63] + 3)") is not None
        assert len(browser.text("#matrix").split()) >= 64
        assert browser.errors == []


def test_operations_that_are_summed_up_are_drawn_as_blocks(tmp_path: Path) -> None:
    url = write(tmp_path, traces.straggling(2, operations=500), most=0)
    with Chromium(tmp_path / "profile") as browser:
        browser.open(url)
        assert browser.value("ops.count") == 0 and browser.value("meta.blocks.length") > 100
        assert browser.value(
            "paint.getImageData(canvas.width / 2, tops[0] + 5, 200, 1).data.some((v) => v !== 255)"
        )
        left, top, width, height = browser.place("document.querySelector('#slowest tbody tr')")
        browser.click(left + width / 2, top + height / 2)
        assert browser.text("#details") == "No operation is selected." and browser.errors == []
