"""hosttune: discover, plan, tune and validate KVM hosts for GPU guests."""

__version__ = "0.1.0"
