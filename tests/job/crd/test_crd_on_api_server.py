"""A real API server judges objects by the generated definition: schema, defaults and CEL rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from ruamel.yaml.error import YAMLError

from job import chains, sessions
from job.crd.test_crd_objects import ACCEPTED, EXAMPLES, REFUSED, SPEC, document
from job.crd.test_session_crd import GOOD_OBJECTS
from job.crd.test_session_crd import REFUSED as REFUSED_SESSIONS
from job.crd.test_session_crd import SPEC as SESSION_SPEC
from job.join.test_step_rules import BAD_STEPS, GOOD_STEPS
from job.kinds.test_session_rules import BAD as BAD_SESSIONS
from job.resources import edited
from job.test_load_bad import BAD, NOT_YET
from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.kubectl import KubectlFailed, wait_until
from joinery_runtime.job.crd import BLUE_GREEN, KINDS, RESOURCE_KINDS, ResourceKind, custom_resource_definition
from joinery_runtime.job.model.cel import HAS_UNIT
from joinery_runtime.job.model.resource import API_VERSION

pytestmark = pytest.mark.services

GROUP, _, VERSION = API_VERSION.partition("/")
Judge = Callable[[Mapping[str, Any]], str]


@pytest.fixture(scope="module")
def judge(api_server: ApiServer) -> Iterator[Judge]:
    """What the API server says against an object; empty when it takes it. Nothing is kept."""
    for kind in RESOURCE_KINDS:
        api_server.kubectl.define(custom_resource_definition(kind))
    objects = client.CustomObjectsApi(config.new_client_from_config(str(api_server.kubeconfig)))

    def rejection(written: Mapping[str, Any]) -> str:
        plural = next((kind.plural for kind in RESOURCE_KINDS if kind.name == written.get("kind")), KINDS[0].plural)
        where = (GROUP, VERSION, "default", plural)
        try:
            objects.create_namespaced_custom_object(*where, written, dry_run="All", field_validation="Strict")
        except ApiException as error:
            if error.status not in {400, 422}:
                raise
            return str(yaml.safe_load(error.body)["message"])
        return ""

    yield rejection
    objects.api_client.close()


@pytest.mark.parametrize("edits", ACCEPTED, ids=lambda edits: str(edits)[-60:])
def test_what_the_models_accept_is_taken(judge: Judge, edits: Any) -> None:
    assert judge(document(edited(*edits))) == ""


@pytest.mark.parametrize("way", [{"window": {"session": {"gap": "30s"}}}, {"window": {"tumbling": "1m"}}], ids=str)
def test_late_rows_of_windows_go_to_the_dead_letters(judge: Judge, way: Any) -> None:
    assert judge(changed(late_rows_to_the_dead_letters(**way))) == ""


@pytest.mark.parametrize(("steps", "more"), GOOD_STEPS)
def test_every_form_of_step_is_taken(judge: Judge, steps: Any, more: Any) -> None:
    assert judge(chains.document(*steps, **more)) == ""


# What takes the text of keys and expressions apart, or counts what depends on them: the models say it alone.
LOADER_ONLY = (
    *(
        "must be a column of 'orders'",
        "must be a column of 'items'",
        "has no column",
        "key types differ",
        "whose table key is",
        "the keys name",
    ),
    *("write <input>.amount", "did you mean 'orders'?", "is not an SQL expression"),
    *(
        "two output columns are named",
        "two output columns would be named",
        "write <input>.window_start",
        "select it as it is",
    ),
    *("is none; leave it out", "is for a job of one step", "is for one key column", "(orders.amount) are not known"),
    *("is for coPartitioned: true", "is for topics alone", "a join of type anti", "'payments' has no time any more"),
    *("a version of 'rates' may be older", "is not there any more", "there is no function LOWR", "(rule J12)"),
    *("is a function of SQL already", "is a column of 'orders' already"),
    *("into other windows", "in windows already", "is in no window", "are in no window", "windows count the time of"),
    *("has a column without its input", "is also the name of a column", "a key is written orders or payments"),
)


@pytest.mark.parametrize(("steps", "more", "path", "words"), BAD_STEPS, ids=lambda value: str(value)[:50])
def test_bad_steps_are_refused_or_left_to_the_models(
    judge: Judge, steps: Any, more: Any, path: str, words: str
) -> None:
    answer = judge(chains.document(*steps, **more))
    if any(alone in words for alone in LOADER_ONLY):
        assert answer == ""
    else:
        assert f"spec.{path.partition('[')[0]}" in answer


@pytest.mark.parametrize("written", GOOD_OBJECTS, ids=lambda written: str(written["spec"])[-60:])
def test_every_form_of_sessions_is_taken(judge: Judge, written: Any) -> None:
    assert judge(written) == ""


# What depends on types, on columns and on names elsewhere.
SESSIONS_LOADER_ONLY = (
    *("no column 'usr_id'", "no column 'prize'", "takes numbers", "boolean", "has a column 'page' already"),
    *("is the name of a group column", "is not an output column", "is counted with limit"),
    *("the row that another session has", "may change while a session lasts", "did you mean 'user_id'?"),
    *("is no column of these", "are named 'user_id'", "session_id is left out", "keeps the values of 'page'"),
    *("has no column 'gone'", "is binary; choose another column", "string_agg takes json and string"),
    "the output would keep a row",
)


@pytest.mark.parametrize(("aggregates", "more", "path", "words"), BAD_SESSIONS, ids=lambda value: str(value)[:50])
def test_bad_sessions_are_refused_or_left_to_the_models(
    judge: Judge, aggregates: Any, more: Any, path: str, words: str
) -> None:
    answer = judge(sessions.document(*aggregates, **more))
    if any(alone in words for alone in SESSIONS_LOADER_ONLY):
        assert answer == ""
    else:
        assert f"spec.{path.partition('[')[0]}" in answer or words in answer


@pytest.mark.parametrize(("written", "path"), REFUSED_SESSIONS, ids=lambda value: str(value)[-60:])
def test_what_the_schema_of_sessions_refuses_is_refused_at_its_place(judge: Judge, written: Any, path: str) -> None:
    assert f"spec{path}" in judge(written)


def test_every_rule_of_sessions_refuses_a_bad_object_with_its_words(judge: Judge) -> None:
    bad = [*(sessions.document(*aggregates, **more) for aggregates, more, *_ in BAD_SESSIONS), *RULED_SESSIONS]
    answers = "\n".join(map(judge, bad))
    own = set(rules(SESSION_SPEC)) - set(rules(SPEC))
    assert {message for message in own if message not in answers} == set()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_taken(judge: Judge, path: Path) -> None:
    assert judge(document(path.read_text())) == ""


@pytest.mark.parametrize(("edit", "path"), REFUSED, ids=lambda value: str(value)[-60:])
def test_what_the_schema_refuses_is_refused_at_its_place(judge: Judge, edit: Any, path: str) -> None:
    assert f"spec{path}" in judge(document(edited(edit)))


def test_every_rule_refuses_a_bad_object_with_its_words(judge: Judge) -> None:
    """The good ones are above: no rule refuses any of them."""
    edits = [case[0] for case in (*BAD, *NOT_YET, *REFUSED)]
    bad = [*(written for edit in edits for written in readable(edit)), *RULED]
    bad += [chains.document(*steps, **more) for steps, more, *_ in BAD_STEPS]
    bad += [aggregated(aggregates=list(aggregates)) for aggregates, *_ in BAD_SESSIONS]
    answers = "\n".join(map(judge, bad))
    missing = {message for message in rules(SPEC) if message not in answers}
    assert missing == set()


@pytest.mark.parametrize(
    ("name", "refused"), [("noon", False), ("periodic-dump", False), ("periodic-7", True), ("rollout-7f", True)]
)
def test_savepoints_have_no_names_of_those_that_others_delete(judge: Judge, name: str, refused: bool) -> None:
    written = {"apiVersion": API_VERSION, "kind": "Savepoint", "metadata": {"name": name}}
    assert ("choose another name" in judge({**written, "spec": {"job": {"name": "orders"}}})) == refused
    assert "spec.job" in judge({**written, "spec": {}})


@pytest.mark.parametrize(("length", "refused"), [(242, False), (243, True)])
def test_the_jobs_of_a_blue_green_job_have_longer_names(judge: Judge, length: int, refused: bool) -> None:
    written = {**example(BLUE_GREEN), "metadata": {"name": "a" * length}}
    assert ("choose a name of at most 242" in judge(written)) == refused


def test_the_template_of_a_blue_green_job_keeps_what_the_job_has(judge: Judge) -> None:
    written = example(BLUE_GREEN)
    assert judge(written) == ""
    assert "spec.template.kind" in judge(with_template(kind="Savepoint"))
    assert "spec.template.spec" in judge(with_template(spec=7))
    assert "has no unit" in judge({**written, "spec": {**written["spec"], "stableFor": 30}})
    assert "spec.switch" in judge({**written, "spec": {**written["spec"], "switch": "soon"}})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_template_takes_what_the_kind_takes_and_no_unknown_field(judge: Judge, kind: ResourceKind) -> None:
    spec = example(kind)["spec"]
    assert judge(with_template(kind=kind.name, spec=spec)) == ""
    assert "shardz" in judge(with_template(kind=kind.name, spec={**spec, "shardz": 4}))
    assert "spec.template.spec.shards" in judge(with_template(kind=kind.name, spec={**spec, "shards": "many"}))
    nested: Any = 1
    for _ in range(400):
        nested = {"a": nested}
    for field in ("inputs", "input", "output", "stateStore", "upgrade", "where", "bomb"):
        assert field in judge(with_template(kind=kind.name, spec={**spec, field: nested}))


def with_template(**fields: Any) -> dict[str, Any]:
    written = example(BLUE_GREEN)
    return {**written, "spec": {"template": {**written["spec"]["template"], **fields}}}


@pytest.mark.parametrize("kind", RESOURCE_KINDS, ids=lambda kind: kind.name)
def test_a_new_resource_has_a_status_that_says_that_nobody_has_seen_it(
    api_server: ApiServer, kind: ResourceKind
) -> None:
    """For kstatus: a resource without any status counts as one that is as it should be."""
    api_server.kubectl.define(custom_resource_definition(kind))
    objects = client.CustomObjectsApi(config.new_client_from_config(str(api_server.kubeconfig)))
    resource_path, written = (GROUP, VERSION, "default", kind.plural), example(kind)
    try:
        created = objects.create_namespaced_custom_object(*resource_path, written)
        assert created["status"]["observedGeneration"] == -1
        current = objects.get_namespaced_custom_object(*resource_path, created["metadata"]["name"])
        assert current["status"] == created["status"]
        objects.delete_namespaced_custom_object(*resource_path, created["metadata"]["name"])
    finally:
        objects.api_client.close()


def test_settings_may_be_emptied_by_a_server_side_apply(api_server: ApiServer) -> None:
    """As Flux, Argo and Helm do where the last setting goes and the empty map stays."""
    (kind, _), kubectl = KINDS, api_server.kubectl
    kubectl.define(custom_resource_definition(kind))
    written = example(kind)
    written["metadata"] = {"name": "emptied", "namespace": "default"}
    try:
        for settings in ({"spark.a": "b", "spark.c": 1}, {"spark.c": 1}, {}):
            written["spec"]["spark"] = {"conf": settings, "driver": {"nodeSelector": {k[-1]: "x" for k in settings}}}
            kubectl.apply(written)
            resource = kubectl.get(kind.plural, "emptied")
            assert resource is not None
            assert resource["spec"]["spark"]["conf"] == settings
            assert set(resource["spec"]["spark"]["driver"]["nodeSelector"]) == {k[-1] for k in settings}
    finally:
        kubectl("delete", kind.plural, "emptied", "--ignore-not-found")


@pytest.mark.parametrize("kind", RESOURCE_KINDS, ids=lambda kind: kind.name)
def test_a_second_version_of_the_same_shape_needs_no_webhook(api_server: ApiServer, kind: ResourceKind) -> None:
    """docs/decisions/0044: written as one version, read and changed as the other."""
    both = json.loads(json.dumps(custom_resource_definition(kind)).replace(GROUP, "versions.test"))
    (alpha,) = both["spec"]["versions"]
    both["spec"]["versions"] = [{**alpha, "storage": False}, {**alpha, "name": "v1beta1"}]
    api_server.kubectl.define(both)
    written = {**example(kind), "apiVersion": f"versions.test/{VERSION}"}
    objects = client.CustomObjectsApi(config.new_client_from_config(str(api_server.kubeconfig)))
    resource_path, name = ("default", kind.plural), written["metadata"]["name"]
    try:
        old = objects.create_namespaced_custom_object("versions.test", VERSION, *resource_path, written)
        new = objects.get_namespaced_custom_object("versions.test", "v1beta1", *resource_path, name)
        assert (new["apiVersion"], new["spec"]) == ("versions.test/v1beta1", old["spec"])
        with_status = {**new, "status": {"phase": "Pending", "observedGeneration": 1}}
        objects.replace_namespaced_custom_object_status("versions.test", "v1beta1", *resource_path, name, with_status)
        current = objects.get_namespaced_custom_object("versions.test", VERSION, *resource_path, name)
        assert current["status"]["observedGeneration"] == current["metadata"]["generation"] == 1
        assert current["spec"] == old["spec"]
        objects.delete_namespaced_custom_object("versions.test", VERSION, *resource_path, name)
    finally:
        objects.api_client.close()
    api_server.kubectl("delete", "crd", f"{kind.plural}.versions.test")


# The steps of docs/decisions/0044 one after the other, in a group of their own


class Versions:
    """A kind in `steps.test`, as `v1alpha1` and `v1beta1`."""

    def __init__(self, server: ApiServer, kind: ResourceKind) -> None:
        self.kubectl, self.kind = server.kubectl, kind
        self.plural = f"{kind.plural}.steps.test"
        self.at = f"{kind.plural}.{{version}}.steps.test"
        self.name = example(kind)["metadata"]["name"]

    def define(self, **versions: Mapping[str, Any]) -> None:
        """With these versions; each one's further fields."""
        crd = json.loads(json.dumps(custom_resource_definition(self.kind)).replace(GROUP, "steps.test"))
        (alpha,) = crd["spec"]["versions"]
        crd["spec"]["names"] |= {"shortNames": [], "categories": []}
        crd["spec"]["versions"] = [{**alpha, "name": name, **more} for name, more in versions.items()]
        self.kubectl.define(crd)

    def create(self, version: str) -> None:
        written = {**example(self.kind), "apiVersion": f"steps.test/{version}"}
        self.kubectl("create", "-n", "default", "-f", "-", stdin=yaml.safe_dump(written))

    def read(self, version: str) -> dict[str, Any]:
        text = self.kubectl("get", self.at.format(version=version), self.name, "-n", "default", "-o", "json")
        return dict(json.loads(text))

    def stored(self) -> list[str]:
        crd = json.loads(self.kubectl("get", "crd", self.plural, "-o", "json"))
        return list(crd["status"]["storedVersions"])

    def served(self) -> set[str]:
        versions = json.loads(self.kubectl("get", "--raw", "/apis/steps.test"))["versions"]
        return {version["version"] for version in versions}


@pytest.fixture(params=RESOURCE_KINDS, ids=lambda kind: kind.name)
def versions(api_server: ApiServer, request: pytest.FixtureRequest) -> Iterator[Versions]:
    api_versions = Versions(api_server, request.param)
    yield api_versions
    api_versions.kubectl("delete", "crd", api_versions.plural)


ALPHA, BETA = "v1alpha1", "v1beta1"
STORED, SERVED = {"storage": True}, {"storage": False}


def test_step_1_serves_both_versions_stores_the_old_one_and_can_be_rolled_back(versions: Versions) -> None:
    versions.define(v1alpha1=STORED)
    versions.define(v1alpha1=STORED, v1beta1=SERVED)
    wait_until("both are served", lambda: versions.served() == {ALPHA, BETA})
    versions.create(BETA)
    old, new = versions.read(ALPHA), versions.read(BETA)
    assert (old["apiVersion"], new["apiVersion"]) == ("steps.test/v1alpha1", "steps.test/v1beta1")
    assert (old["spec"], old["status"]) == (new["spec"], new["status"])
    # The operator goes on reading the old one.
    resource = {name: old[name] for name in ("kind", "metadata", "spec")}
    versions.kind.model.model_validate({**resource, "apiVersion": API_VERSION}, by_alias=True, by_name=False)
    assert versions.stored() == [ALPHA]
    versions.define(v1alpha1=STORED)
    assert versions.read(ALPHA) == old


def test_step_3_rewrites_every_object_before_the_old_version_goes(versions: Versions) -> None:
    versions.define(v1alpha1=STORED)
    versions.create(ALPHA)
    status = {"status": {"phase": "Pending", "observedGeneration": 1}}
    at = (versions.at.format(version=ALPHA), versions.name, "-n", "default")
    versions.kubectl("patch", *at, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    before = versions.read(ALPHA)
    versions.define(v1alpha1=SERVED, v1beta1=STORED)  # step 2
    wait_until("both are stored", lambda: versions.stored() == [ALPHA, BETA])
    with pytest.raises(KubectlFailed, match=r"v1alpha1.*storedVersions|storedVersions.*v1alpha1"):
        versions.define(v1beta1=STORED)
    written = versions.kubectl("get", versions.plural, "-A", "-o", "yaml")
    versions.kubectl("replace", "-f", "-", stdin=written)
    forget = {"status": {"storedVersions": [BETA]}}
    versions.kubectl("patch", "crd", versions.plural, "--subresource=status", "--type=merge", "-p", json.dumps(forget))
    warned = {**SERVED, "deprecated": True, "deprecationWarning": "steps.test/v1alpha1 is deprecated; use v1beta1"}
    versions.define(v1alpha1=warned, v1beta1=STORED)
    assert versions.read(ALPHA)["spec"] == before["spec"]
    # Step 4. What had not been written anew could not be read any more.
    versions.define(v1beta1=STORED)
    wait_until("the old one is gone", lambda: versions.served() == {BETA})
    after = versions.read(BETA)
    assert (after["spec"], after["status"]) == (before["spec"], before["status"])
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["generation"] == 1, "the operator takes a rewriting for no edit"


NO_UNIT: dict[str, dict[str, Any]] = {"StreamJoin": {"trigger": {"interval": 30}}, "SessionWindow": {"gap": 30}}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_only_a_duration_that_was_stored_may_be_without_a_unit(api_server: ApiServer, kind: ResourceKind) -> None:
    """The rule came after the first resources: what they do not edit goes on."""
    kubectl, group = api_server.kubectl, "units.test"
    now = json.loads(json.dumps(custom_resource_definition(kind)).replace(GROUP, group))
    now["spec"]["names"] |= {"shortNames": [], "categories": []}
    kubectl.define(without_rule(now, HAS_UNIT.rule))
    written = {**(sessions.document() if kind.name == "SessionWindow" else document(edited()))}
    written["apiVersion"] = f"{group}/{VERSION}"
    written["spec"] |= NO_UNIT[kind.name]
    create = ("create", "-n", "default", "-f", "-")
    at = (f"{kind.plural}.{group}", written["metadata"]["name"], "-n", "default", "--type=merge")

    def patch(change: Mapping[str, Any], *more: str) -> None:
        kubectl("patch", *at, *more, "-p", json.dumps(change))

    try:
        kubectl(*create, stdin=yaml.safe_dump(written))
        kubectl.define(now)
        again = yaml.safe_dump({**written, "metadata": {"name": "again"}})

        def refused() -> bool:
            try:
                kubectl(*create, "--dry-run=server", stdin=again)
            except KubectlFailed as error:
                return "30 has no unit; write 30s or 30ms" in str(error)
            return False

        wait_until("the rule is there", refused)
        patch({"status": {"phase": "Pending", "observedGeneration": 1}}, "--subresource=status")
        patch({"metadata": {"annotations": {"a": "b"}}, "spec": {"shards": 2}})
        edited_field = json.loads(json.dumps(NO_UNIT[kind.name]).replace("30", "40"))
        with pytest.raises(KubectlFailed, match="40 has no unit; write 40s or 40ms"):
            patch({"spec": edited_field})
        patch({"spec": json.loads(json.dumps(NO_UNIT[kind.name]).replace("30", '"30s"'))})
    finally:
        kubectl("delete", "crd", f"{kind.plural}.{group}")


def without_rule(value: Any, rule: str) -> Any:
    if isinstance(value, dict):
        rules = "x-kubernetes-validations"
        inner = {name: without_rule(item, rule) for name, item in value.items()}
        if rules in inner:
            inner[rules] = [validation for validation in inner[rules] if validation["rule"] != rule]
        return inner
    return [without_rule(item, rule) for item in value] if isinstance(value, list) else value


def example(kind: ResourceKind) -> dict[str, Any]:
    examples = {written["kind"]: written for path in EXAMPLES if (written := document(path.read_text()))}
    savepoint = {"apiVersion": API_VERSION, "kind": "Savepoint", "metadata": {"name": "noon"}}
    blue_green = {"apiVersion": API_VERSION, "kind": "BlueGreenJob", "metadata": {"name": "orders"}}
    of_no_file = {
        "Savepoint": {**savepoint, "spec": {"job": {"name": "orders"}}},
        "BlueGreenJob": {**blue_green, "spec": {"template": {"spec": examples["StreamJoin"]["spec"]}}},
    }
    return dict({**examples, **of_no_file}[kind.name])


def changed(change: Callable[[dict[str, Any]], object]) -> Mapping[str, Any]:
    """The good object with another spec."""
    written = document(edited())
    change(written["spec"])
    return written


def on_another_kafka(spec: dict[str, Any]) -> None:
    spec["inputs"][1]["kafka"]["bootstrapServers"] = "elsewhere:9092"
    spec["deadLetter"] = {"kafka": {"topic": "dead"}}


def late_rows_to_the_dead_letters(**way: Any) -> Callable[[dict[str, Any]], None]:
    def change(spec: dict[str, Any]) -> None:
        spec["joins"][0].pop("interval")
        spec["joins"][0].update(way, lateData="dlq")
        spec["deadLetter"] = {"file": {"path": "dead"}}

    return change


SECRET = {"name": "n", "key": "k"}
# Bad by a rule that no case of the other lists breaks.
RULED = [
    changed(lambda spec: spec.pop("joins")),
    changed(lambda spec: spec.update(sql="SELECT 1")),
    changed(lambda spec: spec.update(sql="SELECT 1", select=[{"column": "orders.ts"}])),
    changed(lambda spec: spec["inputs"].pop()),
    changed(lambda spec: spec["inputs"][1].update(where="ts > 1", table={"key": ["order_id"]})),
    changed(lambda spec: spec["joins"][0].pop("interval")),
    changed(lambda spec: spec["joins"][0].update(window={"tumbling": "0s"})),
    changed(lambda spec: spec.update(stateStore={"postgres": {"dsn": "x"}, "checkpointInterval": "0s"})),
    changed(lambda spec: spec.update(stateStore={"memory": {}, "startFrom": {"job": "a", "savepoint": "b"}})),
    changed(lambda spec: spec.update(autoscale={"minInstances": 3, "maxInstances": 2})),
    changed(lambda spec: spec.update(autoscale={"maxInstances": 2}, spark={"executor": {"maxInstances": 4}})),
    changed(lambda spec: spec.update(prefixes="whenNeeded", select=[{"column": "orders.id"}])),
    changed(on_another_kafka),
    changed(lambda spec: spec.update(output={"postgres": {"table": "t", "dsn": "d", "dsnSecretRef": SECRET}})),
    changed(late_rows_to_the_dead_letters(asOf={"historyRetention": "1h"})),
    changed(lambda spec: spec.update(output={"iceberg": {"table": "db.out"}}, stateStore={"memory": {}})),
    changed(lambda spec: spec.update(output={"delta": {"path": "out"}}, stateStore={"memory": {}})),
    changed(lambda spec: spec["joins"][0].update(lateData="dlq")),
    changed(lambda spec: spec.pop("output")),
    changed(lambda spec: spec.update(outputs=[{"name": "again", "file": {"path": "again"}}])),
    changed(lambda spec: (spec.pop("output"), spec.update(outputs=[{"name": "epochs", "file": {"path": "again"}}]))),
]


def aggregated(window: Any = None, of_spec: Any = None, **of_aggregate: Any) -> dict[str, Any]:
    """A job that counts joined rows in windows."""
    aggregate = {
        "groupBy": ["orders.currency"],
        "window": window or {"tumbling": {"size": "1h"}},
        "aggregates": [sessions.COUNT],
        **of_aggregate,
    }
    return chains.document(chains.step(), **{"aggregate": aggregate, **(of_spec or {})})


RULED += [
    aggregated(of_spec={"sql": "SELECT 1"}),
    aggregated(of_spec={"prefixes": "always"}),
    aggregated(window={"of": "nothing", "tumbling": {"size": "1h"}}),
    aggregated(window={"of": "orders"}),
    aggregated(window={"tumbling": {"size": "1h", "offset": "1h"}}),
    aggregated(window={"session": {"gap": "30s", "maxDuration": "1h"}}, groupBy=[]),
    aggregated(lateData="dlq"),
    aggregated(window={"session": {"gap": "30s", "maxDuration": "1h"}}, lateData="reopen", having="n > 1"),
    aggregated(having="n > 1", emit={"every": "10s"}),
    aggregated(emit={"every": "0s"}),
    aggregated(emitRetractions=True),
    *(
        aggregated(emit={"every": "10s"}, of_spec={"output": output})
        for output in ({"delta": {"path": "out"}}, {"iceberg": {"table": "db.out"}})
    ),
    *(
        aggregated(lateData="reopen", of_spec={"output": output})
        for output in ({"delta": {"path": "out"}}, {"iceberg": {"table": "db.out"}})
    ),
    aggregated(then={}, window={"session": {"gap": "30s", "maxDuration": "1h"}}),
    aggregated(then={}, lateData="reopen"),
    aggregated(then={}, emit={"every": "10s"}),
    aggregated(then={"aggregates": [{**sessions.COUNT, "where": "n > 1"}]}),
    aggregated(then={"window": {"tumbling": {"size": "1h"}, "hopping": {"size": "1h", "slide": "1m"}}}),
    aggregated(then={"window": {"tumbling": {"size": "0s"}}}),
]


DEAD = {"deadLetter": {"file": {"path": "dead"}}}
SPENT = {
    "groupBy": ["orders.currency"],
    "window": {"tumbling": {"size": "1h"}},
    "aggregates": [{"function": "sum", "column": "orders.amount", "as": "spent"}],
}


def deduplicated(*steps: Any, of_spec: Any = None, **fields: Any) -> dict[str, Any]:
    """A job that emits each order once."""
    rule = {"by": ["orders.id"], "within": "1h", **fields}
    deduplicate = {name: value for name, value in rule.items() if value is not None}
    inputs = None if steps else [chains.ORDERS]
    return chains.document(*steps, inputs=inputs, **{"deduplicate": deduplicate, **(of_spec or {})})


RULED += [
    deduplicated(of_spec={"aggregate": SPENT | {"lateData": "dlq"}, **DEAD}),
    deduplicated(of="nothing"),
    deduplicated(by=None),
    deduplicated(within="0s"),
    deduplicated(lateData="dlq"),
    deduplicated(chains.step(), lateData="dlq", of_spec={"deadLetter": {"file": {"path": "dead"}}}),
]


TOP_OF_WINDOWS = {"orderBy": [{"expression": "spent", "direction": "desc"}], "rows": 2}


def ranked(*steps: Any, of_spec: Any = None, **fields: Any) -> dict[str, Any]:
    """A job that emits the two highest orders of each currency and hour."""
    order = [{"expression": "orders.amount", "direction": "desc"}]
    rule = {"by": ["orders.currency"], "orderBy": order, "rows": 2, "window": {"tumbling": {"size": "1h"}}, **fields}
    top_n = {name: value for name, value in rule.items() if value is not None}
    inputs = None if steps else [chains.ORDERS]
    return chains.document(*steps, inputs=inputs, **{"topN": top_n, **(of_spec or {})})


RULED += [
    *(
        chains.document(inputs=[chains.ORDERS], topN=TOP_OF_WINDOWS | rule, aggregate=SPENT | of_aggregate, **DEAD)
        for rule, of_aggregate in (
            ({"window": {"tumbling": {"size": "1h"}}}, {}),
            ({"of": "orders"}, {}),
            ({"allowedLateness": "1m"}, {}),
            ({"lateData": "dlq"}, {}),
            ({}, {"window": {"session": {"gap": "30s", "maxDuration": "1h"}}}),
            ({}, {"lateData": "reopen"}),
            ({}, {"emit": {"every": "10s"}}),
        )
    ),
    ranked(allowedLateness="1m", of_spec={"deduplicate": {"by": ["orders.id"], "within": "1h"}}),
    ranked(lateData="dlq", of_spec={"deduplicate": {"by": ["orders.id"], "within": "1h"}, **DEAD}),
    ranked(of="nothing"),
    ranked(orderBy=None),
    ranked(rows=None),
    ranked(totals=[{"function": "count", "as": "n"}]),
    ranked(having="1 > 0"),
    ranked(window=None),
    ranked(window={}),
    ranked(window={"tumbling": {"size": "1h", "offset": "1h"}}),
    ranked(lateData="dlq"),
    ranked(chains.step(), lateData="dlq", of_spec={"deadLetter": {"file": {"path": "dead"}}}),
]

RULED_SESSIONS = [
    sessions.document(sql="SELECT 1", groupBy=None, gap=None, aggregates=[sessions.COUNT]),
    sessions.document(sql="SELECT 1", groupBy=None, gap=None, having="events > 1"),
    sessions.document(deadLetter={"kafka": {"topic": "dead"}}),
    sessions.document(lateData="reopen", having="events > 1"),
    sessions.document(emit={"every": "10s"}, having="events > 1"),
    sessions.document(emit={"every": "10s"}, output={"iceberg": {"table": "db.out"}}),
    sessions.document(emit={"every": "10s"}, output={"delta": {"path": "out"}}),
    sessions.document(lateData="reopen", output={"iceberg": {"table": "db.out"}}),
    sessions.document(lateData="reopen", output={"delta": {"path": "out"}}),
]


def readable(edit: Any) -> Iterator[Mapping[str, Any]]:
    """The object, unless the edit leaves no YAML."""
    with suppress(YAMLError):
        yield document(edited(edit))


def rules(schema: Any) -> Iterator[str]:
    """The messages of all CEL rules in a schema."""
    if isinstance(schema, dict):
        yield from (
            rule["message"] for rule in schema.get("x-kubernetes-validations", ()) if "messageExpression" not in rule
        )
        for inner in schema.values():
            yield from rules(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from rules(inner)
