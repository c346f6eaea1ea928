"""A seeded world around the real core and the real store: what recovery is worth, and whether an invariant ever breaks.

`world` draws what will happen, before anybody decides anything, so that all who are compared meet the same failures;
`cluster` is the scheduler and the training jobs; `lines` is what jobs and kernels print; `sources` delivers it with
loss, delay and skew; `operators` are those compared; `advised` runs the real pipeline on the real store as one of them;
`checks` watches the invariants; `figures` says what came of it.
"""
