"""Benchmarks of one host. They run in child processes; their output is parsed and compared with floors with sources.

Figures above a device's physical peak are rejected. A change between two runs is reported only if it is larger than the
noise (exact rank test, and a least size).

The children (`python -m hosttune.bench.gpu_child`, `… .memory_child`) import this package too, in an interpreter that
may have only the GPU library. So this file imports nothing. The entry point is `measuring.measure`.
"""
