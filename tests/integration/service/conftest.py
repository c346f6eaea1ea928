"""Before gRPC is loaded: its fork handlers only warn when Postgres is started beside its threads."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
