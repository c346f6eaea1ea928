"""Whose words a kernel record's are. Pure.

That the kernel wrote a line does not make all of it the kernel's word: it names programs, files, control groups and
mount options, and any user chooses those. A program called `NVRM: Xid (PCI:0000:3b:00): 79` that crashes stands in the
log of the kernel as `a.out[7]: segfault at … in NVRM: Xid (PCI:0000:3b:00): 79[…]`. So what a rule finds counts only
where the kernel itself begins to speak: at the start of the message, or behind names of drivers and devices. And a
message that begins with a program's name is about that program, whatever it is called.
"""

import re

# What stands before the message: the program where no host is named (journalctl --no-hostname), priority, the kernel's
# clock, and the thread or processor that spoke (CONFIG_PRINTK_CALLER).
_HEAD = re.compile(r"(?:<\d{1,3}>|\[ *\d{1,10}\.\d{1,6}\]|\[ *[TC]\d{1,10}\]|kernel:| )*")
# What a process calls itself: 15 bytes of its choice, of which the kernel escapes what is not printable.
_NAME = r"(?:\\x[0-9a-f]{2}|.){1,15}"
# Messages that name a program where a rule would look, and the one rule that each is for.
_ONLY_RULES = (
    (re.compile(rf"{_NAME}\[\d{{1,10}}\]: segfault at [0-9a-f]+ ip "), "kernel.segfault"),
    (re.compile(rf"INFO: task {_NAME}:\d{{1,10}} blocked for more than "), "kernel.hung_task"),
)
_OF_A_PROGRAM = re.compile(
    rf"(?:traps: |mmap: |show_signal\w*: )?{_NAME}"
    r"(?:\[\d{1,10}\]|/\d{1,10}[: ]| \(\d{1,10}\)(?=[: ]|$)|: page allocation (?:failure|stall)| invoked oom-killer\b)"
    r"|INFO: task |Modules linked in: |(?:CPU: \d{1,5} )?(?:UID: \d{1,10} )?PID: \d{1,10} "
)
# `pcieport 0000:80:01.1: `, `sd 0:0:0:0: [sda] tag#0 `, `{1}`: a few words without quotes, slashes or `=`.
_WORD = r"[\w.,:;#*+{}()\[\]-]"
_DRIVER = re.compile(rf"(?:{_WORD}{{1,60}} +){{0,6}}(?:{_WORD}{{0,60}}[}}\]])?")
_NAMES_A_PROGRAM = re.compile(r"\b[Cc]omm\b|\b[Pp]rocess\b")


def by_the_kernel(message: str, start: int, rule: str) -> bool:
    """Whether what `rule` found at `start` of a record's message is the kernel's own word."""
    head = _HEAD.match(message)
    if head is not None:
        message, start = message[head.end() :], max(0, start - head.end())
    for form, only in _ONLY_RULES:
        if form.match(message):
            return rule == only
    if _OF_A_PROGRAM.match(message):
        return False
    lead = message[:start]
    return _DRIVER.fullmatch(lead) is not None and _NAMES_A_PROGRAM.search(lead) is None
