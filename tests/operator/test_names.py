import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinery_operator.names import ChildNames, labels, owner_reference
from joinery_runtime.job.crd import KINDS

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
REVISION = "0123456789"

part = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,80}[a-z0-9])?", fullmatch=True)
job_names = st.lists(part, min_size=1, max_size=4).map(".".join).filter(lambda name: len(name) <= 253)
kinds = st.sampled_from([kind.name for kind in KINDS])
attempts = st.integers(1, 9_999_999_999)


def resource(name, kind="StreamJoin", **metadata):
    return {"apiVersion": "joinery.dev/v1alpha1", "kind": kind, "metadata": {"name": name, "uid": "u-1", **metadata}}


def pods_of(names, attempt):
    checks = [names.check(REVISION), names.check(REVISION, "stateless")]
    return [names.driver(attempt), *checks, names.delete_state, names.executor_prefix(attempt)]


@given(job_names, kinds, attempts)
def test_all_names_are_short_dns_labels(name, kind, attempt):
    names = ChildNames(resource(name, kind))
    every = [*pods_of(names, attempt), names.config_map(REVISION), names.service]
    every.append(f"{names.executor_prefix(attempt)}-exec-9999999999")
    assert all(DNS_LABEL.fullmatch(child_name) and len(child_name) <= 63 for child_name in every), every
    assert len(names.executor_prefix(attempt)) <= 47


@given(job_names, job_names, kinds, kinds, attempts, attempts)
def test_no_two_jobs_share_a_child(first, second, kind, other, attempt, later):
    if (first, kind) == (second, other):
        return
    ours, theirs = ChildNames(resource(first, kind)), ChildNames(resource(second, other))
    assert not set(pods_of(ours, attempt)) & set(pods_of(theirs, later))
    assert ours.config_map(REVISION) != theirs.config_map(REVISION)
    assert ours.service != theirs.service


def test_names_of_a_plain_job_read_as_designed():
    names = ChildNames(resource("orders"))
    assert names.driver(3) == "orders-driver-3"
    assert names.config_map("abc") == "orders-job-abc"
    assert names.service == "orders-driver"
    assert names.check("abc") == "orders-check-abc"
    assert names.delete_state == "orders-delete-state"
    assert names.executor_prefix(3) == "orders-3"


@pytest.mark.parametrize(
    ("first", "second"),
    [("a" * 60, "a" * 59 + "b"), ("a.b", "a-b"), ("a" * 36 + "b", "a" * 36 + "c"), ("1st", "j1st")],
)
def test_names_that_are_cut_or_cleaned_stay_apart(first, second):
    assert ChildNames(resource(first)).driver(1) != ChildNames(resource(second)).driver(1)
    assert ChildNames(resource(first)).driver(1).startswith(("a", "j1st-"))


def test_the_same_name_in_another_kind_is_another_job():
    assert ChildNames(resource("orders", "SessionWindow")).service.startswith("orders-")
    every = [resource("orders", kind.name) for kind in KINDS]
    assert len(every) > 1
    of_each = [
        {*pods_of(names, 1), names.config_map(REVISION), f"{names.executor_prefix(1)}-exec-1"}
        for names in map(ChildNames, every)
    ]
    assert len(set().union(*of_each)) == sum(map(len, of_each))
    assert len({ChildNames(manifest).service for manifest in every}) == len(every)
    # Services, probes and the metrics' monitors find pods by labels.
    assert len({tuple(sorted(labels(manifest, "driver").items())) for manifest in every}) == len(every)


@given(job_names, kinds, attempts)
def test_labels_are_valid(name, kind, attempt):
    pod_labels = labels(resource(name, kind), "driver", attempt, REVISION)
    assert all(LABEL_VALUE.fullmatch(value) and len(value) <= 63 for value in pod_labels.values()), pod_labels


def test_labels_say_whose_and_what_and_hand_nothing_down():
    tracked = resource("orders", labels={"argocd.argoproj.io/instance": "app", "helm.sh/chart": "c"})
    assert labels(tracked, "driver", 3, "abc") == {
        "app.kubernetes.io/name": "joinery",
        "app.kubernetes.io/managed-by": "joinery-operator",
        "joinery.dev/job": "orders",
        "joinery.dev/kind": "StreamJoin",
        "joinery.dev/role": "driver",
        "joinery.dev/attempt": "3",
        "joinery.dev/revision": "abc",
    }
    assert labels(tracked, "service").keys() & {"joinery.dev/attempt", "joinery.dev/revision"} == set()


def test_the_owner_is_the_resource():
    assert owner_reference(resource("orders")) == {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": "StreamJoin",
        "name": "orders",
        "uid": "u-1",
        "controller": True,
        "blockOwnerDeletion": True,
    }
