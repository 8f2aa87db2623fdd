"""`python -m hosttune` is the command `hosttune`."""

from __future__ import annotations

from hosttune.cli import main

if __name__ == "__main__":
    main()
