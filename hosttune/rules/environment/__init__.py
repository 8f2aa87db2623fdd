"""An environment of a guide, judged line by line: text → settings (`reading`) → verdicts by `rules.toml` (`judging`).

Pure. A rule is data: names of variables, cases in order, the verdict of each with its reason and its source. What no
rule names is unknown. Facts of a host sharpen a verdict; without them a verdict that needs them
is unknown, never better.
"""

from hosttune.rules.environment.judging import judge, rules

__all__ = ["judge", "rules"]
