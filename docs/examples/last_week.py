"""What was decided in the last week, newest first: python docs/examples/last_week.py [SOCKET]"""

import sys
from datetime import timedelta

from advisor.client import connect

with connect(*sys.argv[1:]) as advisor:
    for decision in advisor.decisions(since=timedelta(days=7), limit=20):
        without = f" without {', '.join(decision.excluded_nodes)}" if decision.excluded_nodes else ""
        print(f"{decision.at:%Y-%m-%d %H:%M} job {decision.job_id} of {decision.user}: {decision.action}{without}")
        print(f"    {decision.category}, {decision.reason}; {decision.status or 'pending'}")
