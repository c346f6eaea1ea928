"""Whatever was set before, monitor for everything stops everything."""

from hypothesis import given
from hypothesis import strategies as st

from advisor.core.modes import ModeSetting, Subject, autonomous_within, effective_mode, in_share, stopped_by, withdrawn
from advisor.core.words import Mode

_NAMES = st.sampled_from(["", "a", "b"])
_SETTINGS = st.builds(
    ModeSetting,
    mode=st.sampled_from(Mode),
    cluster=_NAMES,
    partition=_NAMES,
    job_id=_NAMES,
    category=_NAMES,
    account=_NAMES,
    percent=st.sampled_from([None, 1, 50, 99]),
)
_GIVEN = st.sampled_from(["a", "b"])
_SUBJECT = st.builds(
    Subject, cluster=_GIVEN, partition=_GIVEN, account=_GIVEN, job_id=_GIVEN, category=_GIVEN, job_key=st.text()
)


@given(st.lists(_SETTINGS, max_size=8), _SUBJECT)
def test_after_the_stop_nothing_is_autonomous(settings: list[ModeSetting], subject: Subject) -> None:
    """With the settings that it removes gone, every place is in monitor mode and advice from before is withdrawn."""
    stop = ModeSetting(mode=Mode.MONITOR)
    gone = stopped_by(stop, settings)
    left = [item for item in settings if item not in gone and item.fields_set > 0] + [stop]
    assert effective_mode(left, subject) is Mode.MONITOR
    assert withdrawn(left, subject)
    assert autonomous_within(stop, left) == ()


@given(st.lists(_SETTINGS, max_size=8), _SETTINGS, _SUBJECT)
def test_what_wins_over_a_monitor_is_named(settings: list[ModeSetting], monitor: ModeSetting, subject: Subject) -> None:
    """Where a monitor fits and the mode is autonomous all the same, a setting named as winning fits too."""
    monitor = ModeSetting(
        mode=Mode.MONITOR,
        cluster=monitor.cluster,
        partition=monitor.partition,
        job_id=monitor.job_id,
        category=monitor.category,
        account=monitor.account,
    )
    everything = [*settings, monitor]
    if monitor.matches(subject) and effective_mode(everything, subject) is Mode.AUTONOMOUS:
        assert any(item.matches(subject) for item in autonomous_within(monitor, everything))


@given(st.text(min_size=1), st.integers(1, 99), st.integers(1, 99))
def test_a_larger_share_only_adds_jobs(job_key: str, smaller: int, larger: int) -> None:
    """Whoever is in a canary stays in it when it grows, and the same job is always on the same side."""
    smaller, larger = sorted((smaller, larger))
    assert in_share(job_key, smaller) <= in_share(job_key, larger)
    assert in_share(job_key, smaller) is in_share(job_key, smaller)


def test_a_canary_takes_about_its_share_of_jobs() -> None:
    """Of ten thousand keys a share of 10 takes between 9 and 11 in a hundred; a job without a key is in none."""
    taken = sum(in_share(f"job-{number}", 10) for number in range(10_000))
    assert 900 < taken < 1100
    assert not in_share("", 99)


def test_outside_its_share_a_canary_says_monitor() -> None:
    """Also where a wider setting is autonomous: a canary bounds what it is set for."""
    settings = (ModeSetting(mode=Mode.AUTONOMOUS), ModeSetting(mode=Mode.AUTONOMOUS, partition="train", percent=10))
    keys = [f"job-{number}" for number in range(100)]
    acting = [key for key in keys if _mode(settings, key) is Mode.AUTONOMOUS]
    assert acting == [key for key in keys if in_share(key, 10)]
    assert 0 < len(acting) < len(keys)
    quiet = next(key for key in keys if key not in acting)
    assert withdrawn(settings, Subject(cluster="c", partition="train", job_key=quiet))


def _mode(settings: tuple[ModeSetting, ...], job_key: str) -> Mode:
    return effective_mode(settings, Subject(cluster="c", partition="train", job_key=job_key))
