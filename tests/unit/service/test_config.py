"""Configuration: strict, complete in its complaints, and overridable key by key."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor import config
from advisor.config_values import SHAPES
from advisor.core.words import Mode


def _load(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> config.Loaded:
    path = tmp_path / "advisor.toml"
    path.write_text(text)
    return config.load(path, environment or {})


def _problems(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> dict[str, str]:
    with pytest.raises(config.ConfigError) as caught:
        _load(tmp_path, text, environment)
    return {problem.key: problem.message for problem in caught.value.problems}


def test_no_file_gives_a_unix_socket_monitor_mode_and_our_own_database() -> None:
    """Without a file the service listens on a Unix socket only, in monitor mode, with its own Postgres."""
    loaded = config.load(None, {})
    assert loaded.config.service.socket.is_absolute()
    assert loaded.config.default_mode is Mode.MONITOR
    assert loaded.config.store.dsn_file is None


def test_every_problem_is_told_at_once_with_its_key_path(tmp_path: Path) -> None:
    """Unknown keys, wrong kinds and bad values are all reported together, each by its key path."""
    problems = _problems(
        tmp_path,
        """
        default_mode = "auto"
        bogus = 1
        [service]
        socket = "relative.sock"
        agent_users = ["a b"]
        [tick]
        interval_seconds = "fast"
        [[kernel]]
        path = "/var/log/kernel.log"
        """,
    )
    assert set(problems) == {
        "default_mode",
        "bogus",
        "service.socket",
        "service.agent_users[0]",
        "tick.interval_seconds",
        "kernel[0].path",
    }
    assert problems["bogus"] == "unknown key"


@pytest.mark.parametrize(
    ("variable", "value", "read"),
    [
        ("ADVISOR_SERVICE__SOCKET", "/run/x.sock", lambda c: c.service.socket == Path("/run/x.sock")),
        ("ADVISOR_SERVICE__AGENT_USERS", '["bob", "eve"]', lambda c: c.service.agent_users == ("bob", "eve")),
        ("ADVISOR_SERVICE__OPERATOR_USERS", "[]", lambda c: c.service.operator_users == ()),
        ("ADVISOR_TICK__INTERVAL_SECONDS", "2", lambda c: c.tick.interval_seconds == 2.0),
        ("ADVISOR_KERNEL__0__PATH", "/k/%n.log", lambda c: c.kernel[0].path == "/k/%n.log"),
        ("ADVISOR_LOGS", '[{name = "other"}]', lambda c: c.logs[0].name == "other"),
        ("ADVISOR_DEFAULT_MODE", "autonomous", lambda c: c.default_mode is Mode.AUTONOMOUS),
        ("ADVISOR_STORE__POSTGRES_USER", "1000", lambda c: c.store.postgres_user == "1000"),
        ("ADVISOR_LOG__LEVEL", "debug", lambda c: c.log.level == "debug"),
        ("ADVISOR_POLICY_FILE", "/etc/policy.toml", lambda c: c.policy_file == Path("/etc/policy.toml")),
        ("ADVISOR_RULES_FILES", '["/etc/r.toml"]', lambda c: c.rules_files == (Path("/etc/r.toml"),)),
    ],
)
def test_any_key_can_be_set_by_environment(tmp_path: Path, variable: str, value: str, read: object) -> None:
    """A variable overrides its key, whatever kind the key has."""
    assert callable(read)
    loaded = _load(tmp_path, '[service]\nsocket = "/from/file.sock"\n', {variable: value})
    assert read(loaded.config)


def test_every_key_of_the_schema_has_a_variable() -> None:
    """No section is forgotten: each leaf of the defaults can be set to its own value by environment."""
    given = config.load(None, {}).config
    for key, value in config.flattened(given):
        if value == "" or "[" in key:
            continue
        variable = "ADVISOR_" + key.upper().replace(".", "__")
        several = isinstance(_at(config.as_tree(given), key), list)
        text = json.dumps(value.split(", ")) if several else value
        assert config.load(None, {variable: text}).config == given, key


def _at(tree: object, key: str) -> object:
    for part in key.split("."):
        assert isinstance(tree, dict)
        tree = tree[part]
    return tree


def test_a_variable_with_a_wrong_name_is_an_error_and_foreign_ones_are_not(tmp_path: Path) -> None:
    """A mistyped key path is refused; variables that a container platform injects are not ours."""
    assert _problems(tmp_path, "", {"ADVISOR_SERVICE__SOKET": "/x"}) == {
        "service.soket": "unknown key: did you mean socket?"
    }
    _load(tmp_path, "", {"ADVISOR_SERVICE_HOST": "10.0.0.1", "ADVISOR_PORT": "tcp://x"})


def test_a_problem_names_the_variable_that_caused_it(tmp_path: Path) -> None:
    """Where a bad value came from is part of the message."""
    with pytest.raises(config.ConfigError) as caught:
        _load(tmp_path, "", {"ADVISOR_TICK__ATTEMPTS_MAX": "many"})
    assert caught.value.problems[0].origin == "ADVISOR_TICK__ATTEMPTS_MAX"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("a = " + 20_000 * "[", "is nested too deeply", id="lists"),
        pytest.param(".".join(3_000 * ["a"]) + " = 1", "is nested too deeply", id="a dotted key"),
        pytest.param("a = " + 6_000 * "9", "is not TOML: Exceeds the limit", id="a number of 6,000 digits"),
    ],
)
def test_what_no_parser_takes_is_told_of_its_file(tmp_path: Path, text: str, said: str) -> None:
    """Not with the parser's own stack."""
    assert said in _problems(tmp_path, text)[""]


def test_values_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    """Two sources of one name, a socket path no kernel takes, and a user for a database that is not ours."""
    problems = _problems(
        tmp_path,
        f"""
        [service]
        socket = "/{"x" * 100}"
        [store]
        dsn_file = "/etc/dsn"
        postgres_user = "postgres"
        [[logs]]
        name = "same"
        [[kernel]]
        name = "same"
        path = "/k/%n.log"
        """,
    )
    assert set(problems) == {"service.socket", "logs", "store.postgres_user"}


def test_what_has_the_wrong_shape_is_told_in_words(tmp_path: Path) -> None:
    """Of every key that has one: nobody reads a pattern."""
    path = tmp_path / "advisor.toml"
    path.write_text('[[logs]]\nname = "x"\nkind = "loki"\nurl = "ftp://logs"\n')
    with pytest.raises(config.ConfigError) as caught:
        config.load(path, {})
    (told,) = [problem.message for problem in caught.value.problems if problem.key == "logs[0].url"]
    assert told == "write an address that begins with http:// or https://, without ? and #"

    def patterns(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("pattern"), str):
                yield node["pattern"]
            for value in node.values():
                yield from patterns(value)
        elif isinstance(node, list):
            for value in node:
                yield from patterns(value)

    assert set(patterns(config.Config.model_json_schema())) == set(SHAPES)


def test_what_is_not_toml_says_where(tmp_path: Path) -> None:
    """A syntax error is one problem with its line."""
    problems = _problems(tmp_path, "[service\n")
    assert "line 1" in problems[""]


def test_a_dsn_open_to_all_users_is_refused(tmp_path: Path) -> None:
    """A database password that everybody can read is a problem, not a warning."""
    path = tmp_path / "dsn"
    path.write_text("postgresql://u:secret@db/advisor\n")
    path.chmod(0o644)
    with pytest.raises(config.ConfigError) as caught:
        config.read_dsn(path)
    assert "secret" not in str(caught.value)
    path.chmod(0o640)
    assert config.read_dsn(path) == "postgresql+psycopg://u:secret@db/advisor"


def test_show_tells_each_value_and_where_it_comes_from(tmp_path: Path) -> None:
    """File, variable or default: the origin of each key is known."""
    loaded = _load(tmp_path, "[tick]\nattempts_max = 7\n", {"ADVISOR_LOG__LEVEL": "debug"})
    values = dict(config.flattened(loaded.config))
    assert values["tick.attempts_max"] == "7"
    assert config.origin_of("tick.attempts_max", loaded).endswith("advisor.toml")
    assert config.origin_of("log.level", loaded) == "ADVISOR_LOG__LEVEL"
    assert config.origin_of("log.format", loaded) == "default"


def test_every_key_is_documented() -> None:
    """docs/configuration.md names each key of the schema, and no key that does not exist."""
    text = (Path(__file__).resolve().parents[3] / "docs" / "configuration.md").read_text()
    documented = {
        name for row in text.splitlines() if row.startswith("| `") for name in row.split("|")[1].split("`")[1::2]
    }
    given = {
        "ADVISOR_KERNEL": '[{path = "/k/%n.log"}]',
        "ADVISOR_METRICS": '[{url = "http://m:9090"}]',
        "ADVISOR_ATTRIBUTION": '[{url = "http://a:8000"}]',
        "ADVISOR_NOTIFY": '[{kind = "slack", name = "chat", url_file = "/u"}]',
    }
    keys = {key.replace("[0]", "") for key, _ in config.flattened(config.load(None, given).config)}
    assert documented == keys | {"logs", "kernel", "metrics", "attribution", "notify"}


@pytest.mark.parametrize(
    ("text", "key", "word"),
    [
        ('kind = "loki"\nselector = "{a=\\"b\\"}"', "logs[0].url", "must be given"),
        ('kind = "loki"\nurl = "http://x:1"', "logs[0].selector", "braces"),
        ('kind = "loki"\nurl = "ftp://x"\nselector = "{a=\\"b\\"}"', "logs[0].url", "http:// or https://"),
        ('url = "http://x:1"', "logs[0].url", "no meaning for files"),
        ('kind = "victorialogs"\nurl = "http://x:1"\ntenant = "team"', "logs[0].tenant", "AccountID:ProjectID"),
        (
            'kind = "victorialogs"\nurl = "http://x:1"\njob_label_indexed = false',
            "logs[0].job_label_indexed",
            "meaning",
        ),
        ('kind = "victorialogs"\nurl = "https://x:1"\nuser = "u"', "logs[0].user", "go together"),
        ('kind = "victorialogs"\nurl = "https://x:1"\nkey_file = "/k"', "logs[0].key_file", "go together"),
        ('kind = "victorialogs"\nurl = "http://x:1"\ntoken_file = "/t"', "logs[0].url", "in the clear"),
        (
            'kind = "victorialogs"\nurl = "https://x"\ntoken_file = "/t"\nuser = "u"\npassword_file = "/p"',
            "logs[0].token_file",
            "not both",
        ),
        (
            'kind = "loki"\nurl = "http://x:1"\nselector = "{a=\\"b\\"}"\nquestions_per_second = 50',
            "logs[0]",
            "at most 5",
        ),
    ],
)
def test_log_stores_that_cannot_be_used_are_refused_with_their_key(
    tmp_path: Path, text: str, key: str, word: str
) -> None:
    """What a store lacks, what has no meaning for its kind, and what would give a secret away."""
    with pytest.raises(config.ConfigError) as caught:
        _load(tmp_path, f"[[logs]]\n{text}\n")
    assert any(problem.key.startswith(key) and word in problem.message for problem in caught.value.problems), (
        caught.value
    )


def test_environment_variables_reach_log_stores(tmp_path: Path) -> None:
    """Text stays text and numbers become numbers, also in a list of tables."""
    text = '[[logs]]\nkind = "victorialogs"\nurl = "http://127.0.0.1:9428"\n'
    changed = {"ADVISOR_LOGS__0__TENANT": "1:2", "ADVISOR_LOGS__0__PUSH_DOWN": "false"}
    (source,) = _load(tmp_path, text, changed).config.logs
    assert (source.tenant, source.push_down) == ("1:2", False)


CHAT = '[[notify]]\nkind = "slack"\nname = "chat"\nurl_file = "/etc/chat.url"\n'
MAIL = '[[notify]]\nkind = "email"\nname = "mail"\nhost = "h"\nsender = "a@b"\nrecipients = ["c@d"]\n'


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('[[notify]]\nkind = "slack"\nname = "chat"\n', "notify[0].url_file", "must be given"),
        (CHAT + 'host = "x"\n', "notify[0].host", "no meaning"),
        (CHAT + CHAT, "notify[1].name", "two channels"),
        (CHAT + 'link = "https://x/"\n', "notify[0].link", "{decision}"),
        (CHAT + 'actions = ["restarts"]\n', "notify[0].actions[0]", "choose one of"),
        (CHAT + "actions = []\n", "notify[0].actions", "name one or more"),
        (MAIL + 'user = "u"\n', "notify[0].user", "go together"),
        (MAIL + 'user = "u"\npassword_file = "/p"\ntls = "none"\n', "notify[0].tls", "not sent without"),
        (MAIL.replace("c@d", "c@d\\nBcc: e@f"), "notify[0].recipients[0]", ""),
        ('[[logs]]\nextra_files = ["../%t"]\n', "logs[0].extra_files", "'..'"),
        ('[[logs]]\nkind = "loki"\nroot_reader = "/x"\n', "logs[0].root_reader", "for files"),
    ],
)
def test_channels_and_files_that_cannot_be_used_are_refused_with_their_key(
    tmp_path: Path, text: str, key: str, words: str
) -> None:
    """Before anything starts, with what may be written instead."""
    assert words in _problems(tmp_path, text)[key]


def test_channels_and_files_that_can(tmp_path: Path) -> None:
    """Several of a kind, each with its own name."""
    made = _load(
        tmp_path, CHAT + CHAT.replace("chat", "chat2") + MAIL + '[[logs]]\nextra_files = ["%j-%t.out"]\n'
    ).config
    assert [channel.name for channel in made.notify] == ["chat", "chat2", "mail"]
    assert made.logs[0].extra_files == ("%j-%t.out",)


@pytest.mark.parametrize(
    ("given", "key", "meant"),
    [
        ("defualt_mode = 'monitor'\n", "defualt_mode", ": did you mean default_mode?"),
        ("[tick]\ninterval_second = 1\n", "tick.interval_second", ": did you mean interval_seconds?"),
        ("[[kernel]]\nname = 'k'\npth = '/k/%n'\n", "kernel[0].pth", ": did you mean path?"),
        ("zzz = 1\n", "zzz", ""),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest_one(tmp_path: Path, given: str, key: str, meant: str) -> None:
    """Of the same section; none where none is near."""
    assert _problems(tmp_path, given, {})[key] == f"unknown key{meant}"
