"""What counts of a kernel's log: the kernel's own words, and not the names that users gave to what it speaks of."""

from datetime import UTC, datetime

import pytest

from advisor.core.rules import Rule
from advisor.core.scan import FileContext, FileState, Scanner
from advisor.core.words import Role, Trust
from advisor.rules.loader import load_rules

RULES = load_rules(())
SCANNER = Scanner(RULES)
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus."
HEADS = (
    "2026-11-29T03:00:01.123456+00:00 node2 kernel: [ 1234.000001] ",
    "Nov 29 03:00:01 node2 kernel: ",
    "",
    "2026-11-29T03:00:01.123456+0000 kernel: ",
    "node2 kernel: <4>[ 1234.000001][  T1234567] ",
    "[ 1234.000001] [    C12345] ",
)


def told(line: str) -> set[str]:
    """The rules that a line of node2's kernel log makes signals by."""
    context = FileContext(source="kernel", trust=Trust.KERNEL, file="/var/log/kernel/node2.log", node="node2")
    now = datetime(2026, 11, 29, 3, 0, 5, tzinfo=UTC)
    found = SCANNER.scan(context, FileState(), f"{line}\n".encode(), fresh=True, final=True, seen_at=now)
    return {signal.rule for signal in found.signals}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    ("message", "rules"),
    [
        (f"a.out[55]: segfault at 0 ip 00007f00 sp 00007ff0 error 4 in {XID}[55d0c000+1000]", {"kernel.segfault"}),
        (f"traps: a.out[55] trap invalid opcode ip:401116 sp:7ff0 error:0 in {XID}[401000+1000]", set()),
        ("EDAC UE[55]: segfault at 0 ip 00007f00 sp 00007ff0 error 4 in a.out[55d0c000+1000]", {"kernel.segfault"}),
        (r"EDAC UE\x01\x01\x01\x01\x01\x01\x01\x01[55]: segfault at 0 ip 0 sp 0 error 4", {"kernel.segfault"}),
        ("traps: EDAC UE[55] general protection fault ip:0 sp:0 error:0 in a.out[401000+1000]", set()),
        ("EDAC UE invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0", set()),
        ("EDAC UE: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL)", set()),
        ("Oops: 0000 [#1][55] is installing handlers", set()),
        ("CPU: 3 PID: 55 Comm: EDAC UE Not tainted 6.1.0 #1", set()),
        ("hfi1 Link down[55]: segfault at 0 ip 00007f00 sp 00007ff0 error 4", {"kernel.segfault"}),
        ("mmfs: expelled (55): drop_caches: 3", set()),
        ("INFO: task EDAC UE:55 blocked for more than 120 seconds.", {"kernel.hung_task"}),
        ("[     55]  1000    55     4096       10    40960        0             0 EDAC UE", set()),
        ("mmap: EDAC UE (55): VmData 8192 exceed data ulimit 4096.", set()),
        ("warning: `EDAC UE' uses 32-bit capabilities (legacy support in use)", set()),
        (f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/{XID},task=a", {"kernel.oom_cgroup"}),
        ("Memory cgroup stats for /user.slice/mce: Uncorrected hardware memory error:", set()),
        ("Memory cgroup out of memory: Killed process 55 (EDAC UE) total-vm:8kB", {"kernel.oom_cgroup"}),
        (f'overlayfs: unrecognized mount option "{XID}" or missing value', set()),
        (f"tmpfs: Unknown parameter '{XID}'", set()),
    ],
)
def test_names_that_users_choose_are_no_word_of_the_kernel(head: str, message: str, rules: set[str]) -> None:
    """A program, file, control group or mount option that is called like a failure blames no node."""
    assert told(head + message) == rules


SPOKEN_OF = [rule for rule in RULES.rules if rule.id.startswith("kernel.") and rule.role is not Role.BENIGN]


@pytest.mark.parametrize("rule", SPOKEN_OF, ids=lambda rule: rule.id)
def test_the_kernels_own_words_count(rule: Rule) -> None:
    """Each example of each kernel rule is found in a kernel's log, wherever the driver's name ends."""
    for line in rule.positive:
        assert told(line), line


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        (XID, "kernel.xid"),
        ("pcieport 0000:80:01.1: DPC: containment event, status:0x1f01 source:0x0000", "kernel.aer_fatal"),
        ("pcieport 0000:00:1c.0: pciehp: Slot(4): Link Down", "kernel.aer_fatal"),
        ("sd 0:0:0:0: [sda] tag#0 Sense Key : Medium Error [current]", "kernel.nvme"),
        ("EXT4-fs (sda1): Remounting filesystem read-only", "kernel.nvme"),
        ("{1}[Hardware Error]: event severity: fatal", "kernel.mce"),
        ("mlx5_core 0000:3b:00.0: Port module event[error]: module 0, Cable error, Bus stuck", "kernel.link_down"),
        ("mce: CPU3: Package temperature above threshold, cpu clock throttled (total events = 1)", "kernel.throttled"),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=2", "kernel.amdgpu"),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", "kernel.edac_uncorrected"),
        ("libceph: osd0 (1)10.0.0.5:6801 socket closed (con state OPEN)", "kernel.lustre"),
        ("LustreError: 4242:0:(import.c:1331:ptlrpc_connect_interpret()) timed out", "kernel.lustre"),
        ("Out of memory: Killed process 55 (python3) total-vm:8kB", "kernel.oom_global"),
    ],
)
@pytest.mark.parametrize("head", HEADS)
def test_a_driver_speaks_behind_its_name(head: str, message: str, rule: str) -> None:
    """Names of drivers and devices before what a rule finds are the kernel's own."""
    assert told(head + message) == {rule}
