"""From the device to the spool, and from there to each receiver: a thread for each, so that none waits for another."""

import json
import os
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence

from slurm_plugin.kmsg.receivers import DeliveryError, Receiver
from slurm_plugin.kmsg.records import Cap, KernelTime, parse
from slurm_plugin.kmsg.spool import Entry, Place, Spool

RECORD_BYTES_MAX = 16_384
READS_MAX = 2_000  # of one turn, before they are kept
WAIT_SECONDS = 1.0
PAUSE_SECONDS_FIRST = 1.0
PAUSE_SECONDS_MAX = 60.0

Tell = Callable[..., None]


class DeviceGoneError(Exception):
    """The device ends: it never does, so that this is no device."""


class DeliveryGoneError(Exception):
    """A thread that delivers has ended by a defect of ours: beginning anew is better than keeping it to ourselves."""


class Device:
    """Reads the records that were not read before and keeps them. `descriptor`: of /dev/kmsg, non-blocking."""

    def __init__(self, descriptor: int, *, boot: str, spool: Spool, cap: Cap) -> None:
        self._descriptor = descriptor
        self._spool = spool
        self._cap = cap
        self._place = spool.place(boot)
        self._time = KernelTime(self._place.last_ns)
        self._fresh = self._place.next <= 0
        self._caught_up = False
        self.lost = 0

    def turn(self, wait_seconds: float) -> int:
        """Wait for records, keep what there is, and say how many came."""
        waited = not select.select([self._descriptor], [], [], 0)[0]
        if waited and not select.select([self._descriptor], [], [], wait_seconds)[0]:
            self._caught_up = True
            return self._keep([], self._place.next) if self._cap.left_out else 0
        entries: list[Entry] = []
        following, first = self._place.next, self._fresh
        for number in range(READS_MAX):
            try:
                data = os.read(self._descriptor, RECORD_BYTES_MAX)
            except BlockingIOError:
                self._caught_up = True
                break
            except BrokenPipeError:
                continue  # what came next was overwritten before it was read: the numbers tell how many
            if not data:
                raise DeviceGoneError
            record = parse(data)
            if record is None or record.sequence < following:
                continue
            wall_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
            ns = self._time.wall_ns(
                record.uptime_us,
                wall_ns=wall_ns,
                monotonic_ns=monotonic_ns,
                at_once=self._caught_up and waited and number == 0,
            )
            if first:
                first = False
                entries.append(Entry(sequence=None, uptime_us=None, ns=ns, text=f"boot {self._place.boot}"))
                ns = self._time.next_ns()
            if record.sequence > following >= 0:
                self.lost += record.sequence - following
                text = f"{record.sequence - following} kernel records were overwritten before they were read"
                entries.append(Entry(sequence=None, uptime_us=None, ns=ns, text=text))
                ns = self._time.next_ns()
            following = record.sequence + 1
            # What the node's root or its services wrote into the device is no word of the kernel's.
            if record.of_kernel and self._cap.lets(record, time.monotonic()):
                entries.append(Entry(sequence=record.sequence, uptime_us=record.uptime_us, ns=ns, text=record.text))
        return self._keep(entries, following)

    def _keep(self, entries: list[Entry], following: int) -> int:
        left_out = self._cap.take_left_out()
        if left_out:
            text = f"{left_out} kernel records were left out: they came too fast"
            entries.append(Entry(sequence=None, uptime_us=None, ns=self._time.next_ns(), text=text))
        if entries or following != self._place.next:
            self._place = Place(boot=self._place.boot, next=following, last_ns=self._time.last_ns)
            self._spool.add(entries, self._place)
            self._fresh = False
        return len(entries)


class Delivery(threading.Thread):
    """Keeps one receiver up to date. What it cannot be given now is tried again, later and later."""

    def __init__(self, receiver: Receiver, open_spool: Callable[[], Spool], tell: Tell) -> None:
        super().__init__(name=receiver.name, daemon=True)
        self._receiver = receiver
        self._open_spool = open_spool
        self._tell = tell
        self.news = threading.Event()
        self.over = threading.Event()

    def run(self) -> None:
        spool, pause = self._open_spool(), 0.0
        while not self.over.is_set():
            self.news.wait(pause or WAIT_SECONDS)
            self.news.clear()
            try:
                while self._receiver.deliver(spool) and not self.over.is_set():
                    if pause:
                        self._tell("receiver_back", receiver=self._receiver.name)
                    pause = 0.0
            except (DeliveryError, sqlite3.OperationalError) as error:  # the latter: no room, or locked for long
                retry = not isinstance(error, DeliveryError) or error.retry
                if not pause or not retry:
                    self._tell("delivery_failed", receiver=self._receiver.name, error=str(error), retry=retry)
                if retry:
                    pause = min(PAUSE_SECONDS_MAX, pause * 2 or PAUSE_SECONDS_FIRST)
                    self.over.wait(pause)
        spool.close()


def forward(
    device: Device,
    receivers: Sequence[Receiver],
    open_spool: Callable[[], Spool],
    *,
    tell: Tell,
    stopping: threading.Event,
    alive: Callable[[], None] = lambda: None,
) -> None:
    """Until `stopping`. Ends with what `Device.turn` raises, or with `DeliveryGoneError`."""
    deliveries = [Delivery(receiver, open_spool, tell) for receiver in receivers]
    for delivery in deliveries:
        delivery.start()
    lost = 0
    try:
        while not stopping.is_set():
            came = device.turn(WAIT_SECONDS)
            for delivery in deliveries:
                if not delivery.is_alive():
                    raise DeliveryGoneError(delivery.name)
            alive()
            if device.lost != lost:
                tell("records_lost", records=device.lost - lost)
                lost = device.lost
            if came:
                for delivery in deliveries:
                    delivery.news.set()
    finally:
        for delivery in deliveries:
            delivery.over.set()
            delivery.news.set()
        for delivery in deliveries:
            delivery.join(WAIT_SECONDS)


def said(event: str, **fields: object) -> str:
    """One line of the forwarder's own log."""
    return json.dumps({"event": event, **fields})
