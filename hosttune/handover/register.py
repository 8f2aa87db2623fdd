"""The register, for the course: see `hosttune.register`."""

from __future__ import annotations

from hosttune.register import now, read_register, record_devices, release

__all__ = ["now", "read_register", "record_devices", "release"]
