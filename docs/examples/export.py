"""What agents did, as a CSV file: python docs/examples/export.py FILE.csv [SOCKET]. With .jsonl: all of it, as JSON."""

import sys

from advisor.client import ClientError, connect

try:
    with connect(*sys.argv[2:]) as advisor:
        rows = advisor.actions().to_file(sys.argv[1])
except ClientError as error:
    raise SystemExit(f"export: {error}") from None
print(f"{rows} rows in {sys.argv[1]}")
