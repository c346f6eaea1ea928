"""Chaos for real: the full stack on a real Slurm and a real Postgres, and everything that can die, dies.

    python -m benchmarks.chaos --minutes N --seed S --report FILE

Parts: `schedule` (a seed → what will happen when; pure), `stage` (the programs, each to be killed and started again),
`injections` (doing it), `witness` (what Slurm and the kernel show meanwhile), `tricks` (a hostile tenant),
`accounting` (was every failure answered for, did every invariant hold; pure), `report`. The accounting believes Slurm's
own records, the jobs' own marks and the kernel, never what our programs say of themselves; the one exception is the
reason of an advice, which explains a failure that nobody recovered and is held against what was injected.
"""
