"""A waiting job that cannot start because of exclusions of ours loses the least certain of them, as few as will do.

The watchdog gives all of them back when nobody else does. While we live we know better: the mark holds our nodes most
certain first. Pure, standard library only. Nodes go down and are drained while a job waits, so what was affordable when
it was decided need not be so now.
"""

from dataclasses import dataclass, replace

from slurm_plugin import mark as marks
from slurm_plugin.mark import Mark
from slurm_plugin.records import JobRow
from slurm_plugin.terms import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """`dropped`: least certain first. `sure`: Slurm itself says so; else it rests on which nodes are up now."""

    update: Update
    dropped: tuple[str, ...]
    mark: Mark
    sure: bool
    why: str


def relief(row: JobRow, fitting: tuple[str, ...] | None, *, nodes_together: int = 0) -> Relief | None:
    """What to give back to this job, None for nothing. `fitting` and `nodes_together` as in `Limits`."""
    mark = marks.find(row.admin_comment) if row.state == "PENDING" and row.admin_comment else None
    if mark is None or row.excluded is None:
        return None
    ours = [node for node in mark.nodes if node in row.excluded]
    bad = row.reason == "BadConstraints"
    if not ours or (row.priority == 0 and not bad):
        return None
    wanted, dropped = max(row.nodes_wanted, nodes_together, 1), list[str]()
    others = set(row.excluded) - set(ours)
    if fitting is not None and len(set(fitting) - others - set(ours)) < wanted <= len(set(fitting) - others):
        kept = list(ours)
        while kept and len(set(fitting) - others - set(kept)) < wanted:
            dropped.append(kept.pop())
        # A node that is down or does not fit takes no room: dropping it has bought nothing.
        dropped = [node for node in dropped if node in fitting]
        why = f"{len(set(fitting) - others - set(ours))} of {wanted} nodes fit with our exclusions"
    elif bad and fitting is None:
        dropped, why = [ours[-1]], "Slurm says BadConstraints"
    elif bad and len(set(fitting or ()) - others) >= wanted:
        # Slurm counts nodes that are down as well: by its own word our list is too long, by our count it is not.
        dropped, why = [ours[-1]], "Slurm says BadConstraints"
    if not dropped:
        return None
    left = tuple(node for node in mark.nodes if node in ours and node not in dropped)
    inherited = tuple(node for node in mark.inherited if node in left)
    after = replace(mark, nodes=left, inherited=inherited, spared=tuple(dict.fromkeys((*mark.spared, *dropped))))
    comment = marks.merge(row.admin_comment, after)
    if comment is None:
        return None
    excluded = tuple(node for node in row.excluded if node not in dropped)
    return Relief(
        update=Update(excluded=excluded, admin_comment=comment), dropped=tuple(dropped), mark=mark, sure=bad, why=why
    )
