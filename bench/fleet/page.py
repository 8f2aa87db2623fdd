"""The fleet's report in a headless Chromium: until it is loaded, filtered, sorted, and how it scrolls."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SECONDS = 300  # for what ten thousand hosts may take

# What Chromium itself says of the load; then how long an action takes until its frame is drawn, and the frames of a
# scroll from the page's top to its end in 120 steps, with the longest task in between (Long Tasks API, W3C).
_LOADED = "(t => (t.loadEventEnd - t.startTime) / 1000)(performance.getEntriesByType('navigation')[0])"
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
document.querySelector('#list th[data-sort=%s] button').click();
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
    """Seconds: until the page is loaded, until a typed filter and a sort are drawn (the slowest of some), the 95th
    percentile of a frame while it scrolls, and the longest task in that time."""

    load: float
    filter: float
    sort: float
    frame: float
    task: float


def opened(page: Path) -> Fluid | None:
    """A report looked at as a reader would; None where there is no Chromium or no driver for it."""
    from browser import CHROMIUM, DRIVER, browser

    if CHROMIUM is None or DRIVER is None:
        return None
    with browser() as chromium:
        chromium.driver.set_script_timeout(SECONDS)
        chromium.driver.set_page_load_timeout(SECONDS)
        chromium.open(page)
        load = float(chromium.run(_LOADED))
        drawn = chromium.driver.execute_async_script
        filters = [drawn(_DRAWN % (_FILTER % text)) for text in ("gpu-0007", "gpu-00", "0000:41:00.0", "")]
        sorts = [drawn(_DRAWN % (_SORT % key)) for key in ("hosts", "answers", "verdicts")]
        scrolled = chromium.driver.execute_async_script(_SCROLL)
    return Fluid(load, max(filters), max(sorts), scrolled["frame"], scrolled["task"])
