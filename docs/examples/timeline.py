"""A job's life across its attempts: python docs/examples/timeline.py JOB_ID [SOCKET]"""

import sys

from advisor.client import connect

with connect(*sys.argv[2:]) as advisor:
    found = advisor.timeline(sys.argv[1])
    print(f"{len(found.attempts)} attempts; the last one is {found.attempts[-1].state}")
    for event in found.events:
        print(f"{event.at:%Y-%m-%d %H:%M:%S}  #{event.attempt}  {event.text}")
