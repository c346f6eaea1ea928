"""Whether a failure at start-up is certain to come again, so that no retry is worth its queue time.

The boundary: only what the job itself brought along can be certain. A stop needs three things. The attempt took no
step. The words are about the job's arguments, build or input, never about what a machine, a mount, a port or the
network may lack for an hour. And nothing says that only some of the nodes met it: one node of several, a node that the
evidence blames, or another explanation of the infrastructure's kind make it one confirmation retry instead.

A quota that is exceeded, and a file system that a checkpoint does not fit on, are certain after steps too.
"""

import re
from collections.abc import Sequence

from advisor.core.everywhere import RIVAL, at_start, everywhere, on_several, same_on_all_nodes
from advisor.core.hypotheses import Scored
from advisor.core.model import Snapshot
from advisor.core.places_of_signals import PlaceMap, ranks_of
from advisor.core.words import Category, Role

CONFIGURATION = "startup.configuration"
# A full file system, and what the other writers of a checkpoint say when it fills up under them.
_FULL, _UNSAVED = "storage.no_space", "storage.checkpoint_save_failed"
# How a machine and the program fit together: on one node that node may be behind, on several the program is ahead.
_FIT = frozenset({"cuda.driver_too_old"})
_MAY_PASS = frozenset({Category.GPU_HARDWARE, Category.NODE_HARDWARE, Category.INTERCONNECT, Category.STORAGE})
# A sum that does not come out may be one over devices, of which a machine lost some.
_COUNTED = re.compile(r"(?i)gpu|device|\b(?:visible|available|found|detected|hosts?|nodes?)\b")
_WORLD = re.compile(r"(?i)world[ _-]?size\D{0,6}(\d{1,7})")
# A relative path lies in the folder that the program was read from: that folder is there. An absolute one may be on
# another mount, and what a run itself writes another rank may not have written yet.
_MISSING_INPUT = re.compile(
    r"""(?i)(?:No such file or directory: ['"]|\bfile ['"]?)(?P<path>[\w.-][\w./-]{0,200}\.\w{1,10})['"]?"""
    r"""(?:$| (?:is )?not found| does(?: not|n't) exist)"""
)
_WRITTEN = re.compile(
    r"(?i)ckpt|checkpoint|cache|index|indices|idx|\.npy|tmp|temp|out|log|result|lock|run|exp|save|rendezvous|\.pid|\.sock"
)


def certain(snapshot: Snapshot, groups: Sequence[Sequence[Scored]], places: PlaceMap, nodes: Sequence[str]) -> bool:
    """The best hypothesis (`groups[0]`, blaming `nodes`) holds for every other try of the same job."""
    group = groups[0]
    rule = group[0].rule
    if rule.certain_always or (rule.id == _FULL and not nodes and _save_does_not_fit(snapshot, groups, places)):
        return True
    if nodes or snapshot.progress.first_step is not None or not everywhere(snapshot, group, places):
        return False
    if not at_start(snapshot, group[0].signal):
        return False  # it may have taken steps that it did not print in a way we know
    if any(other[0].rule.category in _MAY_PASS - {rule.category} and other[0].score >= RIVAL for other in groups[1:]):
        return False
    if rule.id == CONFIGURATION:
        return _configured(snapshot, group[0])
    if rule.id in _FIT:
        return on_several(snapshot, group, places)
    return rule.certain or same_on_all_nodes(snapshot, groups, places) or _input_missing(snapshot, groups)


def _configured(snapshot: Snapshot, lead: Scored) -> bool:
    """The sum is one over arguments alone, and over all ranks that the job was given."""
    message = lead.signal.fields.get("message", "")
    world = snapshot.attempt.world_size
    told = _WORLD.search(message)
    if told is not None and world is not None and int(told[1]) != world:
        return False  # fewer ranks than asked for: somebody is missing
    return not _COUNTED.search(message)


def _save_does_not_fit(snapshot: Snapshot, groups: Sequence[Sequence[Scored]], places: PlaceMap) -> bool:
    """A checkpoint of several ranks filled the place that it goes to, as the next one will: not a disk of one node of
    several, where that node may be behind."""
    unsaved = any(item.rule.id == _UNSAVED for group in groups for item in group)
    full = {rank for group in groups for item in group if item.rule.id == _FULL for rank in ranks_of(item.signal)}
    return unsaved and len(full) >= 2 and everywhere(snapshot, groups[0], places)


def _input_missing(snapshot: Snapshot, groups: Sequence[Sequence[Scored]]) -> bool:
    """Every rank that spoke, and at least two, miss the same file of the job's own folder."""
    lead = groups[0][0]
    message = lead.signal.fields.get("message", "")
    found = _MISSING_INPUT.search(message)
    if lead.rule.category is not Category.APPLICATION or found is None or _WRITTEN.search(found["path"]):
        return False
    failed = [item.signal for group in groups for item in group if item.rule.role is Role.INITIATING]
    alike = {rank for each in failed if each.fields.get("message", "") == message for rank in ranks_of(each)}
    return len(alike) >= 2 and {rank for each in failed for rank in ranks_of(each)} <= alike
