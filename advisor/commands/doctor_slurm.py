"""What `advisor doctor` says of Slurm's accounting: asked for real, and harmless where there is none."""

from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from connectors.scheduler.slurm_cli import SlurmCli

NOT_NEEDED = "none here: what Slurm has forgotten while the agent or this service was down stays unknown"
TO_DO = "slurmdbd and its database; restarts do without it, `bundle` of a past job and the filling of gaps do not"


async def look_at_accounting(slurm: SlurmCli) -> tuple[bool, str, str]:
    """(well, what was found, what to do)."""
    answer = await slurm.accounting()
    if not isinstance(answer, Unavailable):
        return True, answer, ""
    if answer.reason is UnavailableReason.NOT_CONFIGURED:
        return True, NOT_NEEDED, ""
    return False, f"{answer.reason}: {answer.detail}", TO_DO
