"""Hostlists, StdOut patterns, capacity, scope: small pure readers of text that others wrote."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin import capacity, hostlist, scope
from slurm_plugin.hostlist import HostlistError, expand
from slurm_plugin.scope import ScopeConfig, judge
from slurm_plugin.squeue import JobDetails, JobRow, NodeRow
from slurm_plugin.stdout_paths import PatternValues, expand_path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("(null)", ()),
        ("node7", ("node7",)),
        ("node[1-3,7]", ("node1", "node2", "node3", "node7")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("r[1-2]n[1-2],x", ("r1n1", "r1n2", "r2n1", "r2n2", "x")),
        ("gpu[1-2]-ib,gpu1-ib", ("gpu1-ib", "gpu2-ib")),
    ],
)
def test_hostlist(text: str, names: tuple[str, ...]) -> None:
    """Slurm's forms, padding kept, duplicates dropped."""
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["n[", "n]", "n[1-]", "n[2-1]", "n[1-99999999]", "a b", "n[[1]]", "n\n2", "n[1-999][1-999]"]
)
def test_hostlist_refuses(text: str) -> None:
    """What is no hostlist, or names more nodes than a cluster has."""
    with pytest.raises(HostlistError):
        expand(text)


@given(st.text(alphabet="n[]-,0123456789\x1f", max_size=40))
def test_hostlist_never_fails_otherwise(text: str) -> None:
    """Any text gives bounded names or the one error."""
    with contextlib.suppress(HostlistError):
        assert len(expand(text)) <= hostlist.NODES_MAX


VALUES = PatternValues(
    job_id="27",
    name="na me",
    user="alice",
    batch_host="gpu7.cluster",
    work_dir="/home/alice/",
    array_job_id="",
    array_task=None,
)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        # the file names that Slurm 22.05.8 really made
        (
            "a|%j|%5j|%A|%a|%x|%u|%n|%t|%J|%s|%b|%%|%5x",
            "/home/alice/a|27|00027|27|4294967294|na me|alice|0|0|27|batch|%b|%|na me",
        ),
        ("%3t|%12j|%3u|%q|%|%5J", "/home/alice/000|0000000027|alice|%q|%|00027"),
        ("/abs/%j", "/abs/27"),
        ("\\\\%j.out", "/home/alice/\\%j.out"),
        ("%N", "/home/alice/gpu7"),
        ("", "/home/alice/slurm-27.out"),
    ],
)
def test_stdout_patterns(pattern: str, path: str) -> None:
    """As measured, padding and its cap of ten included."""
    assert expand_path(pattern, VALUES) == path


def test_stdout_patterns_of_an_array_task() -> None:
    """The default names array and task."""
    task = PatternValues(job_id="29", array_job_id="28", array_task=7, work_dir="/w", user="u")
    assert expand_path("", task) == "/w/slurm-28_7.out"
    assert expand_path("r|%j|%3a|%A", task) == "/w/r|29|007|28"


def test_stdout_path_needs_a_place() -> None:
    """A relative path without a working directory, or an endless one, is no path."""
    assert expand_path("x", PatternValues(job_id="1", work_dir="")) == ""
    assert expand_path("x" * 5000, VALUES) == ""
    assert expand_path("a\x00b", VALUES) == ""


# --- scope -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ('"/home/alice/rules.json"', "/home/alice/rules.json"),
        ('[{"name": "a", "logPattern": "b"}]', '[{"name":"a","logPattern":"b"}]'),
        ('{"logMonitoringConfiguration": []}', '{"logMonitoringConfiguration":[]}'),
        ('"rules.json"', '"rules.json"'),
        ("5", "5"),
        ("null", ""),
    ],
)
def test_a_job_brings_log_rules_by_path_or_inline(rules: str, told: str) -> None:
    """A path as it is, everything else as JSON: what is wrong with it is for the reader of rules to say."""
    assert scope.job_rules(f'note {{"advisor": {{"rules": {rules}}}}} more') == told


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5) | st.text(alphabet="/\0\ud800x"), st.lists))
def test_rules_in_a_comment_never_raise_and_fit_into_a_message(value: object) -> None:
    """Hostile values cost a bounded text without a NUL."""
    told = scope.job_rules(json.dumps({"advisor": {"rules": value}}))
    assert len(told) <= scope.RULES_CHARACTERS_MAX
    assert "\0" not in told
    assert scope.job_rules('{"advisor": {"rules": ' + "[" * 990 + "]" * 990 + "}}")


def scoped(comment: str, **config: object) -> scope.Scope:
    return judge(ScopeConfig(**config), comment=comment, partition="gpu", user="alice", account="research")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("comment", "inside", "limit"),
    [
        ('{"advisor": {}}', True, None),
        ('{"advisor": {"max_restarts": 3}}', True, 3),
        ('{"advisor": {"enabled": true}}', True, None),
        ('{"advisor": {"enabled": false}}', False, None),
        ('{"advisor": {"enabled": "yes"}}', False, None),
        ('{"advisor": true}', True, None),
        ('{"advisor": false}', False, None),
        ('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 5}}', True, 5),
        ('{"APS": {"auto_resume_mode": "none"}}', False, None),
        ('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": -5}}', True, None),
        ('note first {"advisor": {}}', True, None),
        ('say "hi" {"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 2}} and more', True, 2),
        ('{"wandb": {"run": "a\\"}{"}} {"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 4}}', True, 4),
        ('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 9}} {"advisor": {"max_restarts": 1}}', True, 1),
        ('{"APS": {"auto_resume_mode": "requeue"}, "advisor": {"enabled": false}}', False, None),
        ('{"advisor": {"enabled": false}} {"advisor": {"enabled": true}}', False, None),
        ('{"APS": {"auto_resume_mode": "REQUEUE"}}', False, None),
        ('{"aps": {"auto_resume_mode": "requeue"}}', False, None),
        ('{"note": {"APS": {"auto_resume_mode": "requeue"}}}', False, None),
        ('{not json} {"APS": {"auto_resume_mode": "requeue"}}', False, None),
        ('"{\\"APS\\": {\\"auto_resume_mode\\": \\"requeue\\"}}"', False, None),
        ('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": NaN}}', False, None),
        ('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": Infinity}}', False, None),
        ('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 1e999}}', True, None),
        ('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": "3"}}', True, None),
        ('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": ' + "9" * 5000 + "}}", False, None),
        ('{"APS": {"auto_resume_mode": ["requeue"]}}', False, None),
        ('{"APS": [{"auto_resume_mode": "requeue"}]}', False, None),
        ('{"APS": ' + '{"a":' * 5000 + "1" + "}" * 5000 + "}", False, None),
        ('{"APS": {"auto_resume_mode": "requeue", "x": "' + "y" * 2**20 + '"}}', False, None),
        ('{"x":' + "[" * 8000, False, None),
        ("", False, None),
        ("please restart me", False, None),
        ('{"advisor": ', False, None),
        ('["advisor"]', False, None),
        ('{"advisor": {"max_restarts": true}}', False, None),
        ('{"advisor": {"max_restarts": 10001}}', False, None),
        ('{"advisor": {"max_restarts": null}}', False, None),
        ('{"advisor": {"rules": [{"name": "x", "logPattern": "y"}], "max_restarts": 2}}', True, 2),
        ('{"advisor": {"rules": "r.json"}}', True, None),
        ('{"advisor": {"rules": true}}', False, None),
        ("{" * 10_000, False, None),
        ('{"advisor": {}' + " " * 20_000 + "}", False, None),
    ],
)
def test_opt_in(comment: str, inside: bool, limit: int | None) -> None:
    """Only the documented forms say anything; the default is no."""
    found = scoped(comment)
    assert (found.inside, found.restarts_max) == (inside, limit)


@pytest.mark.parametrize(
    ("comment", "begins"),
    [
        ("{advisor: {enabled: true}}", "its comment is not JSON"),
        ("{'advisor': {'enabled': True}}", "its comment is not JSON"),
        ('{"Advisor": {"enabled": true}', "its comment is not JSON"),
        ("advisor=on", "its comment is not JSON"),
        ('{"advisor": "on"}', "its comment's JSON is no opt-in"),
        ('{"Advisor": {"enabled": true}}', "its comment's JSON is no opt-in"),
        ("please restart me", "not opted in"),
        ("", "not opted in"),
    ],
)
def test_an_opt_in_that_failed_is_told_so(comment: str, begins: str) -> None:
    """Whoever wrote of the advisor and was not understood reads why."""
    found = scoped(comment)
    assert not found.inside
    assert found.reason.startswith(begins)


@pytest.mark.parametrize(
    ("comment", "says"),
    [
        ('{"advisor":{"enable":false}}', "advisor.enable: no such key; the nearest is enabled"),
        ('{"advisor":{"Enabled":false}}', "advisor.Enabled: no such key; the nearest is enabled"),
        ('{"advisor":{"disabled":true}}', "advisor.disabled: no such key; the nearest is enabled"),
        ('{"advisor":{"enabledd":true}}', "advisor.enabledd: no such key; the nearest is enabled"),
        (
            '{"advisor":{"enabled":true,"max_restart":0}}',
            "advisor.max_restart: no such key; the nearest is max_restarts",
        ),
        (
            '{"advisor":{"enabled":true,"wanted":false}}',
            "advisor.wanted: no such key; known are enabled, max_restarts, rules",
        ),
        ('{"advisor":{"\\u001b[2J\\n":1}}', "advisor.??2J?: no such key; known are"),
        ('{"advisor":{"enabled":"false"}}', "advisor.enabled must be true or false"),
        ('{"advisor":{"enabled":0}}', "advisor.enabled must be true or false"),
        (
            '{"advisor":{"enabled":true,"max_restarts":"3"}}',
            "advisor.max_restarts must be a whole number from 0 to 10000",
        ),
        (
            '{"advisor":{"enabled":true,"max_restarts":-1}}',
            "advisor.max_restarts must be a whole number from 0 to 10000",
        ),
        ('{"advisor":{"enabled":true,"rules":5}}', "advisor.rules must be"),
        ('{"advisor":"off"}', "advisor must be true, false or an object"),
        ('{"advisor":null}', "advisor must be true, false or an object"),
        ('{"advisor":"off","APS":{"auto_resume_mode":"requeue"}}', "advisor must be true, false or an object"),
        ('{"Advisor":{"enabled":false}}', 'the key is "advisor"'),
        ('{"adviser":{"enabled":false}}', 'the key is "advisor"'),
        ('{"advisor":{"enabled":true},"Advisor":false}', 'the key is "advisor"'),
        ("{advisor:{enabled:false}}", "not JSON"),
        ("{'advisor': {'enabled': False}}", "not JSON"),
        ('{"advisor":{"enabled":false}', "not JSON"),
        ('{"wandb":1} {advisor:{enabled:false}}', "not JSON"),
        ('{"APS":{"auto_resume_mode":"requeue"}} {advisor:{enabled:false}}', "not JSON"),
        ('{"x":1, "advisor":{"enabled":false},}', "not JSON"),
        ('{"advisor":{"enabled":false,"x":"' + "y" * scope.COMMENT_CHARACTERS_MAX + '"}}', "characters are more than"),
    ],
)
@pytest.mark.parametrize("config", [{}, {"partitions": ("gpu",)}, {"opt_in": False, "users": ("alice",)}])
def test_a_slip_is_no_opt_in_and_keeps_the_job_out_where_the_site_selects_it(
    comment: str, says: str, config: dict[str, object]
) -> None:
    """Somebody tried to say something, and it may have been no."""
    found = scoped(comment, **config)
    assert not found.inside
    assert found.restarts_max is None
    assert says in found.reason
    assert found.reason.isprintable()
    assert len(found.reason) < 250


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "please restart me",
        "ask my advisor {soon}",
        "advisor: Prof. Ada",
        '{"wandb": {"advisor": 1}} {x}',
        '{"APS": {"auto_resume_mode": "none"}}',
        '{"APS": 1}',
        '{"advisor_told": "attempt 0"}',
        """run {7} | advisor: attempt 0: it printed 'advisor': no (advisor explain 7)""",
    ],
)
def test_who_does_not_speak_to_the_advisor_stays_where_the_site_put_him(comment: str) -> None:
    """Other tools' keys, plain words, and our own line with whatever text of a log."""
    assert scoped(comment, partitions=("gpu",)).inside


def test_selectors_default_to_none_and_match_exactly() -> None:
    """A site names partitions, users or accounts."""
    assert not scoped("").inside
    assert scoped("", partitions=("gpu",)).inside
    assert scoped("", users=("alice",)).inside
    assert scoped("", accounts=("research",)).inside
    assert not scoped("", partitions=("gp",)).inside


def test_opt_out_wins_over_a_selector() -> None:
    """The job knows best whether it can run twice."""
    assert not scoped('{"advisor": {"enabled": false}}', users=("alice",)).inside


def test_opt_in_can_be_switched_off() -> None:
    """Then only selectors count."""
    assert not scoped('{"advisor": {}}', opt_in=False).inside
    assert scoped('{"advisor": {}}', opt_in=False, users=("alice",)).inside


@given(st.text(max_size=200))
def test_no_comment_breaks_it(comment: str) -> None:
    """Text that is not a whole JSON object with our key never opts in."""
    if "advisor" not in comment and "APS" not in comment:
        assert not scoped(comment).inside


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_taken(value: object) -> None:
    """Whatever type stands where ours should."""
    scoped(json.dumps({"advisor": value, "APS": value}))


# --- capacity --------------------------------------------------------------------------------------------------------


def node(name: str, state: str = "idle", **changes: object) -> NodeRow:
    values: dict[str, object] = {
        "name": name,
        "state": state,
        "responding": True,
        "partitions": ("gpu",),
        "cpus": 16,
        "memory_mb": 4000,
        "gres": "gpu:h200:8(S:0-1)",
        "features": ("ib", "h200"),
        "reason": "",
    }
    return NodeRow(**(values | changes))  # type: ignore[arg-type]


def details(**changes: object) -> JobDetails:
    values: dict[str, object] = {
        "job_id": "1",
        "submit": 1,
        "name": "",
        "comment": "",
        "account": "",
        "work_dir": "",
        "stdout": "",
        "stderr": "",
        "features": "",
        "cpus_per_node": 1,
        "memory_mb_per_node": 0,
        "gres_per_node": "",
        "nodes_required": "",
    }
    return JobDetails(**(values | changes))  # type: ignore[arg-type]


JOB = JobRow(
    job_id="1", shown_id="1", state="PENDING", restarts=1, submit=1, user="u", user_id=1, partition="gpu,other"
)


def test_busy_nodes_count_down_drained_and_silent_ones_do_not() -> None:
    """A busy node will be free again; a drained one may not."""
    nodes = [
        node("a", "allocated"),
        node("b", "mixed"),
        node("c", "down"),
        node("d", "drained"),
        node("e", responding=False),
        node("f", "draining"),
        node("g", partitions=("cpu",)),
        node("h", "reserved"),
        node("i", "maint"),
    ]
    assert capacity.fitting(JOB, details(), nodes) == ("a", "b")


def test_a_job_of_several_partitions_runs_in_one() -> None:
    """Three nodes of one and two of the other are room for three, not for five; a node of both counts for either."""
    nodes = [node(name) for name in "abc"] + [node(name, partitions=("other",)) for name in "de"]
    assert capacity.fitting(JOB, details(), nodes) == ("a", "b", "c")
    both = [node("a", partitions=("gpu", "other")), *nodes[3:]]
    assert capacity.fitting(JOB, details(), both) == ("a", "d", "e")


@pytest.mark.parametrize(
    ("wish", "fits"),
    [
        ({"gres_per_node": "gres:gpu:8"}, True),
        ({"gres_per_node": "gres:gpu:h200:8"}, True),
        ({"gres_per_node": "gres:gpu:a100:1"}, False),
        ({"gres_per_node": "gres:gpu:9"}, False),
        ({"gres_per_node": "gres/gpu=8"}, True),
        ({"features": "ib&h200"}, True),
        ({"features": "ib,a100"}, False),
        ({"cpus_per_node": 17}, False),
        ({"memory_mb_per_node": 4001}, False),
    ],
)
def test_what_a_job_asks_of_each_node(wish: dict[str, object], fits: bool) -> None:
    """GPUs by name and model, features, processors, memory."""
    assert capacity.fitting(JOB, details(**wish), [node("a")]) == (("a",) if fits else ())


@pytest.mark.parametrize(
    "wish",
    [{"features": "ib|h200"}, {"features": "[a*2&b*1]"}, {"gres_per_node": "gpu:é"}, {"reservation": "alices"}],
)
def test_what_cannot_be_judged_is_not_known(wish: dict[str, object]) -> None:
    """Not known is not none."""
    assert capacity.fitting(JOB, details(**wish), [node("a")]) is None
    assert capacity.fitting(JOB, None, [node("a")]) is None
    assert capacity.fitting(JOB, details(), []) is None
