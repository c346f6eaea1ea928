"""A job's life across its attempts: python docs/examples/timeline.py JOB_ID [SOCKET]"""

import sys

from advisor.client import connect

with connect(*sys.argv[2:]) as advisor:
    found = advisor.timeline(sys.argv[1])
    print(f"{len(found.attempts)} attempts; the last one is {found.attempts[-1].state}")
    for event in found.events:
        attempt = f"#{event.attempt}" if event.attempt is not None else "  "
        print(f"{event.at:%Y-%m-%d %H:%M:%S}  {attempt}  {event.text}")
