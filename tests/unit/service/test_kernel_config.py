"""Kernel sources in the configuration: what proves nothing is refused, with its key."""

from pathlib import Path

import pytest

from advisor.clock import SystemClock
from advisor.config import ConfigError, load
from advisor.configured import open_sources
from connectors.kernel.files import KernelFileLogs
from connectors.kernel.stores import KernelStoreLogs

LOKI = 'kind = "loki"\nurl = "http://x:1"\nselector = \'{source="kernel"}\'\n'
PROVED = 'transport = "_TRANSPORT=kernel"\nnode_label = "host"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "advisor.toml"
    path.write_text(f"[[kernel]]\n{text}\n")
    return path


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("", "path", "%n"),
        ('path = "/k/%n.log"\nurl = "http://x:1"', "url", "for a server"),
        (f'{LOKI}{PROVED}path = "/k/%n.log"', "path", "for files"),
        (LOKI, "transport", "_TRANSPORT=kernel"),
        (f'{LOKI}node_label = "host"\ntransport = "syslog_identifier=kernel"', "transport", "proves nothing"),
        (f'{LOKI}node_label = "host"\ntransport = "facility=0"', "transport", "proves nothing"),
        (f'{LOKI}transport = "transport=kernel"', "node_label", "must be given"),
        (f'kind = "victorialogs"\nurl = "http://x:1"\nselector = "*"\n{PROVED}', "selector", "in braces"),
        (f'kind = "victorialogs"\nselector = \'{{a="b"}}\'\n{PROVED}tenant = "hpc"', "tenant", "AccountID"),
        (f'{LOKI}{PROVED}token_file = "/t"\nuser = "a"', "token_file", "not both"),
    ],
)
def test_kernel_logs_that_cannot_be_used_are_refused_with_their_key(
    tmp_path: Path, text: str, key: str, message: str
) -> None:
    """Each problem names the key and says what to write."""
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), {})
    problems = caught.value.problems
    assert any(p.key == f"kernel[0].{key}" and message in p.message for p in problems), str(caught.value)


async def test_what_is_configured_is_opened(tmp_path: Path) -> None:
    """Files and stores side by side, each as what it is."""
    more = f"{LOKI}{PROVED}name = 'kernel-loki'\n[[kernel]]\npath = '/k/%n.log'\n"
    config = load(written(tmp_path, more), {}).config
    sources = open_sources(config, SystemClock())
    assert [type(source) for source in sources[1:]] == [KernelStoreLogs, KernelFileLogs]
    for source in sources:
        await source.close()
