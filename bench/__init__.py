"""What the library costs, each figure beside its peer's from the same minutes: ``python -m bench``.

Timed tests tell of the machine that they ran on, so there are none in ``tests/``; these figures are taken by
hand, on a quiet machine, and kept in ``docs/benchmarks.md``.
"""
