"""Which failures cost the most restarts, per user and category: python docs/examples/failures.py [SOCKET]

Needs pandas: pip install 'recovery-advisor[reports]'.
"""

import sys
from datetime import timedelta

from advisor.client import connect

with connect(*sys.argv[1:]) as advisor:
    frame = advisor.decisions(action="restart", since=timedelta(days=30)).to_pandas()

print(frame.groupby(["user", "category"]).size().sort_values(ascending=False).head(20).to_string())
print("newest:", frame["at"].max())
