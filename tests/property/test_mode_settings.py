"""Whatever was set before, monitor for everything stops everything."""

from hypothesis import given
from hypothesis import strategies as st

from advisor.core.modes import ModeSetting, autonomous_within, effective_mode, stopped_by, withdrawn
from advisor.core.words import Mode

_NAMES = st.sampled_from(["", "a", "b"])
_SETTINGS = st.builds(
    ModeSetting,
    mode=st.sampled_from(Mode),
    cluster=_NAMES,
    partition=_NAMES,
    job_id=_NAMES,
    category=_NAMES,
)
_PLACE = st.tuples(*[st.sampled_from(["a", "b"])] * 4)


@given(st.lists(_SETTINGS, max_size=8), _PLACE)
def test_after_the_stop_nothing_is_autonomous(settings: list[ModeSetting], place: tuple[str, str, str, str]) -> None:
    """With the settings that it removes gone, every place is in monitor mode and advice from before is withdrawn."""
    stop = ModeSetting(mode=Mode.MONITOR)
    gone = stopped_by(stop, settings)
    left = [item for item in settings if item not in gone and item.fields_set > 0] + [stop]
    assert effective_mode(left, *place) is Mode.MONITOR
    assert withdrawn(left, *place)
    assert autonomous_within(stop, left) == ()


@given(st.lists(_SETTINGS, max_size=8), _SETTINGS, _PLACE)
def test_what_wins_over_a_monitor_is_named(
    settings: list[ModeSetting], monitor: ModeSetting, place: tuple[str, str, str, str]
) -> None:
    """Where a monitor fits and the mode is autonomous all the same, a setting named as winning fits too."""
    monitor = ModeSetting(
        mode=Mode.MONITOR,
        cluster=monitor.cluster,
        partition=monitor.partition,
        job_id=monitor.job_id,
        category=monitor.category,
    )
    everything = [*settings, monitor]
    if monitor.matches(*place) and effective_mode(everything, *place) is Mode.AUTONOMOUS:
        assert any(item.matches(*place) for item in autonomous_within(monitor, everything))
