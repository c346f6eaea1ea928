"""What a checkpoint costs, from the pace of progress lines."""

from advisor.core.course import SAVES_KEPT, Pace, Pause, Phase, saves_of


def test_a_checkpoint_costs_its_silence_less_a_step() -> None:
    """Steps of 2 s, saves of 30 s and 1 s: 28 s and nothing; pauses for other reasons are none."""
    pauses = (
        Pause(step=10, seconds=30.0, phase=Phase.CHECKPOINT),
        Pause(step=20, seconds=99.0, phase=Phase.EVALUATION),
        Pause(step=30, seconds=1.0, phase=Phase.CHECKPOINT),
    )
    assert saves_of(Pace(gaps=(1.9, 2.0, 2.1), pauses=pauses)) == (28.0, 0.0)


def test_only_the_newest_are_kept() -> None:
    """A long attempt saves thousands of times."""
    pauses = tuple(Pause(step=n, seconds=float(n), phase=Phase.CHECKPOINT) for n in range(100))
    assert saves_of(Pace(pauses=pauses)) == tuple(float(n) for n in range(100 - SAVES_KEPT, 100))
