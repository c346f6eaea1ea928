"""What one process knows of what is stored, so as not to read, compare or write all of it again."""

from dataclasses import dataclass, field

from advisor.store.commit import KnownContent
from advisor.store.due import SettingsBook
from advisor.store.known_jobs import JobBook
from advisor.store.node_book import NodeBook
from advisor.store.node_states import node_rows
from advisor.store.remembered import Remembered

_CLUSTERS_MAX = 100


@dataclass(slots=True)
class Memory:
    """Of one incarnation of the store: none of it holds in another."""

    attempts: Remembered = field(default_factory=Remembered)
    settings: SettingsBook = field(default_factory=SettingsBook)
    content: KnownContent = field(default_factory=KnownContent)
    _reported: dict[str, tuple[NodeBook, JobBook]] = field(default_factory=dict)

    def reported(self, cluster: str) -> tuple[NodeBook, JobBook]:
        """What a cluster's reports are compared with."""
        if len(self._reported) > _CLUSTERS_MAX:
            self._reported.clear()
        return self._reported.setdefault(cluster, (node_rows(), JobBook()))
