"""Run a command in a Debian in a folder: `python -m tests.newer_slurm.enter FOLDER -- COMMAND...`, inside `unshare`.

The folder becomes `/`, with /proc, /sys and /dev of this machine; whatever is mounted ends with the mount namespace.
"""

import os
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = {
    "HOME": "/root",
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PIP_CERT": "/etc/ssl/certs/ca-certificates.crt",
    "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
}


def main(folder: Path, argv: list[str]) -> None:
    for mount in (
        ("--bind", str(folder), str(folder)),  # so that / is a mount point in there
        ("-t", "proc", "proc", f"{folder}/proc"),
        ("--rbind", "/sys", f"{folder}/sys"),
        ("--rbind", "/dev", f"{folder}/dev"),
        ("-t", "tmpfs", "tmpfs", f"{folder}/tmp"),
    ):
        subprocess.run(["mount", *mount], check=True)
    os.chroot(folder)
    os.chdir("/project" if Path("/project").is_dir() else "/")
    program = next((path for path in (Path(argv[0]),) if path.is_absolute()), Path("/usr/bin") / argv[0])
    os.execve(program, argv, ENVIRONMENT)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3:])
