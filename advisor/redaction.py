"""Taking names out of a bundle so that it can be shown to others, the same name always by the same stand-in.

Replaced: users, accounts, job names, hosts (also in Slurm's bracket form), IP and MAC addresses, mail addresses, what
looks like a credential, and the parts of absolute paths. Kept: what an analysis reads, such as file extensions, system
folders, installed packages (`site-packages/…`), device names, PCI addresses, ranks, steps and times.

Hosts that no fact names are also known by their place: before `kernel:` or `program[pid]:` in a system log, and where
Slurm names who failed. This is best effort on free text: a name that occurs nowhere in the facts of the job (a project
named in a message) is not known to be one. Look through a bundle before it leaves the house.
"""

import re
from collections.abc import Iterable

from advisor.core.hostlist import HostlistError, expand, fold, short

_KEPT_USERS = frozenset({"root", "nobody", "slurm", "daemon", "bin", "munge", "syslog"})
# Folder names that say what kind of place it is and nothing about whose.
_KEPT_PARTS = frozenset(
    [
        "bin",
        "boot",
        "cpu",
        "data",
        "dev",
        "etc",
        "gpfs",
        "home",
        "lib",
        "lib64",
        "local",
        "log",
        "lustre",
        "media",
        "mnt",
        "nfs",
        "opt",
        "proc",
        "root",
        "run",
        "sbin",
        "scratch",
        "shm",
        "share",
        "slurm",
        "spool",
        "srv",
        "sys",
        "tmp",
        "usr",
        "var",
        "work",
        "workspace",
        "site-packages",
        "dist-packages",
        "checkpoint",
        "checkpoints",
        "ckpt",
        "logs",
        "nvme",
        "infiniband",
    ]
)
_SYSTEM = re.compile(r"/(?:bin|boot|dev|etc|lib|lib64|proc|run|sbin|sys|usr)(?:/|$)")
_PACKAGES = re.compile(r"/(?:site-packages|dist-packages|lib/python3[^/]*)/")
_NUMBERED = re.compile(r"(?a:[A-Za-z][A-Za-z0-9_-]*?)(?=\d*$)")
# Prefixes that number other things than hosts; a cluster whose nodes are called like this is redacted by exact name.
_NOT_HOSTS = frozenset(
    [
        "cuda",
        "device",
        "epoch",
        "expert",
        "gpu",
        "iter",
        "iteration",
        "layer",
        "local",
        "rank",
        "stage",
        "step",
        "task",
        "worker",
    ]
)

# Where a line of a system log, of srun or of slurmstepd names a host. Words that stand there in other logs are none.
_NO_HOST = r"(?!(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL|localhost|kernel)\b)"
_STAMP = r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ][\d:]{8}(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
_HOST = r"[A-Za-z][A-Za-z0-9.-]{0,100}"
_PLACED = (
    rf"(?P<lead>^{_STAMP} |^srun: error: |^slurmstepd-)"
    rf"{_NO_HOST}(?P<placed>{_HOST})(?= kernel: | [\w./-]{{1,40}}\[\d+\]: |: tasks? \d|: error: )"
    rf"|(?P<step>\*\*\* (?:JOB|STEP) [\w.+]{{1,40}} ON )(?P<stepped>{_HOST})"
)

# Repetitions are bounded where a failed match would start over at the next character: logs are long and may be nasty.
_PATH = re.compile(r"(?<![\w./])/(?!/)(?:[^\s:'\"<>|,;()\[\]{}=*?`]+)")
_URL = re.compile(r"\b([a-z][a-z0-9+.-]{0,20})://[^\s'\"<>]+", re.IGNORECASE)
_MAIL = re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_IPV4 = re.compile(r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.])", re.ASCII)
_IPV6 = re.compile(
    r"(?<![\w:.])(?=[0-9a-f:]*\d)(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|(?:[0-9a-f]{1,4}:){1,6}(?::[0-9a-f]{1,4}){1,6})"
    r"(?![\w:])",
    re.IGNORECASE | re.ASCII,
)
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", re.IGNORECASE | re.ASCII)
_SECRET = re.compile(
    r"(?i)\b([a-z0-9_]{0,40}(?:api_?key|secret(?:_?key)?|token|password|passwd|credentials?)['\"]?\s*[=:]\s*|bearer\s+)"
    r"(?![\d.,]+(?:\s|$))['\"]?[^\s'\"]{6,}['\"]?"
)
_KEYLIKE = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,})\b")
_KEPT_ADDRESSES = frozenset({"127.0.0.1", "0.0.0.0", "255.255.255.255"})  # noqa: S104 - text, nothing binds to it


class Redactor:
    """One bundle's stand-ins. Equal inputs in equal order give equal stand-ins."""

    def __init__(self, *, hosts: Iterable[str] = (), users: Iterable[str] = (), words: Iterable[str] = ()) -> None:
        self._hosts: dict[str, str] = {}
        self._users: dict[str, str] = {}
        self._words: dict[str, str] = {}
        self._parts: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        for host in hosts:
            self.host(host)
        for user in users:
            self.user(user)
        for word in words:
            self.word(word)
        self._names = self._compile()

    def host(self, name: str) -> str:
        name = short(name)
        return self._hosts.setdefault(name, f"host{len(self._hosts) + 1:04d}") if name else ""

    def user(self, name: str) -> str:
        if not name or name in _KEPT_USERS:
            return name
        return self._users.setdefault(name, f"user{len(self._users) + 1}")

    def word(self, word: str) -> str:
        """A text of one user's that is no path: a job's name, an account."""
        return self._words.setdefault(word, f"name{len(self._words) + 1}") if word.strip() else word

    def path(self, path: str) -> str:
        """An absolute path, part by part; its extension and what is installed software stay."""
        if _SYSTEM.match(path):
            return path
        packages = _PACKAGES.search(path)
        kept = path[packages.start() :] if packages else ""
        own = path[: packages.start()] if packages else path
        return "/".join(self._part(part) for part in own.split("/")) + kept

    def file_name(self, name: str) -> str:
        """A log's name: a rank or node in it stays readable, the rest is a stand-in."""
        rank = re.search(r"(?:^|[._-])(rank[._-]?\d{1,7})(?=[._-]|$)", name, re.IGNORECASE)
        if rank:
            return f"{rank[1]}.log"
        node = next(
            (node for node in self._hosts if re.search(rf"(?:^|[._-]){re.escape(node)}(?=[._-]|$)", name)), None
        )
        return f"{self._hosts[node]}.log" if node else self._part(name)

    def data(self, data: bytes) -> bytes:
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def text(self, text: str) -> str:
        text = _KEYLIKE.sub("REDACTED", _SECRET.sub(r"\1REDACTED", text))
        text = _URL.sub(r"\1://redacted", text)
        text = _MAIL.sub("mail@redacted", text)
        text = _PATH.sub(lambda found: self._path_in_text(found[0]), text)
        text = _MAC.sub(lambda found: self._address(found[0].lower(), "02:00:00:00:{0:02x}:{1:02x}"), text)
        text = _IPV4.sub(lambda found: self._address(found[0], "10.0.{0}.{1}"), text)
        text = _IPV6.sub(lambda found: self._address(found[0].lower(), "fd00::{0:x}:{1:x}"), text)
        return self._names.sub(self._known, text)

    def _path_in_text(self, path: str) -> str:
        bare = path.rstrip(".!")  # the end of a sentence is not the end of a path
        return self.path(bare) + path[len(bare) :]

    def _part(self, part: str) -> str:
        if not part or part in _KEPT_PARTS or part.isdigit():
            return part
        if part in self._users:
            return self._users[part]
        stem, dot, extension = part.rpartition(".")
        if not dot or not stem or not re.fullmatch(r"[A-Za-z0-9_]{1,8}", extension):
            stem, dot, extension = part, "", ""
        return self._parts.setdefault(stem, f"part{len(self._parts) + 1}") + dot + extension

    def _address(self, address: str, form: str) -> str:
        if address in _KEPT_ADDRESSES:
            return address
        number = len(self._addresses) + 1
        return self._addresses.setdefault(address, form.format(number >> 8 & 0xFF, number & 0xFF))

    def _compile(self) -> re.Pattern[str]:
        """One pattern for all names, so that no stand-in is taken for a name and replaced again.

        Hosts that no fact names are found by the family of those that one does: `node7` where `node1` is known. A
        host's domain goes with it; a single label may as well be a file's extension.
        """
        known = sorted((*self._hosts, *self._users, *self._words), key=len, reverse=True)
        found = {match[0] for name in self._hosts if (match := _NUMBERED.match(name)) and match[0] != name}
        families = sorted((p for p in found if p.lower().rstrip("-_") not in _NOT_HOSTS), key=len, reverse=True)
        names = "|".join(map(re.escape, known)) or r"(?!)"
        numbered = rf"(?:{'|'.join(map(re.escape, families))})(?:[0-9]+|\[[0-9,-]{{1,400}}\])" if families else r"(?!)"
        return re.compile(
            rf"{_PLACED}|(?<![\w-])(?:(?P<known>{names})|(?P<host>{numbered}))(?P<domain>(?:\.[A-Za-z][\w-]*){{2,}})?(?![\w-])",
            re.MULTILINE,
        )

    def _known(self, found: re.Match[str]) -> str:
        for lead, host in (("lead", "placed"), ("step", "stepped")):
            if found[host] is not None:
                return found[lead] + self._numbered(found[host])
        name, domain = found["known"], found["domain"] or ""
        if name is None:
            return self._numbered(found["host"])
        if name in self._hosts:
            return self._hosts[name]
        return (self._users.get(name) or self._words[name]) + domain

    def _numbered(self, text: str) -> str:
        if "[" not in text:
            return self.host(text)
        try:
            return fold(self.host(name) for name in expand(text))
        except HostlistError:
            return "host[redacted]"
