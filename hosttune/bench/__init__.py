"""Benchmarks of one host: run in children, parsed purely, judged against floors that each name their source.

The children (`python -m hosttune.bench.gpu_child`, `… .memory_child`) import this package too, with an interpreter
that may have nothing but the GPU library: it imports nothing. `course.measure` is its front.
"""
