"""What may wait for a later tick does so where there is much of it, and each tick takes what has waited longest.

Of thousands of running jobs hundreds take a step between two ticks. None of that is urgent, all of it has to be seen
to, and a tick that sees to everything at once makes those wait that fail. Where there is little, nothing waits.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice

from advisor.store.records import AttemptKey

AT_ONCE = 50
SHARE = 10  # a tick takes this part of what waits, if that is more: what waits is taken in about as many ticks


@dataclass(slots=True)
class OldestFirst:
    _waiting: dict[AttemptKey, None] = field(default_factory=dict)  # who came first stands first

    def take(self, wanting: Collection[AttemptKey]) -> frozenset[AttemptKey]:
        """Whose turn it is of those that want one now. Who wants none any more has lost its place."""
        wanted = frozenset(wanting)
        self._waiting = {key: None for key in self._waiting if key in wanted} | dict.fromkeys(wanting)
        taken = frozenset(islice(self._waiting, max(AT_ONCE, -(-len(self._waiting) // SHARE))))
        for key in taken:
            del self._waiting[key]
        return taken
