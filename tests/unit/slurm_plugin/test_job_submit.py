"""job_submit_advisor.lua: what it says of comments, the same as the agent makes of them, and what it never does."""

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin import mark, scope
from tests.cost import within
from tests.unit.slurm_plugin.lua_world import NO_VALUE, Answer, Lua
from watchdog import marks as watchdog_marks

NOW = time.time  # noqa: TID251 - the file's age is by the wall clock, which Lua asks itself
PARTITIONS = '{main = {name = "main", flag_default = 1, total_nodes = 6, nodes = "node[1-4],node[05-6]x,login"}}'


@pytest.fixture(scope="module")
def lua() -> Iterator[Lua]:
    made = Lua()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("comment", "tag"),
    [
        (None, None),
        ("", None),
        ("ask my advisor {soon}", None),
        ('{"other": 1}', None),
        ('{"advisor": {"enabled": true}}', "advisor:opted-in"),
        ('text {"advisor": true} text', "advisor:opted-in"),
        ('{"advisor": {"enabled": true, "max_restarts": 5, "rules": "/home/ada/r.json"}}', "advisor:opted-in"),
        ('{"advisor": {"rules": [{"name": "x", "logPattern": ["a\\"b"]}], "max_restarts": 0}}', "advisor:opted-in"),
        ('{"adv\\u0069sor": {"enabled": false}}', "advisor:opted-out"),
        ('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 5}}', "advisor:opted-in"),
        ('{"APS": {"auto_resume_mode": "none"}}', None),
        ('{"advisor": false, "APS": {"auto_resume_mode": "requeue"}}', "advisor:opted-out"),
    ],
)
def test_a_comment_that_is_understood_is_accepted_and_tagged(lua: Lua, comment: str | None, tag: str | None) -> None:
    """And one that does not speak of us is nobody's business. The comment itself stays as it is."""
    assert lua.submit(comment) == Answer(code=0, said="", logged="", comment=comment, admin_comment=tag, exc_nodes=None)


@pytest.mark.parametrize(
    ("comment", "says"),
    [
        (
            "{advisor: {enabled: true}}",
            'not JSON at character 2: a key in double quotes is expected here; an opt-in is {"',
        ),
        ('{"advisor": {"enabled": true}', "not JSON at character 30: a comma or a closing brace"),
        ('{"advisor": {"enabled": "yes"}}', "advisor.enabled must be true or false, without quotes"),
        ('{"advisor": "on"}', "advisor must be true, false or an object"),
        ('{"advisor": null}', "advisor must be true, false or an object"),
        ('{"Advisor": {"enabled": true}}', 'the key is "advisor", in small letters'),
        ('{"advisor": {"enable": false}}', "advisor.enable: no such key; known are enabled, max_restarts, rules"),
        ('{"advisor": {"max_restarts": 1.5}}', "advisor.max_restarts must be a whole number from 0 to 10000"),
        ('{"advisor": {"max_restarts": "3"}}', "advisor.max_restarts must be a whole number"),
        ('{"advisor": {"max_restarts": 10001}}', "advisor.max_restarts must be a whole number"),
        ('{"advisor": {"rules": "rules.json"}}', "advisor.rules must be the absolute path of a file"),
        ('{"advisor": ' + "[" * 40 + "]" * 40 + "}", "nested deeper than 32 levels"),
        ('{"advisor": {"rules": "/' + "x" * 16384 + '"}}', "16411 bytes are more than the 16384 that are read"),
        ('{"advisor": {"a\x07%s\\u0000b": 1}}', "not JSON at character 16: control characters"),
        ('{"advisor": {"a%s%n": 1}}', "advisor.a?s?n: no such key"),
        ("{'APS': {'auto_resume_mode': 'requeue'}}", "not JSON at character 2"),
        ('{"adviser": {"enabled": false}}', 'the key is "advisor", in small letters'),
        ('{"advisor": {"rules": 5}}', "advisor.rules must be the absolute path of a file"),
        ('{"advisor": {"rules": false}}', "advisor.rules must be the absolute path of a file"),
        ('{"wandb": 1} {advisor: {enabled: false}}', "not JSON at character 15: a key in double quotes"),
        ('{"APS": {"auto_resume_mode": "requeue"}} {advisor: false}', "not JSON at character 43"),
    ],
)
def test_a_comment_that_is_no_opt_in_although_meant_as_one_is_refused(lua: Lua, comment: str, says: str) -> None:
    """With one sentence; a slip must not decide whether a job is restarted."""
    answer = lua.submit(comment)
    assert (answer.code, answer.admin_comment, answer.logged) == (-1, None, "")
    assert answer.said.startswith("--comment: ")
    assert says in answer.said


@pytest.mark.parametrize(
    "aps", ["1", '{"auto_resume_mode": 1}', '{"auto_resume_mode":"requeue","max_requeue_times":-1}']
)
def test_what_other_software_may_mean_is_warned_of_only(lua: Lua, aps: str) -> None:
    """The key APS is not ours."""
    answer = lua.submit(f'{{"APS": {aps}}}')
    assert answer.code == 0
    assert "no effect" in answer.said


WORDS = st.sampled_from(
    [
        *("{", "}", "[", "]", '"', ":", ",", " ", "\n", '"advisor"', '"APS"', '"enabled"', '"max_restarts"', '"rules"'),
        *('"auto_resume_mode"', '"requeue"', "true", "false", "null", "0", "-1", "5", "1e3", "07", "NaN", "\\"),
        *("\\u0061", "\x00", "\x1f", "\udcff", "é", "advisor", "Advisor", '"/r"'),
        *("{advisor", "'advisor'", '"Advisor"', '"adviser"', '"enable"', "'APS'"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 20000) | st.sampled_from(["requeue", "/r", "x", "\x00\U0001f600"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["advisor", "Advisor", "APS", "enabled", "enable", "max_restarts", "rules", "auto_resume_mode", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=400)
@given(
    comment=st.lists(WORDS, max_size=24).map("".join)
    | JSON.map(json.dumps)
    | JSON.map(lambda v: f"t {json.dumps(v)} t")
    | st.lists(JSON, max_size=3).map(lambda values: " and ".join(map(json.dumps, values)))
)
def test_lua_and_the_agent_read_a_comment_alike(comment: str) -> None:
    """Whatever is accepted means at submission what the agent will make of it, and what is refused is left alone by the
    agent, too, where the site selects everybody; and nothing makes Lua stumble.
    """
    answer = LUA.submit(comment)
    assert answer.logged == ""
    if answer.code != 0:
        selected = scope.ScopeConfig(partitions=("p",))
        found = scope.judge(selected, comment=comment, partition="p", user="u", account="a")
        assert not found.inside or "advisor.rules" in answer.said  # a path that is none is for the reader of rules
        return
    inside = scope.judge(scope.ScopeConfig(), comment=comment, partition="p", user="u", account="a")
    out = "opted out" in inside.reason
    expected = "advisor:opted-in" if inside.inside else "advisor:opted-out" if out else None
    assert answer.admin_comment == expected


LUA = Lua()


def test_the_work_is_bounded(lua: Lua) -> None:
    """slurmctld waits with its locks held: the worst comment of the longest kind costs milliseconds."""
    for comment in ('{"advisor":' * 1400, '{"advisor":' + "[" * 16000, "{" + '"advisor":1,' * 1300, '{"\\u0061' * 1600):
        within(0.1, partial(lua.submit, comment))


def test_the_sites_refusal_stands_and_its_tag_is_kept(lua: Lua) -> None:
    """Ours comes after theirs, and adds."""
    refused = lua.submit('{"advisor": true}', site_code=2001)
    assert (refused.code, refused.admin_comment) == (2001, None)
    kept = lua.submit('{"advisor": true}', job={"admin_comment": "theirs"})
    assert kept.admin_comment == "theirs advisor:opted-in"


def isolated(path: Path, nodes: object, **changes: object) -> str:
    alike = {name: {"main": 6} for name in nodes} if isinstance(nodes, list) else {}
    path.write_text(json.dumps({"v": 1, "written": int(NOW()), "nodes": nodes, "alike": alike} | changes))
    return f'tag = false, exclude_isolated = "opted-in", isolated_file = "{path}"'


def test_isolated_nodes_are_avoided_from_submission_on_and_can_be_given_back(lua: Lua, tmp_path: Path) -> None:
    """Only those of the job's partition; a mark in AdminComment lets the watchdog know which are ours."""
    options = isolated(tmp_path / "i", ["node2", "node05x", "node7", "other"])
    job = {"min_nodes": 3}
    answer = lua.submit('{"advisor": true}', options=options, job=job, partitions=PARTITIONS)
    assert (answer.code, answer.exc_nodes) == (0, "node2,node05x")
    watchdogs, agents = watchdog_marks.find(answer.admin_comment or ""), mark.find(answer.admin_comment or "")
    assert watchdogs is not None
    assert agents is not None
    assert watchdogs.nodes == agents.nodes == agents.inherited == ("node2", "node05x")
    assert watchdogs.shared
    assert not agents.advised
    assert lua.submit(None, options=options, job=job, partitions=PARTITIONS).exc_nodes is None
    everybody = options.replace("opted-in", "all")
    assert lua.submit(None, options=everybody, job=job, partitions=PARTITIONS).exc_nodes == "node2,node05x"
    assert lua.submit('{"advisor": false}', options=everybody, job=job, partitions=PARTITIONS).exc_nodes is None


@pytest.mark.parametrize(
    "job",
    [
        {"min_nodes": 5},
        {"min_nodes": NO_VALUE},
        {"min_nodes": 1, "req_nodes": "node2"},
        {"min_nodes": 1, "features": "a100"},
        {"min_nodes": 1, "reservation": "r"},
        {"min_nodes": 1, "exc_nodes": "node1"},
        {"min_nodes": 1, "partition": "main,other"},
        {"min_nodes": 1, "array_inx": "0-9%2"},  # tasks share one record, of which nobody could give anything back
    ],
)
def test_where_it_cannot_be_told_that_the_job_can_do_without_nothing_is_excluded(
    lua: Lua, tmp_path: Path, job: dict[str, object]
) -> None:
    """Slurm would refuse the job, and for our sake."""
    options = isolated(tmp_path / "i", ["node2", "node3"])
    answer = lua.submit('{"advisor": true}', options=options, job=job, partitions=PARTITIONS)
    assert (answer.code, answer.exc_nodes) == (0, job.get("exc_nodes"))


@pytest.mark.parametrize(
    ("alike", "wanted", "excluded"),
    [
        ({"node2": {"main": 3}, "node3": {"main": 4}}, 1, "node2,node3"),
        ({"node2": {"main": 3}, "node3": {"main": 4}}, 2, None),
        ({"node2": {"main": 3}}, 1, None),
        ({"node2": {"other": 3}, "node3": {"main": 4}}, 1, None),
        ({"node2": 6, "node3": {"main": "6"}}, 1, None),
        ("all", 1, None),
    ],
)
def test_in_a_mixed_partition_only_nodes_alike_count(
    lua: Lua, tmp_path: Path, alike: object, wanted: int, excluded: str | None
) -> None:
    """A job that wants all H200 nodes would be refused for the one that is isolated, however many others there are."""
    options = isolated(tmp_path / "i", ["node2", "node3"], alike=alike)
    answer = lua.submit('{"advisor": true}', options=options, job={"min_nodes": wanted}, partitions=PARTITIONS)
    assert (answer.code, answer.exc_nodes, answer.logged) == (0, excluded, "")


@pytest.mark.parametrize(
    "raw",
    [
        None,
        "",
        "{",
        "null",
        "[" * 70000,
        '{"v":1}',
        '{"v":2,"written":NOW,"nodes":["node2"]}',
        '{"v":1,"written":NOW,"nodes":"node2"}',
        '{"v":1,"written":NOW,"nodes":["node2",3]}',
        '{"v":1,"written":NOW,"nodes":["node2,node3"]}',
        '{"v":1,"written":"NOW","nodes":["node2"]}',
        '{"v":1,"written":1,"nodes":["node2"]}',
        '{"v":1,"written":9999999999999,"nodes":["node2"]}',
        '{"v":1,"written":NOW,"nodes":[' + '"node2",' * 64 + '"node2"]}',
        '{"v":1,"written":NOW,"nodes":' + "[" * 5000 + "]" * 5000 + "}",
        '{"v":1,"written":NOW,"nodes":["' + "x" * 70000 + '"]}',
    ],
)
def test_a_file_that_is_absent_old_or_garbage_does_nothing(lua: Lua, tmp_path: Path, raw: str | None) -> None:
    """The job is accepted as it is, and nothing is logged for each submission."""
    path = tmp_path / "i"
    options = isolated(path, ["node2"])
    path.unlink()
    if raw is not None:
        path.write_text(raw.replace("NOW", str(int(NOW()))))
    job = {"min_nodes": 1}
    answer = lua.submit('{"advisor": true}', options=options, job=job, partitions=PARTITIONS)
    assert (answer.code, answer.exc_nodes, answer.logged) == (0, None, "")


def test_a_partition_that_is_not_understood_excludes_nothing_and_refuses_nobody(lua: Lua, tmp_path: Path) -> None:
    """Several brackets in one name, no total, no default partition, no partitions at all."""
    options = isolated(tmp_path / "i", ["r1n2"])
    for partitions in (
        '{main = {flag_default = 1, total_nodes = 6, nodes = "r[1-2]n[1-3]"}}',
        '{main = {flag_default = 1, nodes = "r1n[1-3]"}}',
        '{main = {flag_default = 0, total_nodes = 6, nodes = "r1n[1-3]"}}',
        "{}",
        "nil",
    ):
        answer = lua.submit('{"advisor": true}', options=options, job={"min_nodes": 1}, partitions=partitions)
        assert (answer.code, answer.exc_nodes) == (0, None)
