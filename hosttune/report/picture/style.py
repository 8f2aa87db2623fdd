"""The picture's colours, light and dark, as one style sheet inside the picture.

The rules are plain, without variables: programs that are not browsers draw the light picture too. Text on a fill has a
contrast of at least 4.5 to 1 (WCAG 2.1, 1.4.3). Every rule begins with the picture's own class, so that a page that
contains the picture keeps its own look.
"""

from __future__ import annotations

ROOT = "hosttune-picture"

# (selector, property, light, dark)
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
    (".fabric", "stroke", "#2f9e62", "#4cc38a"),
    (".joint", "fill", "#2f9e62", "#4cc38a"),
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
    (".memory.pages", "fill", "#8a5a00", "#d99a2b"),
    (".memory.spare", "fill", "#f2d49b", "#6d541f"),
    (".device", "fill", "#ffffff", "#1b2027"),
    (".gpu", "fill", "#1d6f45", "#1d6f45"),
    (".gpu", "stroke", "#0f4a2c", "#4cc38a"),
    (".ongpu", "fill", "#ffffff", "#ffffff"),
    (".nic", "fill", "#dcebfb", "#1d3550"),
    (".nic", "stroke", "#2f6db5", "#5a9be0"),
    (".nvme", "fill", "#f8edd9", "#43351a"),
    (".nvme", "stroke", "#a5731c", "#c9973c"),
    (".nvswitch", "fill", "#ebe2fa", "#37294f"),
    (".nvswitch", "stroke", "#7a4fc0", "#a582e0"),
    (".display", "stroke", "#8b95a6", "#7a8496"),
    (".other", "stroke", "#8b95a6", "#7a8496"),
    (".vf", "stroke", "#2f6db5", "#5a9be0"),
    (".pair", "fill", "#eef1f6", "#262e39"),
    (".pair.on", "fill", "#c9ead8", "#1d5237"),
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
)
# A guest's fill has white text in both pictures; its outline is lighter in the dark one.
GUESTS = (
    ("#b0480b", "#f08a4b"),
    ("#7b3fa0", "#b982dc"),
    ("#00707c", "#35b5c2"),
    ("#b8185a", "#f06a9f"),
    ("#3949ab", "#8492ea"),
    ("#6d4c41", "#b08d80"),
    ("#5f6a00", "#aab535"),
    ("#455a64", "#8aa4b0"),
)
_FIXED = (
    ("text", "font-family: sans-serif"),
    (".strong", "font-weight: bold"),
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


def style_sheet() -> str:
    """Return the style sheet: the light picture, and what changes on a dark screen (print stays light)."""
    fixed = "\n".join(f".{ROOT} {selector} {{ {rules} }}" for selector, rules in _FIXED)
    light, dark = _rules(dark=False), _rules(dark=True)
    return f"{fixed}\n{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _rules(*, dark: bool) -> str:
    """Return every rule for the light or the dark picture.

    The dark picture repeats all rules: a rule left out would lose to a later, more general one of the same specificity.
    """
    lines = [f".{ROOT} {selector} {{ {name}: {night if dark else day} }}" for selector, name, day, night in RULES]
    for n, (day, night) in enumerate(GUESTS):
        lines += [f".{ROOT} .g{n} {{ fill: {day} }}", f".{ROOT} .o{n} {{ stroke: {night if dark else day} }}"]
    return "\n".join(lines)
