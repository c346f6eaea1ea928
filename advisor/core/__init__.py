"""The decision core: functions over frozen values. No I/O, no clock, no randomness."""
