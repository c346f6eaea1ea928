"""Slurm's accounting on this host: MariaDB and slurmdbd from Debian, in the cluster's own folder, as users of theirs.

Started before slurmctld (`Cluster.before_controller`), ended by the handles held here. Debian's packages start nothing
by themselves in a container; nothing of the host's is touched.
"""

import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from advisor.demo.cluster import SLURM_USER, Cluster, ClusterError, Shape
from advisor.demo.namespace import HOST_NAME, require
from advisor.demo.waiting import wait_for
from advisor.demo.world import running_cluster

DATABASE_USER = "mysql"


class Accounting:
    """Both daemons of one cluster. `stop_slurmdbd` and `start_slurmdbd` let a test take it away for a while."""

    def __init__(self) -> None:
        self.port = _free_port()
        self._word = secrets.token_hex(16)
        self._root = Path()
        self._cluster: Cluster | None = None
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def settings(self) -> tuple[str, ...]:
        """Lines of slurm.conf."""
        return (
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={self.port}",
            "AccountingStoreFlags=job_comment",
        )

    def start(self, cluster: Cluster) -> None:
        """MariaDB, slurmdbd, and this cluster in its books."""
        for name in ("mariadbd", "mariadb-install-db", "slurmdbd"):
            if shutil.which(name, path="/usr/sbin:/usr/bin") is None:
                raise ClusterError(f"{name} is not installed. Run: make test-packages")
        self._cluster, self._root = cluster, cluster.root / "accounting"
        self._root.mkdir(mode=0o755)
        data = self._root / "data"
        data.mkdir(mode=0o700)
        shutil.chown(data, DATABASE_USER, DATABASE_USER)
        with cluster.conf.open("a", encoding="utf-8") as conf:
            conf.write(f"AccountingStoragePass={cluster.root}/run/munge.socket\n")
        init = self._root / "init.sql"
        init.write_text(
            f"CREATE USER slurm@localhost IDENTIFIED BY '{self._word}';\nGRANT ALL ON *.* TO slurm@localhost;\n",
            encoding="ascii",
        )
        init.chmod(0o600)
        shutil.chown(init, DATABASE_USER, DATABASE_USER)
        prepared = subprocess.run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={data}", f"--user={DATABASE_USER}", "--skip-test-db"],
            capture_output=True,
            check=False,
            timeout=60,
        )
        if prepared.returncode != 0:
            raise ClusterError(f"mariadb-install-db: {prepared.stderr.decode(errors='replace')[-500:]}")
        self._spawn(
            "mariadbd",
            *("mariadbd", "--no-defaults", f"--datadir={data}", f"--user={DATABASE_USER}", "--skip-networking"),
            *(f"--socket={self._socket}", f"--pid-file={data}/pid", f"--init-file={init}"),
            *("--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=2"),
        )
        wait_for("MariaDB's socket", self._socket.is_socket, seconds=30, every_seconds=0.05)
        self._configure()
        self.start_slurmdbd()
        cluster.must("sacctmgr", "-i", "add", "cluster", "demo")

    def start_slurmdbd(self) -> None:
        self._spawn(
            "slurmdbd", "setpriv", f"--reuid={SLURM_USER}", f"--regid={SLURM_USER}", "--clear-groups", "slurmdbd", "-D"
        )
        wait_for("slurmdbd", lambda: _listens(self.port), seconds=30, every_seconds=0.05)

    def stop_slurmdbd(self) -> None:
        self._end("slurmdbd")

    def stop(self) -> None:
        for name in reversed(list(self._daemons)):
            self._end(name)

    @property
    def _socket(self) -> Path:
        return self._root / "data" / "s"

    def _configure(self) -> None:
        assert self._cluster is not None
        root = self._cluster.root
        conf = root / "etc" / "slurmdbd.conf"
        conf.write_text(
            "\n".join(
                (
                    "AuthType=auth/munge",
                    f"AuthInfo=socket={root}/run/munge.socket",
                    f"DbdHost={HOST_NAME}",
                    "DbdAddr=127.0.0.1",
                    f"DbdPort={self.port}",
                    f"SlurmUser={SLURM_USER}",
                    f"LogFile={root}/log/ctld/slurmdbd.log",
                    f"PidFile={root}/run/ctld/slurmdbd.pid",
                    "StorageType=accounting_storage/mysql",
                    "StorageHost=localhost",
                    f"StorageUser={SLURM_USER}",
                    f"StoragePass={self._word}",
                    "StorageLoc=slurm_acct_db",
                )
            )
            + "\n",
            encoding="ascii",
        )
        conf.chmod(0o600)
        shutil.chown(conf, SLURM_USER, SLURM_USER)
        (self._root / "data").chmod(0o711)  # its socket is for slurmdbd too

    def _spawn(self, name: str, *argv: str) -> None:
        assert self._cluster is not None
        environment = {**self._cluster.environment, "MYSQL_UNIX_PORT": str(self._socket)}
        with (self._root / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                argv,
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _end(self, name: str) -> None:
        process = self._daemons.pop(name, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def running_with_accounting(shape: Shape) -> Iterator[tuple[Cluster, Accounting]]:
    """A cluster whose jobs are accounted for."""
    accounting = Accounting()
    chosen = replace(shape, extra=(*shape.extra, *accounting.settings()))
    try:
        with running_cluster(chosen, before_controller=accounting.start, runtime=require().apart("books")) as (
            cluster,
            _,
        ):
            yield cluster, accounting
    finally:
        accounting.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
