"""The page of a fleet, of which every host has faults, in a headless Chromium: beside an empty page of as many bytes
until it is shown, filtered, sorted, and how it scrolls."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

from rows import Row

HOSTS = int(os.environ.get("FLEET_HOSTS", "1000"))
LIMIT = 10_000_000  # bytes
TIMES = 3  # at most, of an empty page of the same size
ROUNDS = 15
SECONDS = 300  # for what ten thousand hosts may take
_EMPTY = '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>x</title><body><!--{}--></body></html>'

# A page is shown when a frame is drawn that began after its load event.
_SHOWN = """addEventListener('load', () => requestAnimationFrame(() => requestAnimationFrame(() => {
  window.drawnAt = performance.now() / 1000; })));"""
_WAITED = """const done = arguments[0];
(function wait() { if (window.drawnAt) done(window.drawnAt); else setTimeout(wait, 5); })();"""
# Then how long an action takes until its frame is drawn, and the frames of a scroll from the page's top to its end in
# 120 steps, with the longest task in between (Long Tasks API, W3C).
_DRAWN = """
const done = arguments[arguments.length - 1];
const shown = document.getElementById('shown');
const before = shown.textContent;
const start = performance.now();
%s
function drawn() { requestAnimationFrame(() => setTimeout(() => done((performance.now() - start) / 1000))); }
(function wait() { if (settled()) drawn(); else requestAnimationFrame(wait); })();
"""
_FILTER = """
const words = document.getElementById('words');
words.value = '%s';
words.dispatchEvent(new Event('input', {bubbles: true}));
function settled() { return shown.textContent !== before; }
"""
_SORT = """
document.querySelector('#list th:nth-child(%d) button').click();
function settled() { return true; }
"""
_SCROLL = """
const done = arguments[arguments.length - 1];
let longest = 0;
const seen = (list) => list.getEntries().forEach((entry) => { longest = Math.max(longest, entry.duration); });
const observer = new PerformanceObserver(seen);
observer.observe({entryTypes: ['longtask']});
const height = document.documentElement.scrollHeight - innerHeight;
const frames = [];
let last = null, step = 0;
function next(now) {
  if (last !== null) frames.push(now - last);
  last = now;
  scrollTo({top: height * step / 120, behavior: 'instant'});
  if (step++ < 120) { requestAnimationFrame(next); return; }
  seen({getEntries: () => observer.takeRecords()});
  frames.sort((a, b) => a - b);
  done({frame: frames[Math.floor(frames.length * 0.95)] / 1000, task: longest / 1000});
}
scrollTo(0, 0);
requestAnimationFrame(next);
"""


@dataclass(frozen=True)
class Fluid:
    """Seconds: until the page is shown, and an empty one of as many bytes (the shortest of several times in turn: what
    else the machine does only adds); until a typed filter and a sort are drawn (the slowest of some); the 95th
    percentile of a frame while it scrolls, and the longest task in that time."""

    shown: float
    empty: float
    filter: float
    sort: float
    frame: float
    task: float


def opened(page: Path) -> Fluid | None:
    """A report looked at as a reader would; None where there is no Chromium or no driver for it."""
    from browser import CHROMIUM, DRIVER, browser

    if CHROMIUM is None or DRIVER is None:
        return None
    empty = page.with_name("empty.html")
    empty.write_text(_EMPTY.format("x" * (page.stat().st_size - len(_EMPTY) + 2)), encoding="utf-8")
    shown: dict[Path, list[float]] = {page: [], empty: []}
    with browser() as chromium:
        chromium.driver.set_script_timeout(SECONDS)
        chromium.driver.set_page_load_timeout(SECONDS)
        chromium.command("Page.addScriptToEvaluateOnNewDocument", source=_SHOWN)
        drawn = chromium.driver.execute_async_script
        for _ in range(ROUNDS):
            for path, times in shown.items():
                chromium.driver.get(path.as_uri())
                times.append(drawn(_WAITED))
        chromium.open(page)
        filters = [drawn(_DRAWN % (_FILTER % text)) for text in ("gpu-0007", "gpu-00", "0000:41:00.0", "")]
        sorts = [drawn(_DRAWN % (_SORT % column)) for column in (2, 3, 1)]
        scrolled = drawn(_SCROLL)
    return Fluid(min(shown[page]), min(shown[empty]), max(filters), max(sorts), scrolled["frame"], scrolled["task"])


def page(work: Path) -> list[Row]:
    """The rows of a page of hosts with faults."""
    path = work / "fleet.html"
    path.write_text(sick_page(work / "results"), encoding="utf-8")
    size = path.stat().st_size
    seen = opened(path)
    if seen is None:
        return [Row("the page of a fleet in Chromium", "no Chromium here", "", False)]
    return [
        Row(f"page of {HOSTS:,} hosts with faults", f"{size / 1e6:.1f} MB", f"≤ {LIMIT / 1e6:.0f} MB", size <= LIMIT),
        Row(
            "… until it is shown, and an empty page of as many bytes",
            f"{seen.shown * 1000:.0f} ms, {seen.empty * 1000:.0f} ms: {seen.shown / seen.empty:.1f} times",
            f"≤ {TIMES} times",
            seen.shown <= TIMES * seen.empty,
        ),
        Row("… a filter typed: until it is drawn", f"{seen.filter * 1000:.0f} ms", "≤ 250 ms", seen.filter <= 0.25),
        Row("… a column sorted: until it is drawn", f"{seen.sort * 1000:.0f} ms", "≤ 500 ms", seen.sort <= 0.5),
        Row(
            "… scrolled from end to end: 95th percentile of a frame, longest task",
            f"{seen.frame * 1000:.0f} ms, {seen.task * 1000:.0f} ms",
            "≤ 50 ms, ≤ 200 ms",
            seen.frame <= 0.05 and seen.task <= 0.2,
        ),
    ]


def sick_page(results: Path) -> str:
    """The page of a fleet whose hosts each have three faults, one in forty a slow GPU."""
    from fleetresults import RUN, html, names, validation, write_validation

    from hosttune.fleet.overview import RunContext, report_of

    draw, hosts = random.Random(7), names(HOSTS)
    for n, name in enumerate(hosts):
        write_validation(results, name, validation(name, draw, faults=3, slow=n % 40 == 3))
    return html(report_of(str(results), hosts, RunContext("validate", run=RUN)))
