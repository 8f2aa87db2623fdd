"""Kinds of setting: what can be read, written and restored on a host. `hosttune.transaction.kinds` lists them."""

from __future__ import annotations

from hosttune.settings.setting import Setting

__all__ = ["Setting"]
