"""The picture's colours, light and dark, as one style sheet inside the picture.

The rules are plain, without variables: programs that are not browsers draw the light picture too. Text on a fill has a
contrast of at least 4.5 to 1 (WCAG 2.1, 1.4.3). Every rule begins with the picture's own class, so that a page that
contains the picture keeps its own look.
"""

from __future__ import annotations

ROOT = "hosttune-picture"

# (selector, property, light, dark). Red, amber, green and violet are those of outcomes alone.
RULES: tuple[tuple[str, str, str, str], ...] = (
    (".paper", "fill", "#f4f5f8", "#12151a"),
    ("text", "fill", "#1b2230", "#e6e9ef"),
    (".dim", "fill", "#525c6c", "#a7b0bf"),
    (".bridge", "fill", "#2b3a57", "#c3d0ea"),
    (".node", "fill", "#ffffff", "#1b2027"),
    (".node", "stroke", "#9aa6b8", "#4a5567"),
    (".node.unknown", "stroke", "#6b7484", "#8b95a6"),
    (".panel", "fill", "#ffffff", "#1b2027"),
    (".panel", "stroke", "#d3d9e2", "#343d4b"),
    (".card", "fill", "#f1f3f7", "#232a34"),
    (".card", "stroke", "#dbe0e8", "#323b49"),
    (".switch", "fill", "#dfe6f3", "#2d384a"),
    (".switch", "stroke", "#7f92b5", "#5d7197"),
    (".pcie", "stroke", "#5f7194", "#8ea0c4"),
    (".pcie.degraded", "stroke", "#c62828", "#ff8a80"),
    (".casing", "stroke", "#ffffff", "#1b2027"),
    (".fabric", "stroke", "#2a8a8f", "#4fb5ba"),
    (".joint", "fill", "#2a8a8f", "#4fb5ba"),
    (".cache", "fill", "#eef1f6", "#262e39"),
    (".cache", "stroke", "#aab5c6", "#4d596c"),
    (".core", "fill", "#c5d3ea", "#45567a"),
    (".core.isolated", "stroke", "#1b2230", "#e6e9ef"),
    (".core.hidden", "fill", "none", "none"),
    (".core.hidden", "stroke", "#8b95a6", "#7a8496"),
    (".several", "fill", "#525c6c", "#5f6878"),
    (".memory", "stroke", "#7f92b5", "#5d7197"),
    (".memory.free", "fill", "#ffffff", "#1b2027"),
    (".memory.unknown", "fill", "#e3e6ec", "#343d4b"),
    (".memory.used", "fill", "#7f92b5", "#7f92b5"),
    (".memory.pages", "fill", "#16686d", "#4fb5ba"),
    (".memory.spare", "fill", "#bfe2e3", "#1f5053"),
    (".device", "fill", "#ffffff", "#1b2027"),
    (".gpu", "fill", "#1f4f86", "#1f4f86"),
    (".gpu", "stroke", "#12335a", "#6fa3de"),
    (".ongpu", "fill", "#ffffff", "#ffffff"),
    (".nic", "fill", "#dcebfb", "#1d3550"),
    (".nic", "stroke", "#2f6db5", "#5a9be0"),
    (".nvme", "fill", "#e8ecf1", "#2b3440"),
    (".nvme", "stroke", "#66758a", "#8b9bb0"),
    (".nvswitch", "fill", "#d9f0f0", "#173f42"),
    (".nvswitch", "stroke", "#2a8a8f", "#4fb5ba"),
    (".display", "stroke", "#8b95a6", "#7a8496"),
    (".other", "stroke", "#8b95a6", "#7a8496"),
    (".vf", "stroke", "#2f6db5", "#5a9be0"),
    (".pair", "fill", "#eef1f6", "#262e39"),
    (".pair.on", "fill", "#cbe8e9", "#1f5053"),
    (".strip.fail", "fill", "#fde0de", "#5c1a17"),
    (".strip.warn", "fill", "#fff0cc", "#4f3a06"),
    (".strip.unknown", "fill", "#e3e6ec", "#3a4351"),
    (".onstrip", "fill", "#1b2230", "#ffffff"),
    (".fault.fail", "stroke", "#d32f2f", "#ff8a80"),
    (".fault.warn", "stroke", "#d98200", "#ffc04d"),
    (".fault.unknown", "stroke", "#7a8496", "#a7b0bf"),
    (".sign.fail", "fill", "#c62828", "#e5534b"),
    (".sign.warn", "fill", "#9a5b00", "#c77f14"),
    (".sign.unknown", "fill", "#525c6c", "#7a8496"),
    (".glyph", "stroke", "#ffffff", "#ffffff"),
    (".onguest", "fill", "#ffffff", "#ffffff"),
    (".device.ungiven", "fill", "#ffffff", "#1b2027"),
    (".device.ungiven", "stroke", "#8b95a6", "#7a8496"),
    (".core.free", "fill", "#ffffff", "#1b2027"),
    (".core.free", "stroke", "#7f92b5", "#7a8cb0"),
    (".core.housekeeping", "fill", "#e3e6ec", "#343d4b"),
    (".core.housekeeping", "stroke", "#525c6c", "#a7b0bf"),
    (".hatch", "stroke", "#525c6c", "#a7b0bf"),
    (".memory.stays", "fill", "#ffffff", "#1b2027"),
)
# Of pictures with paths between devices alone.
ROUTES: tuple[tuple[str, str, str, str], ...] = (
    (".route.r0", "stroke", "#b0127b", "#ff7ac6"),
    (".route.r1", "stroke", "#1756d1", "#7db0ff"),
    (".ends.r0", "stroke", "#b0127b", "#ff7ac6"),
    (".ends.r1", "stroke", "#1756d1", "#7db0ff"),
    (".strip.slow", "fill", "#fbe1f1", "#5a1742"),
    (".fault.slow", "stroke", "#b0127b", "#ff7ac6"),
    (".sign.slow", "fill", "#b0127b", "#c2408f"),
)
# Fill, text on it, and outline in the light and in the dark picture, of each guest; after these they repeat, and the
# letter tells the guests apart. Any two fills differ by 16 or more in CIELAB (1976), as seen with normal sight and with
# each kind of colour blindness in full (Machado, Oliveira and Fernandes 2009, table 1). All are blue, teal or magenta:
# red, amber, green and violet are those of outcomes.
GUESTS = (
    ("#0060cc", "#ffffff", "#0060cc", "#2979d4"),
    ("#00c0c0", "#1b2230", "#009d9d", "#00c0c0"),
    ("#c868c8", "#1b2230", "#c060c0", "#c868c8"),
    ("#002454", "#ffffff", "#002454", "#667c98"),
    ("#9cccfc", "#1b2230", "#6d8fb0", "#9cccfc"),
    ("#005454", "#ffffff", "#005454", "#428080"),
    ("#f0609c", "#1b2230", "#e65c96", "#f0609c"),
    ("#3c90fc", "#1b2230", "#3b8df7", "#3c90fc"),
    ("#902490", "#ffffff", "#902490", "#ab59ab"),
    ("#6cf0f0", "#1b2230", "#459a9a", "#6cf0f0"),
    ("#c01878", "#ffffff", "#c01878", "#cb4290"),
    ("#480024", "#ffffff", "#480024", "#956b80"),
)
_FIXED = (
    ("text", "font-family: sans-serif"),
    ("polyline", "fill: none; stroke-linejoin: round"),
    (".fabric", "stroke-linecap: round"),
    (".pcie.degraded", "stroke-dasharray: 3 2"),
    (".node", "stroke-width: 1.5"),
    (".node.unknown", "stroke-dasharray: 7 4"),
    (".gpu", "stroke-width: 1.5"),
    (".core.isolated", "stroke-width: 1.5; stroke-dasharray: 2 1.5"),
    (".core.hidden", "stroke-dasharray: 1.5 1.5"),
    (".fault", "fill: none; stroke-width: 2"),
    (".held", "fill: none; stroke-width: 3"),
    (".guest", "fill: none; stroke-width: 2.5"),
    (".glyph", "fill: none; stroke-width: 1.8; stroke-linecap: round"),
)


_FIXED_ROUTES = (
    (".ends", "fill: none; stroke-width: 2.5"),
    (".route", "stroke-linecap: round"),
    (".route.slow", "stroke-dasharray: 3 7; stroke-width: 6"),
)


def style_sheet(*, paths: bool = False) -> str:
    """Return the style sheet: the light picture, and what changes on paper and on a dark screen.

    Print stays light, and shrinks the picture to the page. `paths`: the picture has paths between devices.
    """
    fixed = "\n".join(f".{ROOT} {selector} {{ {rules} }}" for selector, rules in _FIXED + _FIXED_ROUTES * paths)
    light, dark = _rules(dark=False, paths=paths), _rules(dark=True, paths=paths)
    paper = f"@media print {{\n.{ROOT} {{ max-width: 100%; height: auto }}\n}}"
    return f"{fixed}\n{light}\n{paper}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _rules(*, dark: bool, paths: bool) -> str:
    """Return every rule for the light or the dark picture.

    The dark picture repeats all rules: a rule left out would lose to a later, more general one of the same specificity.
    """
    chosen = RULES + ROUTES * paths
    lines = [f".{ROOT} {selector} {{ {name}: {night if dark else day} }}" for selector, name, day, night in chosen]
    for n, (fill, ink, day, night) in enumerate(GUESTS):
        edge = night if dark else day
        lines.append(f".{ROOT} .g{n} {{ fill: {fill}; stroke: {edge} }}")
        lines.append(f".{ROOT} .on{n} {{ fill: {ink}; stroke: none }}")
        lines.append(f".{ROOT} .o{n} {{ stroke: {edge} }}")
    return "\n".join(lines)
