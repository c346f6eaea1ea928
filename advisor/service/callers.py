"""Who calls, how that is known, and what he may see.

A caller is found once per connection or per call and handed to whatever serves it: over gRPC, over HTTP, from a Unix
socket or from afar. Which role may call what stands in `advisor.service.access`, and nowhere else.
"""

import asyncio
import contextlib
import os
import pwd
from dataclasses import dataclass
from enum import Flag, StrEnum, auto

from advisor.ports import Clock

NAMES_KEPT_SECONDS = 30.0


class Role(Flag):
    """What somebody may do. `granted` adds the lesser roles to a greater one; AGENT stands beside them all."""

    NONE = 0
    USER = auto()  # sees his own jobs
    VIEWER = auto()  # sees all jobs, but the text of their logs only for his own
    AGENT = auto()  # reports what the scheduler shows and hears advice
    OPERATOR = auto()  # sees everything; vetoes, pauses, sets to monitor
    ADMIN = auto()  # also decides where the advisor may act by itself


_LESSER = {
    Role.VIEWER: Role.USER,
    Role.OPERATOR: Role.USER | Role.VIEWER,
    Role.ADMIN: Role.USER | Role.VIEWER | Role.OPERATOR,
}


def granted(roles: Role) -> Role:
    """The roles with all lesser ones that they include."""
    for role in roles:
        roles |= _LESSER.get(role, Role.NONE)
    return roles


class Proof(StrEnum):
    """How it is known who calls."""

    NOTHING = "nothing"
    KERNEL = "unix socket"
    CERTIFICATE = "certificate"
    TOKEN = "token"  # noqa: S105 -- a kind of proof, not one
    OIDC = "oidc"
    PAGE = "dashboard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody who calls.

    `name` is the account, as it stands in audit rows; a job of that user is his own. `credential` is the certificate's
    subject, the token's name or the like, never a secret. `peer` is the address he calls from, "" on this host.
    """

    name: str
    roles: Role
    proof: Proof = Proof.KERNEL
    uid: int | None = None
    credential: str = ""
    peer: str = ""

    @property
    def origin(self) -> str:
        """From where and by what he was known, for the audit: `unix socket`, `token deploy-bot from 10.1.2.3`."""
        known_by = f"{self.proof} {self.credential}" if self.credential else str(self.proof)
        return f"{known_by} from {self.peer}" if self.peer else known_by

    @property
    def sees_all_jobs(self) -> bool:
        """Whether decisions, incidents and attempts of all users are shown; otherwise those of his own jobs."""
        return bool(self.roles & Role.VIEWER)

    def may_read_text_of(self, user: str) -> bool:
        """Whether text from the logs of that user's jobs may be shown: it may hold what only its owner should see."""
        return bool(self.roles & Role.OPERATOR) or (bool(self.roles & Role.USER) and self.name == user != "")


NOBODY = Caller(name="nobody", roles=Role.NONE, proof=Proof.NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Which accounts of this host have which role. With `own_jobs` every account may look at its own jobs."""

    agents: tuple[str, ...] = ()
    viewers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    own_jobs: bool = False


class Callers:
    """Uid → caller. Account names are looked up again after a while: directory services come and go."""

    def __init__(self, accounts: Accounts, clock: Clock) -> None:
        self._accounts = accounts
        self._clock = clock
        self._known: dict[int, tuple[float, Caller]] = {}
        self._staff = frozenset({0, os.geteuid()})

    async def prepare(self) -> None:
        """Learn who is of the staff before anybody calls."""
        await asyncio.to_thread(self._look_up, 0)

    def is_staff(self, uid: int | None) -> bool:
        """Root, ourselves, and the accounts that the configuration names: whoever else comes, they find room. As of
        the last look at the accounts, since nobody can wait for a directory service where this is asked.
        """
        return uid in self._staff

    async def find(self, uid: int) -> Caller:
        kept = self._known.get(uid)
        if kept is not None and self._clock.monotonic() - kept[0] < NAMES_KEPT_SECONDS:
            return kept[1]
        caller = await asyncio.to_thread(self._look_up, uid)
        if len(self._known) > 1024:
            self._known.clear()
        self._known[uid] = (self._clock.monotonic(), caller)
        return caller

    def _look_up(self, uid: int) -> Caller:
        accounts, roles = self._accounts, Role.NONE
        staff = {0, os.geteuid()}
        if uid in staff:
            roles |= Role.ADMIN
        for names, role in (
            (accounts.admins, Role.ADMIN),
            (accounts.operators, Role.OPERATOR),
            (accounts.viewers, Role.VIEWER),
            (accounts.agents, Role.AGENT),
        ):
            found = _uids(names)
            staff |= found
            if uid in found:
                roles |= role
        self._staff = frozenset(staff)
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = f"uid {uid}"
        else:
            if accounts.own_jobs:
                roles |= Role.USER
        return Caller(uid=uid, name=name, roles=granted(roles))


def _uids(names: tuple[str, ...]) -> frozenset[int]:
    found = set()
    for name in names:
        with contextlib.suppress(KeyError):
            found.add(pwd.getpwnam(name).pw_uid)
    return frozenset(found)
