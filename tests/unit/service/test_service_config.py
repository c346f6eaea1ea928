"""Keys below [service]: what is refused before anything listens."""

from pathlib import Path

import pytest

from advisor import config
from advisor.service_config import ListenSection, ServiceSection
from advisor.serving import address_of

TLS = 'certificate_file = "/c"\nkey_file = "/k"\n'
TOKENS = 'tokens_file = "/t"\n'
OIDC = """
[service.listen.oidc]
issuer = "https://idp"
audience = "advisor"
roles = [{value = "ops", role = "operator"}]
"""


def _problems(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "advisor.toml"
    path.write_text(text)
    with pytest.raises(config.ConfigError) as caught:
        config.load(path, {})
    return {problem.key: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize("address", ["127.0.0.1:8443", "[::1]:8443", "localhost:8443", "0.0.0.0:8443"])
@pytest.mark.parametrize("key", ["grpc", "http"])
def test_no_address_is_listened_on_without_tls_or_without_knowing_who_calls(
    tmp_path: Path, key: str, address: str
) -> None:
    """Loopback is no exception: on a shared host it tells nothing about who connects."""
    place = f'[service.listen]\n{key} = "{address}"\n'
    assert "without TLS" in _problems(tmp_path, place + TOKENS)[f"service.listen.{key}"]
    assert "without knowing who calls" in _problems(tmp_path, place + TLS)[f"service.listen.{key}"]
    path = tmp_path / "advisor.toml"
    for known_by in (TOKENS, OIDC):
        path.write_text(place + TLS + known_by)
        assert config.load(path, {}).config.service.listen.certificate_file == Path("/c")


@pytest.mark.parametrize(
    ("text", "key", "word"),
    [
        ("[service.listen]\n" + 'certificate_file = "/c"\n', "service.listen.key_file", "go together"),
        ('[service.listen]\ngrpc = "host:99999"\n' + TLS + TOKENS, "service.listen.grpc", "port"),
        ('[service.listen]\ngrpc = "8443"\n' + TLS + TOKENS, "service.listen.grpc", "HOST:PORT"),
        ('[service.listen]\ngrpc = "a:1"\nhttp = "a:1"\n' + TLS + TOKENS, "service.listen.http", "of its own"),
        (
            '[service.listen]\nclient_certificates = "required"\n',
            "service.listen.client_certificates",
            "client_ca_file",
        ),
        ('[service.listen]\nclient_ca_file = "/ca"\n', "service.listen.client_ca_file", "no effect"),
        (
            '[[service.listen.certificates]]\nsubject = "CN=a"\nrole = "agent"\n',
            "service.listen.certificates",
            "client_ca_file",
        ),
        (
            '[service.listen]\nclient_ca_file = "/ca"\n'
            + '[[service.listen.certificates]]\nsubject = "CN=a"\nrole = "agent"\n' * 2,
            "service.listen.certificates",
            "more than once",
        ),
        (
            '[service.listen]\nclient_ca_file = "/ca"\n[[service.listen.certificates]]\nsubject = "a"\nrole = "root"\n',
            "service.listen.certificates[0].role",
            "choose one of",
        ),
        (OIDC + 'algorithms = ["HS256"]\n', "service.listen.oidc.algorithms", "'HS256' is not one of"),
        (OIDC + 'algorithms = ["none"]\n', "service.listen.oidc.algorithms", "'none' is not one of"),
        (OIDC.replace("https://", "http://"), "service.listen.oidc.issuer", "begins with https://"),
        (OIDC.replace("https://", "https://u:p@"), "service.listen.oidc.issuer", "password"),
        (OIDC.replace('audience = "advisor"\n', ""), "service.listen.oidc.audience", "must be given"),
        (
            '[service.listen.oidc]\nissuer = "https://idp"\naudience = "a"\n',
            "service.listen.oidc.roles",
            "must name a value",
        ),
        ('[service.listen.oidc]\naudience = "advisor"\n', "service.listen.oidc.audience", "without issuer"),
        ("[service.limits]\nuser = 0\n", "service.limits.user", "more than 0"),
        ('[service]\nsocket = "/a/b.sock"\nhttp_socket = "/a/b.sock"\n', "service.http_socket", "of its own"),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_key(tmp_path: Path, text: str, key: str, word: str) -> None:
    """Each mistake is located, and says what to do."""
    assert word in _problems(tmp_path, text)[key]


def test_a_nested_key_can_be_set_by_environment() -> None:
    """Text, numbers and tables below [service.listen] have variables like every other key."""
    given = {
        "ADVISOR_SERVICE__LISTEN__HTTP": "0.0.0.0:8443",
        "ADVISOR_SERVICE__LISTEN__CERTIFICATE_FILE": "/c",
        "ADVISOR_SERVICE__LISTEN__KEY_FILE": "/k",
        "ADVISOR_SERVICE__LISTEN__OIDC__ISSUER": "https://idp",
        "ADVISOR_SERVICE__LISTEN__OIDC__AUDIENCE": "1234",
        "ADVISOR_SERVICE__LISTEN__OIDC__LEEWAY_SECONDS": "5",
        "ADVISOR_SERVICE__LISTEN__OIDC__ROLES__0__VALUE": "ops",
        "ADVISOR_SERVICE__LISTEN__OIDC__ROLES__0__ROLE": "operator",
        "ADVISOR_SERVICE__OWN_JOBS": "false",
    }
    service = config.load(None, given).config.service
    assert (service.listen.http, service.listen.oidc.audience) == ("0.0.0.0:8443", "1234")
    assert service.listen.oidc.leeway_seconds == 5
    assert [(item.value, item.role) for item in service.listen.oidc.roles] == [("ops", "operator")]
    assert service.own_jobs is False


@pytest.mark.parametrize(
    ("listened_on", "told"),
    [
        ("", "/run/a.sock"),
        ("0.0.0.0:8443", "/run/a.sock, ctl1:8443"),
        ("[::]:8443", "/run/a.sock, ctl1:8443"),
        ("192.0.2.1:8443", "/run/a.sock, 192.0.2.1:8443"),
        ("[2001:db8::1]:8443", "/run/a.sock, [2001:db8::1]:8443"),
    ],
)
def test_a_replica_says_where_it_answers(listened_on: str, told: str) -> None:
    """An address that is everywhere is told by the host's name, or nobody could ask it."""
    section = ServiceSection(socket=Path("/run/a.sock"), listen=ListenSection(grpc=listened_on))
    assert address_of(section, "ctl1") == told
