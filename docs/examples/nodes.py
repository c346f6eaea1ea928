"""The nodes with the worst history, and what the worst did: python docs/examples/nodes.py [SOCKET]"""

import sys

from advisor.client import connect

with connect(*sys.argv[1:]) as advisor:
    worst = sorted(advisor.nodes(limit=500), key=lambda node: -node.score)[:5]
    for node in worst:
        print(f"{node.cluster}/{node.name}  score {node.score:.2f}  last implicated {node.last_implicated_at}")
    if worst:
        for event in advisor.node_history(worst[0].cluster, worst[0].name, limit=10):
            print(f"  {event.at:%Y-%m-%d %H:%M}  {event.text}")
