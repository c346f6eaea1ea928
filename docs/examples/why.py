"""Why was that decided? python docs/examples/why.py DECISION_ID [SOCKET]: the beginning of an id is enough."""

import sys

from advisor.client import connect

with connect(*sys.argv[2:]) as advisor:
    decision = advisor.decision(sys.argv[1])
    print(f"job {decision.job_id}, attempt {decision.attempt}: {decision.action} ({decision.reason})")
    print(decision.explanation)
    for item in decision.evidence:
        when = f"{item.at:%H:%M:%S}" if item.at else "        "
        print(f"  {when}  {item.trust:<9} {item.role:<10} {item.node}  {item.text[:100]}")
    print("root cause:", decision.analysis["attribution"]["root_cause"])
