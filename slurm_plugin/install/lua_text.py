"""job_submit.lua as text, with our block in it and without. Pure.

Slurm calls the two global functions that the file leaves behind, so the block stands at its end: before a `return` at
the top level, if the file ends with one, since nothing may follow that. It wraps the site's own function.
"""

import re

from slurm_plugin.install.conf_text import TextError

BEGIN = "-- >>> recovery-advisor (taken out by: advisor slurm uninstall-hooks)"
END = "-- <<< recovery-advisor\n"
_NO_NEWLINE = " [the file had no last newline]"
_RETURN = re.compile(r"return\b[^\n]*\n?", re.ASCII)

# What a site gets that had no job_submit.lua.
SKELETON = """\
-- Made by `advisor slurm install-hooks`; taken away with the block below unless you add something of your own.
function slurm_job_submit(job_desc, part_list, submit_uid)
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
"""


def block(fragment: str, *, isolated_file: str, tag: bool, exclude_isolated: str, no_newline: bool = False) -> str:
    """`fragment` is where our file lies. A file that cannot be loaded changes nothing but one line in the log."""
    return (
        f"{BEGIN}{_NO_NEWLINE if no_newline else ''}\n"
        "do\n"
        f'  local loaded, wrap = pcall(dofile, "{fragment}")\n'
        "  if loaded then\n"
        "    slurm_job_submit = wrap(slurm_job_submit, {\n"
        f'      tag = {str(tag).lower()}, exclude_isolated = "{exclude_isolated}",\n'
        f'      isolated_file = "{isolated_file}",\n'
        "    })\n"
        "  else\n"
        '    slurm.log_error("recovery-advisor: %s", tostring(wrap))\n'
        "  end\n"
        "end\n"
        f"{END}"
    )


def added(text: str, fragment: str, *, isolated_file: str, tag: bool, exclude_isolated: str) -> str:
    """The text with our block; `text` must not hold one yet."""
    missing = bool(text) and not text.endswith("\n")
    ours = block(fragment, isolated_file=isolated_file, tag=tag, exclude_isolated=exclude_isolated, no_newline=missing)
    lines = (text + "\n" if missing else text).splitlines(keepends=True)
    last = next((at for at in range(len(lines) - 1, -1, -1) if _says_something(lines[at])), None)
    at = last if last is not None and _RETURN.fullmatch(lines[last]) else len(lines)
    return "".join([*lines[:at], ours, *lines[at:]])


def removed(text: str) -> str:
    """The text without our block, byte by byte what it was. Raises TextError for a block that has no end."""
    lines = text.splitlines(keepends=True)
    first = next((at for at, line in enumerate(lines) if line.startswith(BEGIN)), None)
    if first is None:
        return text
    last = next((at for at in range(first, len(lines)) if lines[at].rstrip("\n") == END.rstrip("\n")), None)
    if last is None:
        raise TextError(first + 1, "our block, which begins here, has no end: take it out by hand")
    rest = "".join([*lines[:first], *lines[last + 1 :]])
    return rest.removesuffix("\n") if _NO_NEWLINE in lines[first] else rest


def _says_something(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith("--")
